"""A duty of gateways: one has it for as long as it asks, then the next one, and what the first writes is refused."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.metadata.documents import Document, Documents, Duty
from backend_store.metadata.duties import Duties, decided
from backend_store.model import Conflict
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio

HOLD_MS = 10_000


class World:
    """A store whose commits can be held up, and its clock."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.now_ms = 1
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.commits = 0
        self.restart()

    def restart(self) -> None:
        self.documents = Documents(self.engine, self._write)
        self.duties = Duties(self.documents, lambda: self.now_ms)

    async def _write(self, batch: Batch) -> None:
        await self.goes_on.wait()
        self.engine.commit(batch, lambda: None)
        self.commits += 1

    async def ask(self, gateway: str, hold_ms: int = HOLD_MS) -> str:
        return (await self.duties.take("alerts", gateway, hold_ms)).holder


def test_it_is_the_first_askers_until_that_is_over() -> None:
    first = decided(None, "alerts", "a", is_over=True)
    assert first == Duty("alerts", "a", 1)
    assert decided(first, "alerts", "b", is_over=False) == first
    assert decided(first, "alerts", "a", is_over=True) == first
    assert decided(first, "alerts", "b", is_over=True) == Duty("alerts", "b", 2)


async def test_who_goes_on_asking_keeps_it_and_costs_no_disk() -> None:
    world = World()
    for _ in range(100):
        assert await world.ask("a") == "a"
        world.now_ms += HOLD_MS // 4
        assert await world.ask("b") == "a"
    assert world.commits == 1


async def test_who_is_silent_loses_it_to_the_next_one_that_asks() -> None:
    world = World()
    await world.ask("a")
    world.now_ms += HOLD_MS
    assert await world.ask("b") == "b" and await world.ask("a") == "b"


async def test_who_leaves_is_not_waited_for() -> None:
    world = World()
    await world.ask("a")
    await world.duties.take("alerts", "a", 0)
    assert await world.ask("b") == "b"


async def test_after_a_restart_the_last_holders_time_begins_anew() -> None:
    world = World()
    await world.ask("a")
    world.now_ms += 10 * HOLD_MS
    world.restart()
    assert await world.ask("b") == "a", "nobody knows when it asked last"
    world.now_ms += HOLD_MS
    assert await world.ask("b") == "b"


async def test_after_a_restart_the_last_holder_has_as_long_as_it_was_promised() -> None:
    """Its looks are long, those of the one that asks now are not."""
    world = World()
    await world.ask("a")
    for _ in range(10):
        await world.ask("a", 3 * HOLD_MS)
    assert world.commits == 2, "who goes on asking costs no disk"
    world.restart()
    await world.ask("b")
    world.now_ms += 3 * HOLD_MS - 1
    assert await world.ask("b") == "a"
    world.now_ms += 3 * HOLD_MS
    assert await world.ask("b") == "b"
    world.restart()
    await world.ask("c")
    world.now_ms += HOLD_MS
    assert await world.ask("c") == "c", "of the one before nothing counts"


async def test_one_long_time_is_not_promised_for_ever() -> None:
    """A holder that stood still once and then dies with the leader is not waited for as if it did that always."""
    world = World()
    await world.ask("a")
    await world.ask("a", 18 * HOLD_MS)
    for _ in range(10):
        await world.ask("a")
    assert world.commits == 3
    world.restart()
    await world.ask("b")
    world.now_ms += 2 * HOLD_MS
    assert await world.ask("b") == "b"


async def test_what_is_bound_to_a_duty_is_refused_from_the_moment_that_another_one_gets_it() -> None:
    """While the row of the new holder is on its way, too: what the old one writes then would come behind it."""
    world = World()
    old = await world.duties.take("alerts", "a", HOLD_MS)
    world.duties.check(old)
    world.now_ms += HOLD_MS
    world.goes_on.clear()
    taking = asyncio.create_task(world.ask("b"))
    await asyncio.sleep(0.01)
    with pytest.raises(Conflict, match="b has it"):
        world.duties.check(old)
    world.goes_on.set()
    assert await taking == "b"
    with pytest.raises(Conflict):
        world.duties.check(old)
    with pytest.raises(Conflict):
        world.duties.check(old._replace(holder="b"))


async def test_of_two_that_ask_at_once_one_gets_it() -> None:
    world = World()
    assert len(set(await asyncio.gather(*(world.ask(gateway) for gateway in "abcdef")))) == 1
    assert world.documents.rows().keys() == {("duty", "alerts"), ("duty-hold", "alerts")}
    assert isinstance(world.documents.rows()["duty", "alerts"], Document)
