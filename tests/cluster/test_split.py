"""A strict queue is split over two clusters and merged under a load that does not give up, while parts of either are
killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cluster.test_cluster import patient
from tests.cluster.test_moves import kill_backend, opened, run
from tests.cluster.test_several_clusters import HOSTS, PAIR
from tests.support.consumers import call
from tests.support.patience import eventually
from tests.support.prerequisites import require
from tests.support.stubborn_load import StubbornLoad

pytestmark = pytest.mark.anyio

KEYS = 20
MORE = 400
OPEN = 2**44
"""Numbers of a second place begin here."""


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


async def ask(http: httpx2.AsyncClient, queue: str, **wanted: Any) -> None:
    async def is_begun() -> bool:
        answer = await http.post("/v1/cluster/moves", json={"queue": queue, **wanted})
        assert answer.status_code in (202, 409, 503), answer.text
        return answer.status_code == 202

    await eventually(is_begun, f"{wanted} is begun")


async def place_of(http: httpx2.AsyncClient, queue: str) -> dict[str, Any]:
    answer = await http.get(f"/v1/cluster/queues/default/{queue}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def lies_in(http: httpx2.AsyncClient, queue: str, **shares: float) -> None:
    async def is_so() -> bool:
        place = await place_of(http, queue)
        return not place["goal"] and {one["cluster"]: one["share"] for one in place["clusters"]} == shares

    await eventually(is_so, f"it is in {shares}")


@pytest.mark.parametrize("killed", ["source", "target", "gateway"])
@pytest.mark.parametrize("model", ["leaders", "hosts"])
async def test_a_queue_that_is_split_and_merged_loses_doubles_and_reorders_nothing(
    tmp_path: Path, model: str, killed: str
) -> None:
    """Whoever of those who carry it is killed in its midst."""
    async with opened(tmp_path, PAIR, HOSTS if model == "hosts" else PAIR) as world:
        one, other = world.gateways

        async def kill() -> None:
            if killed == "gateway":
                await run(one.kill)
                await run(one.start)
            else:
                again = await kill_backend(world.us if killed == "source" else world.eu)
                await again()

        async with patient(one) as http, patient(other) as there:
            queue = await world.queue_of(http, "us")
            load = StubbornLoad([one.url, other.url], one.headers, queue, keys=KEYS)
            places = load.history.places
            async with load.running():
                await load.more(MORE)
                await ask(http, queue, over=["us", "eu"])
                await kill()
                await lies_in(there, queue, us=0.5, eu=0.5)
                before = set(places)
                await load.more(2 * MORE)
                new = [seq for name, (_, seq) in places.items() if name not in before]
                share = sum(seq >= OPEN for seq in new) / len(new)
                assert 0.4 < share < 0.6, f"{share:.0%} of {len(new)} went to the second cluster"
                await ask(there, queue, to="eu")
                await kill()
                await lies_in(there, queue, eu=1.0)
                await load.more(MORE)
            assert await load.broken() == []
            assert (await call(there, "GET", queue))["cluster"] == "eu"
