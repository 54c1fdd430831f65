"""The list of small series: page by page, and of named queues no more than a request takes."""

from __future__ import annotations

import pytest

from gateway.app import Application
from gateway.series.limits import SPARK_NAMES_MAX
from tests.unit.gateway.conftest import Person

pytestmark = pytest.mark.anyio

PATH = "/v1/series/queues"


async def test_a_request_names_so_many_queues_at_most(person: Person) -> None:
    names = ",".join(f"q{number}" for number in range(SPARK_NAMES_MAX))
    assert (await person.api("GET", f"{PATH}?names={names}"))["items"] == []
    status, code, detail = await person.refused("GET", f"{PATH}?names={names},more")
    assert (status, code) == (400, "invalid-request")
    assert detail == f"a request takes at most {SPARK_NAMES_MAX} names, not {SPARK_NAMES_MAX + 1}; split it"


async def test_named_queues_come_page_by_page(app: Application, person: Person) -> None:
    for name in ("a", "b", "c", "d"):
        await person.api("PUT", f"/v1/queues/{name}", {})
    await app.gateway.sampler.look()
    address, seen = f"{PATH}?names=d,c,a&limit=2", []
    while address:
        page = await person.client.get(address, headers=person.bearer)
        seen.append([item["queue"] for item in page.json()["items"]])
        address = page.links.get("next", {}).get("url", "")
    assert seen == [["a", "c"], ["d"]]
