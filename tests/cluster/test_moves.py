"""A strict queue moves to another cluster under a load that does not give up, while parts of either are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import gateway, patient
from tests.cluster.test_several_clusters import HOSTS, PAIR
from tests.support.backends import ROLE, Backend, Backends
from tests.support.consumers import call
from tests.support.patience import eventually
from tests.support.prerequisites import require
from tests.support.server import PushqServer
from tests.support.stubborn_load import CONFIG, StubbornLoad

pytestmark = pytest.mark.anyio

MORE = 60
run = anyio.to_thread.run_sync


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class World:
    """The clusters us, which is the home cluster, and eu, and two gateways before both."""

    def __init__(self, us: Backends, eu: Backends, gateways: list[PushqServer]) -> None:
        self.us, self.eu, self.gateways = us, eu, gateways

    async def queue_of(self, http: httpx2.AsyncClient, cluster: str) -> str:
        for number in range(20):
            name = f"q{number:02}"
            made = await call(http, "PUT", name, CONFIG)
            if made["cluster"] == cluster:
                return name
        raise AssertionError(f"no queue was put into {cluster}")

    async def move(self, http: httpx2.AsyncClient, queue: str, to: str) -> None:
        async def is_begun() -> bool:
            answer = await http.post("/v1/cluster/moves", json={"queue": queue, "to": to})
            assert answer.status_code in (202, 503), answer.text
            return answer.status_code == 202

        await eventually(is_begun, "the move is begun")

    async def moves(self, http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        answer = await http.get("/v1/cluster/moves")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    async def arrived(self, http: httpx2.AsyncClient) -> None:
        async def has_arrived() -> bool:
            return [one["state"] for one in await self.moves(http)] in (["draining"], ["remembering"])

        await eventually(has_arrived, "it has arrived")

    async def drained(self, http: httpx2.AsyncClient) -> None:
        async def is_drained() -> bool:
            return [(one["state"], one["left"]) for one in await self.moves(http)] == [("remembering", 0)]

        await eventually(is_drained, "nothing is left in the old cluster")


@asynccontextmanager
async def opened(
    folder: Path, home: dict[str, str], further: dict[str, str], names: str = "ab", *, room: Path | None = None
) -> AsyncIterator[World]:
    """`names`: of the home cluster's backends. `room`: the folder of the other one, where it is on another disk."""
    us = Backends(folder, ROLE, names=names, env=home)
    await run(us.__enter__)
    eu = Backends(room or folder, ROLE, names="cd", env=further, beside=us)
    gateways: list[PushqServer] = []
    try:
        await run(eu.__enter__)
        entry = {"name": "eu", "backends": [one.service for one in eu.all], "coordinator": eu.coordinator}
        env = {"PUSHQ_STORE__CLUSTER": "us", "PUSHQ_STORE__CLUSTERS": json.dumps([entry])}
        gateways.append(await run(lambda: gateway(us, folder / "g1", env=env)))
        gateways.append(await run(lambda: gateway(us, folder / "g2", like=gateways[0], env=env)))
        yield World(us, eu, gateways)
    finally:
        for one in gateways:
            one.kill()
        await run(lambda: eu.__exit__(None, None, None))
        await run(lambda: us.__exit__(None, None, None))


def leader_of(cluster: Backends) -> Backend:
    """Whoever leads its first shard, as far as somebody says so."""
    found = [one for one in cluster.all if any(shard.get("leads") for shard in one.health().get("shards", []))]
    return found[0] if found else cluster.all[0]


async def kill_backend(cluster: Backends) -> Callable[[], Any]:
    victim = leader_of(cluster)
    await run(victim.end, signal.SIGKILL)

    async def again() -> None:
        victim.begin()
        await run(victim.wait_ready)

    return again


KILLED = ["source", "target", "gateway"]


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("model", ["to leaders", "to hosts", "from hosts"])
async def test_a_queue_that_moves_loses_doubles_and_reorders_nothing(tmp_path: Path, model: str, killed: str) -> None:
    """Whoever of those who carry the move is killed in its midst."""
    home, further = {"to leaders": (PAIR, PAIR), "to hosts": (PAIR, HOSTS), "from hosts": (HOSTS, PAIR)}[model]
    async with opened(tmp_path, home, further) as world:
        one, other = world.gateways
        async with patient(one) as http, patient(other) as there:
            queue = await world.queue_of(http, "us")
            load = StubbornLoad([one.url, other.url], one.headers, queue)
            async with load.running():
                await load.more(MORE)
                await world.move(http, queue, "eu")
                if killed == "gateway":
                    await run(one.kill)
                    await run(one.start)
                else:
                    again = await kill_backend(world.us if killed == "source" else world.eu)
                    await again()
                await world.arrived(there)
                await load.more(MORE)
                await world.drained(there)
                await load.more(MORE)
            assert await load.broken() == []
            seqs = sorted(seq for _, seq in load.history.places.values())
            assert seqs[0] < 2**32 < seqs[-1], "some were confirmed before the move, and some after it"
            assert (await call(there, "GET", queue))["cluster"] == "eu"
