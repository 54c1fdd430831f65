"""A gateway's numbers of queues elsewhere: it asks for what changed, and says which queues that were."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.pulses import Toucher
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.remote.home import Home
from tests.support.far_queues import PULSES_PER_ASK, FarQueues
from tests.support.stores import drained, made, opened, published

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})
QUEUES = 30
PAGES = QUEUES // PULSES_PER_ASK + 1


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FarQueues]:
    backend = await opened()
    names = [(await made(backend, f"q{number}")).name for number in range(QUEUES)]
    world = FarQueues(backend, monkeypatch)
    world.define(*names)
    yield world
    await world.close()


def uids(world: FarQueues, *names: str) -> set[int]:
    return {world.backend.here("default", name).uid for name in names}


async def test_what_changed_is_asked_for_with_one_request(world: FarQueues) -> None:
    """There are as many pages as there are hundreds of queues, and all of them were asked for every other second."""
    assert await world.refresh() == 1 + PAGES
    take = world.gateway.listen_pulses()
    assert await world.refresh() == 1 and take() == set()
    await published(world.backend.here("default", "q3"), MESSAGE, MESSAGE)
    assert await world.refresh() == 1 and take() == uids(world, "q3")
    assert world.ready("q3") == 2 and world.ready("q4") == 0
    for number in range(10):
        await published(world.backend.here("default", f"q{number}"), MESSAGE)
    assert await world.refresh() == 2 and len(take()) == 10
    await drained(world.backend.here("default", "q3"))
    await world.refresh()
    assert world.ready("q3") == 0


async def test_a_queue_that_has_gone_has_no_numbers(world: FarQueues) -> None:
    await world.refresh()
    definition = world.gateway.metadata.find("default", "q3")
    await world.backend.delete_queue("default", "q3")
    await world.refresh()
    assert world.gateway.last_pulse(definition) is None and world.ready("q4") == 0


async def test_a_backend_of_before_is_asked_for_all_of_them(world: FarQueues) -> None:
    world.is_old = True
    for _ in range(2):
        assert await world.refresh() == PAGES
    await published(world.backend.here("default", "q3"), MESSAGE)
    await world.refresh()
    assert world.ready("q3") == 1
    world.is_old = False
    await published(world.backend.here("default", "q3"), MESSAGE)
    await world.refresh()
    assert world.ready("q3") == 2 and await world.refresh() == 1


async def test_what_was_known_stays_while_nobody_leads(world: FarQueues) -> None:
    await world.refresh()
    world.is_away = True
    await published(world.backend.here("default", "q3"), MESSAGE)
    await world.refresh()
    assert world.ready("q3") == 0
    world.is_away = False
    world.backend = EmbeddedStore(world.backend.node)  # another leader
    await world.refresh()
    assert world.ready("q3") == 1


async def test_a_clock_that_is_known_better_moves_every_oldest_message(world: FarQueues) -> None:
    await published(world.backend.here("default", "q3"), MESSAGE)
    await world.refresh()
    definition = world.gateway.metadata.find("default", "q3")
    before = world.gateway.last_pulse(definition)
    first, world.gateway.first = world.gateway.first, Home.__new__(Home)
    world.gateway.first.skew_ms = first.skew_ms - 40
    await world.refresh()
    after = world.gateway.last_pulse(definition)
    assert before is not None and after is not None
    assert after.oldest_since_ms == before.oldest_since_ms - 40
    world.gateway.first = first


async def test_a_look_at_what_happened_is_one_at_nothing_else(world: FarQueues) -> None:
    await world.refresh()
    toucher = Toucher(world.gateway)
    assert toucher.take() is None, "the first time all of them are looked at"
    touches = toucher.take()
    assert touches is not None and not touches.uids and not touches.defined
    world.gateway.here("default", "q5").consumers += 1
    await published(world.backend.here("default", "q6"), MESSAGE)
    await world.refresh()
    touches = toucher.take()
    assert touches is not None and touches.uids == uids(world, "q5", "q6") and not touches.defined
    await made(world.backend, "new")
    world.define("new", gone=("q7",))
    touches = toucher.take()
    assert touches is not None and touches.defined.keys() == {("default", "new"), ("default", "q7")}
    assert touches.defined["default", "q7"] is None
