"""The writer thread: one batch at a time, answers on the loop, and no starvation beside a busy loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from backend_store.storage.engine import Batch, StorageFailed, StorageFull, Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import log_key, mark_key
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.writer import Writer, _Flight, prepare_interpreter

COMMIT_P99_SECONDS_MAX = 0.005
NOISY_COMMIT_P99_SECONDS_MAX = 0.25
QUIET_CORES_MAX = 0.1
OWN_SHARE_MIN = 0.5
ROUNDS_MAX = 5
ROUND_SECONDS = 0.6
ALONE_SECONDS = 0.1
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

    def _poke(self, flight: _Flight) -> None:
        self.pokes += 1
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


@dataclass(frozen=True)
class Round:
    """What one round measured."""

    idle_p99_seconds: float
    """How long commits take while the loop does nothing else: what the disk itself is like at this moment."""
    commit_p99_seconds: float
    own_share: float
    """The loop's share of its time, as a part of the share it has without commits."""
    others_cores: float
    """Cores that other processes kept busy meanwhile; the kernel lets a writer wait for them, GIL or not."""

    @property
    def is_good(self) -> bool:
        limit = COMMIT_P99_SECONDS_MAX if self.others_cores < QUIET_CORES_MAX else NOISY_COMMIT_P99_SECONDS_MAX
        return self.commit_p99_seconds <= limit + self.idle_p99_seconds and self.own_share >= OWN_SHARE_MIN


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("slice_us", [20, 100, 1000])
@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_a_saturated_loop_neither_starves_the_writer_nor_loses_its_time(
    tmp_path: Path, run: Callable[..., Round], slice_us: int
) -> None:
    rounds: list[Round] = []
    # A noisy machine spoils a round; starvation spoils all of them.
    while not rounds or not rounds[-1].is_good:
        assert len(rounds) < ROUNDS_MAX, rounds
        rounds.append(run(_saturated(tmp_path / str(len(rounds)), slice_us / 1e6)))


class Saturation:
    """Callbacks that follow each other without a pause, from the moment it is made."""

    def __init__(self, slice_seconds: float):
        self._slice = slice_seconds
        self._stopped = False
        self.restart()
        self._work()

    def _work(self) -> None:
        until = time.perf_counter() + self._slice
        while time.perf_counter() < until:
            pass
        self._worked += 1
        if not self._stopped:
            asyncio.get_running_loop().call_soon(self._work)

    def restart(self) -> None:
        self._worked, self._began = 0, time.perf_counter()

    def share(self) -> float:
        """How much of the time since the restart went into callbacks."""
        return self._worked * self._slice / (time.perf_counter() - self._began)

    def stop(self) -> None:
        self._stopped = True


async def _saturated(folder: Path, slice_seconds: float) -> Round:
    engine = open_engine(folder)
    writer = Writer(engine, asyncio.get_running_loop(), on_fatal=lambda error: None)
    idle_p99 = await _commit_p99(writer, ALONE_SECONDS)
    load = Saturation(slice_seconds)
    await asyncio.sleep(ALONE_SECONDS)
    alone = load.share()
    load.restart()
    others = _others_cpu_seconds()
    p99 = await _commit_p99(writer, ROUND_SECONDS)
    measured = Round(idle_p99, p99, load.share() / alone, (_others_cpu_seconds() - others) / ROUND_SECONDS)
    load.stop()
    await writer.close()
    engine.close()
    return measured


def _others_cpu_seconds() -> float:
    user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


async def _commit_p99(writer: Writer, seconds: float) -> float:
    """Commits one after another for so long."""
    took: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        submitted = time.perf_counter()
        writer.submit(_realistic_batch(len(took)), done.set_result)
        assert await done is None
        took.append(time.perf_counter() - submitted)
    return sorted(took)[int(len(took) * 0.99)]


def _realistic_batch(number: int) -> Batch:
    """A chunk, some marks, one state row, and a settled chunk that goes."""
    batch = Batch()
    batch.put(Table.LOG, log_key(1, number), bytes(30_000))
    for mark in range(3):
        batch.put(Table.MARKS, mark_key(1, 0, number * 3 + mark), bytes(40))
    batch.put(Table.META, b"state", bytes(60))
    if number >= 100:
        batch.delete(Table.LOG, log_key(1, number - 100))
    return batch
