"""The writer thread: one batch at a time, answers on the loop, and no starvation beside a busy loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import uvloop

from backend_store.storage import writer as writers
from backend_store.storage.engine import Batch, StorageFailed, StorageFull, Table
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.writer import Writer, _Flight, prepare_interpreter

ROUNDS_MAX = 5
COMMITS = 20
POKES = 3
DISK_SECONDS_MAX = 30


class World:
    """A writer over a memory engine, inside a running loop."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.fatal: list[BaseException] = []
        self.writer = Writer(self.engine, asyncio.get_running_loop(), on_fatal=self.fatal.append)

    def submit(self, key: bytes = b"k", value: bytes = b"v") -> asyncio.Future[BaseException | None]:
        batch = Batch()
        batch.put(Table.LOG, key, value)
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.writer.submit(batch, done.set_result)
        return done


@pytest.mark.anyio
async def test_done_runs_on_the_loop_after_the_commit() -> None:
    world = World()
    ran: list[tuple[threading.Thread, bytes | None]] = []
    batch, seen = Batch(), asyncio.Event()
    batch.put(Table.LOG, b"k", b"v")

    def done(error: BaseException | None) -> None:
        assert error is None
        ran.append((threading.current_thread(), world.engine.get(Table.LOG, b"k")))
        seen.set()

    world.writer.submit(batch, done)
    assert (world.writer.busy, ran) == (True, [])
    await seen.wait()
    assert (world.writer.busy, ran) == (False, [(threading.current_thread(), b"v")])
    await world.writer.close()


@pytest.mark.anyio
async def test_done_may_submit_the_next_batch() -> None:
    world = World()
    finished = asyncio.Event()

    def next_one(number: int) -> Callable[[BaseException | None], None]:
        def done(error: BaseException | None) -> None:
            assert error is None
            if number == 20:
                finished.set()
                return
            batch = Batch()
            batch.put(Table.LOG, b"k", b"%d" % number)
            world.writer.submit(batch, next_one(number + 1))

        return done

    next_one(0)(None)
    await finished.wait()
    assert world.engine.get(Table.LOG, b"k") == b"19"
    await world.writer.close()


@pytest.mark.anyio
async def test_a_second_batch_in_flight_is_our_own_bug() -> None:
    world = World()
    done = world.submit()
    with pytest.raises(AssertionError, match="one batch in flight"):
        world.submit()
    await done
    await world.writer.close()


@pytest.mark.anyio
async def test_a_full_store_is_told_and_is_not_fatal() -> None:
    world = World()
    world.engine.full = True
    assert isinstance(await world.submit(), StorageFull)
    world.engine.full = False
    assert await world.submit() is None
    assert world.fatal == []
    await world.writer.close()


@pytest.mark.anyio
@pytest.mark.parametrize("kept", [False, True])
async def test_a_failed_commit_is_told_to_the_batch_then_to_the_node_and_ends_commits(kept: bool) -> None:
    world = World()
    world.engine.fail_next_commit(kept=kept)
    order: list[str] = []
    told = asyncio.Event()
    batch = Batch()
    batch.put(Table.LOG, b"k", b"v")

    def on_fatal(error: BaseException) -> None:
        order.append(f"node: {error}")
        told.set()

    world.writer._on_fatal = on_fatal
    world.writer.submit(batch, lambda error: order.append(f"batch: {error}"))
    await told.wait()
    assert order == ["batch: the disk failed, as the test asked", "node: the disk failed, as the test asked"]
    assert (world.engine.get(Table.LOG, b"k") is not None) == kept
    with pytest.raises(StorageFailed, match="no commits after a failed one"):
        world.submit()
    await world.writer.close()


@pytest.mark.anyio
async def test_the_node_hears_of_a_failure_even_when_done_raises() -> None:
    world = World()
    heard = asyncio.Event()
    world.engine.fail_next_commit()
    world.writer._on_fatal = lambda error: heard.set()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    def done(error: BaseException | None) -> None:
        raise ValueError("a bug in the node")

    world.writer.submit(Batch(), done)
    await heard.wait()
    await world.writer.close()


@pytest.mark.anyio
async def test_close_waits_for_the_batch_in_flight_and_refuses_more() -> None:
    world = World()
    gate = threading.Event()

    def wait_for_gate() -> None:
        gate.wait(10)

    world.engine.before_sync = wait_for_gate
    done = world.submit()
    closing = asyncio.create_task(world.writer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    gate.set()
    await closing
    assert await done is None
    assert world.engine.commits == 1
    assert not world.writer._thread.is_alive()
    await world.writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        world.submit()


@pytest.mark.anyio
async def test_a_slow_disk_does_not_hold_the_loop() -> None:
    world = World()
    disk = threading.Event()
    world.engine.before_sync = lambda: disk.wait(DISK_SECONDS_MAX)
    done = world.submit()
    # The disk ends when the loop says so; a loop that it held could not say so, and the batch would have waited it out.
    began = time.perf_counter()
    for _ in range(20):
        await asyncio.sleep(0.001)
        assert not done.done()
    disk.set()
    assert await done is None
    assert time.perf_counter() - began < DISK_SECONDS_MAX
    await world.writer.close()


@pytest.mark.anyio
async def test_commit_seconds_count_every_commit() -> None:
    world = World()
    world.engine.before_sync = lambda: time.sleep(0.003)
    for _ in range(3):
        await world.submit()
    stats = world.writer.commit_seconds
    assert stats.count == sum(stats.buckets) == 3
    assert 0.003 <= stats.last <= stats.sum
    assert sum(stats.buckets[:3]) == 0
    await world.writer.close()


class CountingWriter(Writer):
    pokes = 0
    on_poke: Callable[[], None] = staticmethod(lambda: None)

    def _poke(self, flight: _Flight) -> None:
        self.pokes += 1
        self.on_poke()
        super()._poke(flight)


@pytest.fixture
def prepared() -> Iterator[None]:
    before = sys.getswitchinterval()
    prepare_interpreter()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("prepared")
def test_an_idle_loop_is_left_alone() -> None:
    async def run() -> int:
        engine = MemoryEngine()
        writer = CountingWriter(engine, asyncio.get_running_loop(), on_fatal=lambda error: None)
        for _ in range(200):
            done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            writer.submit(Batch(), done.set_result)
            await done
        await writer.close()
        return writer.pokes

    # A commit without a disk is over long before a poke is due; a busy machine may stretch a few.
    assert min(uvloop.run(run()) for _ in range(ROUNDS_MAX)) <= 10


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("slice_us", [20, 100, 1000])
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_a_saturated_loop_neither_starves_the_writer_nor_loses_its_time(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., None], slice_us: int
) -> None:
    # A commit that the loop did not wait for, or did not poke, would hang here for as long.
    monkeypatch.setattr(writers, "STAGED_WAIT_SECONDS_MAX", DISK_SECONDS_MAX)
    run(_saturated(slice_us / 1e6))


class Saturation:
    """Callbacks that follow each other without a pause, from the moment it is made."""

    def __init__(self, slice_seconds: float):
        self._slice = slice_seconds
        self._stopped = False
        self.worked = 0
        self._work()

    def _work(self) -> None:
        until = time.perf_counter() + self._slice
        while time.perf_counter() < until:
            pass
        self.worked += 1
        if not self._stopped:
            asyncio.get_running_loop().call_soon(self._work)

    def stop(self) -> None:
        self._stopped = True


class StagingEngine(MemoryEngine):
    is_staged = False

    def commit(self, batch: Batch, staged: Callable[[], None]) -> None:
        def now() -> None:
            self.is_staged = True
            staged()

        super().commit(batch, now)


async def _saturated(slice_seconds: float) -> None:
    """Counts turns of the loop and of the writer: a figure of time would be one of the machine."""
    engine, poked = StagingEngine(), threading.Event()
    writer = CountingWriter(engine, asyncio.get_running_loop(), on_fatal=lambda error: None)
    engine.before_sync = lambda: _assert_set(poked)
    load = Saturation(slice_seconds)
    for _ in range(COMMITS):
        worked: list[int] = []

        def count(worked: list[int] = worked) -> None:
            worked.append(load.worked)
            if len(worked) == POKES:
                poked.set()

        writer.on_poke, engine.is_staged = count, False
        poked.clear()
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        writer.submit(Batch(), done.set_result)
        assert engine.is_staged, "the loop waits until the rows are staged"
        assert await done is None
        assert all(before < after for before, after in pairwise(worked)), "the loop goes on between two pokes"
    load.stop()
    await writer.close()


def _assert_set(poked: threading.Event) -> None:
    assert poked.wait(DISK_SECONDS_MAX), "a loop that is busy sleeps for the writer, again and again"
