"""The embedded coordinator on a disk that fails, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from backend_store.cluster import embedded as driver
from backend_store.cluster.coordinator import Coordinator, SessionLost
from backend_store.cluster.core.values import Put, Revision, Transaction
from backend_store.cluster.embedded import RECORDS, EmbeddedCoordinator
from backend_store.model import OutcomeUnknown, StorageFull, Unavailable
from backend_store.storage.engine import Batch, StorageCorrupt, Table
from backend_store.storage.memory import MemoryEngine
from tests.support.coordinators import find, put
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


@dataclass
class World:
    engine: MemoryEngine = field(default_factory=MemoryEngine)
    now: float = 100.0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    opened: list[EmbeddedCoordinator] = field(default_factory=list)

    async def write(self, rows: Batch) -> None:
        await self.gate.wait()
        self.engine.commit(rows, lambda: None)

    def open(self) -> EmbeddedCoordinator:
        self.gate.set()
        self.opened.append(EmbeddedCoordinator(self.engine, self.write, clock=lambda: self.now))
        return self.opened[-1]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    for coordinator in world.opened:
        await coordinator.close()


async def test_a_full_disk_refuses_a_write_and_takes_the_next(world: World) -> None:
    coordinator = world.open()
    at = await put(coordinator, b"k", b"before")
    world.engine.full = True
    with pytest.raises(StorageFull, match="nothing was written"):
        await put(coordinator, b"k", b"refused")
    record = await find(coordinator, b"k")
    assert record is not None and (record.value, record.changed_at) == (b"before", at)
    world.engine.full = False
    assert await put(coordinator, b"k", b"after") == at + 1


@pytest.mark.parametrize("kept", [False, True])
async def test_after_a_failed_commit_the_outcome_is_unknown_and_nothing_more_is_taken(world: World, kept: bool) -> None:
    coordinator = world.open()
    await put(coordinator, b"k", b"before")
    world.engine.fail_next_commit(kept=kept)
    with pytest.raises(OutcomeUnknown):
        await put(coordinator, b"k", b"perhaps")
    with pytest.raises(Unavailable, match="the coordinator stopped"):
        await put(coordinator, b"k", b"no")
    with pytest.raises(Unavailable):
        await coordinator.read(b"")

    # Whoever starts anew finds out which it was.
    world.engine = world.engine.crash()
    record = await find(world.open(), b"k")
    assert record is not None and record.value == (b"perhaps" if kept else b"before")


async def test_a_write_is_seen_when_it_is_durable_and_not_before(world: World) -> None:
    coordinator = world.open()
    world.gate.clear()
    writing = asyncio.ensure_future(put(coordinator, b"k"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not writing.done() and await find(coordinator, b"k") is None
    world.gate.set()
    await writing
    assert await find(coordinator, b"k") is not None


async def test_a_caller_that_goes_away_takes_nothing_back(world: World) -> None:
    coordinator = world.open()
    world.gate.clear()
    writing = asyncio.ensure_future(put(coordinator, b"k"))
    for _ in range(10):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    world.gate.set()

    async def is_there() -> bool:
        return await find(coordinator, b"k") is not None

    await eventually(is_there)
    assert await put(coordinator, b"l") == Revision(3)


async def test_a_write_that_is_under_way_when_it_is_closed_is_answered(world: World) -> None:
    coordinator = world.open()
    world.gate.clear()
    writing, waiting = (asyncio.ensure_future(put(coordinator, key)) for key in (b"k", b"l"))
    for _ in range(10):
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(coordinator.close())
    for _ in range(10):
        await asyncio.sleep(0)
    world.gate.set()
    assert await asyncio.wait_for(writing, 10) == Revision(2)
    with pytest.raises(Unavailable, match="is closed"):
        await asyncio.wait_for(waiting, 10)
    await closing


async def test_more_writes_than_may_wait_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "EMBEDDED_COMMANDS_MAX", 3)
    coordinator = world.open()
    world.gate.clear()
    writes = [asyncio.ensure_future(put(coordinator, b"k%d" % number)) for number in range(8)]
    for _ in range(10):
        await asyncio.sleep(0)
    world.gate.set()
    ended = await asyncio.gather(*writes, return_exceptions=True)
    refused = [error for error in ended if isinstance(error, Unavailable)]
    assert len(refused) + len((await coordinator.read(b"")).records) == 8 and 4 <= len(refused) <= 5


async def test_sessions_of_the_last_process_have_their_whole_time_again(world: World) -> None:
    first = world.open()
    session = await first.open_session(10, is_alive=lambda: False)
    await put(first, b"k", b"", session.id)
    world.now += 9
    world.engine = world.engine.crash()
    second = world.open()
    world.now += 9
    await put(second, b"l", b"", session.id)
    world.now += 1

    async def has_expired() -> bool:
        return not (await second.read(b"")).records

    await eventually(has_expired)
    with pytest.raises(SessionLost):
        await put(second, b"k", b"", session.id)


async def test_an_expired_session_is_over_on_a_full_disk_too(world: World) -> None:
    coordinator = world.open()
    session = await coordinator.open_session(10, is_alive=lambda: False)
    await put(coordinator, b"k", b"", session.id)
    world.engine.full = True
    world.now += 10
    with pytest.raises(SessionLost):
        await put(coordinator, b"l", b"", session.id)
    assert "no keep-alive" in await session.wait_lost()
    world.engine.full = False

    async def is_gone() -> bool:
        return await find(coordinator, b"k") is None

    await eventually(is_gone)


async def test_a_keep_alive_that_comes_too_late_renews_nothing(world: World) -> None:
    coordinator = world.open()
    session = await coordinator.open_session(10, is_alive=lambda: False)
    world.now += 9.9
    assert await coordinator._keep(session.id)
    world.now += 10
    assert not await coordinator._keep(session.id), "its records may be gone before anybody is told"


async def test_sessions_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "EMBEDDED_SESSIONS_MAX", 1)
    coordinator = world.open()
    session = await coordinator.open_session(10)
    with pytest.raises(StorageFull, match="1 sessions are open"):
        await coordinator.open_session(10)
    await session.close()
    await (await coordinator.open_session(10)).close()


async def test_watches_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "WATCHES_MAX", 0)
    with pytest.raises(Unavailable, match="0 watches are open"):
        await anext(world.open().watch(b"", after=Revision(1)))


async def test_a_damaged_row_is_not_taken_for_a_record(world: World) -> None:
    await put(world.open(), b"k", b"value")
    key = RECORDS + b"k"
    row = world.engine.get(Table.META, key)
    assert row is not None
    batch = Batch()
    batch.put(Table.META, key, bytes([row[0] ^ 1]) + row[1:])
    world.engine.commit(batch, lambda: None)
    with pytest.raises(StorageCorrupt):
        world.open()


async def test_every_write_is_one_commit(world: World) -> None:
    coordinator: Coordinator = world.open()
    before = world.engine.commits
    await coordinator.transact(Transaction(then=tuple(Put(b"%d" % number, b"") for number in range(100))))
    assert world.engine.commits == before + 1
