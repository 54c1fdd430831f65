"""The clocks: the one that leases go by, and the one by which a log is written."""

from __future__ import annotations

import asyncio
import time

import pytest

from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks, plain_blocks
from backend_store.model import Offset, Original, Published, PushqError, QueueConfig, Stamp
from backend_store.node.node import Node, steady_clock
from backend_store.storage.memory import MemoryEngine
from tests.support.asleep import Asleep
from tests.support.patience import eventually
from tests.support.queues import draft, drained, publish, queue, time_passes
from tests.support.stores import made, opened, published
from tests.support.world import Consumer, World

HOURS_MS = 5 * 3_600_000


def started_earlier(world: World) -> None:
    """The process ends, the wall clock is set back by hours, another process begins."""
    world.settle_down()
    world.now_ms -= HOURS_MS
    world.crash()


def stored_at(world: World) -> list[int]:
    """When each chunk of the log was stored."""
    times, chunk = [], world.partition.read(0)
    while chunk is not None:
        times.append(chunk.time_ms)
        chunk = world.partition.read(chunk.base + 1)
    return times


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_moves_no_lease(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    steady_ms = steady_clock()
    before = steady_ms()
    said = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: said + hours * 3_600_000_000_000)
    assert 0 <= steady_ms() - before < 60_000


def test_it_begins_with_the_time_of_day() -> None:
    assert abs(steady_clock()() - time.time_ns() // 1_000_000) < 1_000


@pytest.mark.anyio
@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_clock_that_is_set_moves_no_log(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    node = Node(MemoryEngine(), directory=None)
    await node.start()
    definition, _ = await node.metadata.create_queue("default", "q", QueueConfig(), 0)
    partition = node.queues.of(definition).first
    times = []
    for _ in range(2):
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        partition.publish(plain_blocks(KIND_JSON, [b"1"]), done.set_result)
        await done
        times.append(partition.state.time_ms)
        said = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda said=said: said + hours * 3_600_000_000_000)
        await asyncio.sleep(0.002)
    await node.close()
    assert 0 < times[1] - times[0] < 60_000


def test_after_a_start_with_an_earlier_clock_the_log_goes_on_from_where_it_stood() -> None:
    world = queue()
    world.stored(b"1")
    started_earlier(world)
    world.stored(b"2")
    world.pass_time(1_000)
    world.stored(b"3")
    started_earlier(world)
    world.pass_time(1_000)
    world.stored(b"4")
    first, second, third, fourth = stored_at(world)
    assert first <= second and third - second == 1_000 and fourth - third == 1_000


def test_a_start_with_a_later_clock_is_believed() -> None:
    world = queue()
    world.stored(b"1")
    world.now_ms += HOURS_MS
    world.crash()
    world.stored(b"2")
    assert stored_at(world)[1] == world.now_ms


def test_an_id_is_known_for_its_window_whatever_the_clock_said_at_the_start() -> None:
    world = queue(dedupe="id", dedupe_window_ms=1_000)
    publish(world, draft("a", id="x"))
    started_earlier(world)
    world.pass_time(900)
    assert publish(world, draft("again", id="x")) == [Original(Offset(0))]
    world.pass_time(200)
    assert publish(world, draft("anew", id="x")) == [1]
    assert drained(world) == ["a", "anew"]


def test_a_gap_in_numbers_is_waited_for_as_long_as_ever_after_a_start_with_an_earlier_clock() -> None:
    world = queue(sequencing="producer", sort_window_ms=300)
    publish(world, draft("1", stamp=Stamp(0, "p", 1)))
    started_earlier(world)
    publish(world, draft("3", stamp=Stamp(0, "p", 3)))
    assert drained(world) == ["1"]
    time_passes(world, 200)
    assert drained(world) == []
    time_passes(world, 100)
    assert drained(world) == ["3"]


def test_what_is_sorted_by_its_arrival_waits_for_its_window_after_a_start_with_an_earlier_clock() -> None:
    world = queue(sequencing="clock", sort_window_ms=300)
    publish(world, draft("a"))
    time_passes(world, 100)
    started_earlier(world)
    publish(world, draft("b"))
    wakeup_ms = world.partition.next_wakeup_ms()
    assert wakeup_ms is not None and wakeup_ms - world.now_ms <= 300
    time_passes(world, 300)
    assert drained(world) == ["a", "b"]


def test_the_time_in_which_the_machine_slept_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, steady_ms = Asleep(monkeypatch), steady_clock()
    before = steady_ms()
    machine.sleep_s(600)
    assert 600_000 <= steady_ms() - before < 660_000


@pytest.mark.anyio
async def test_what_came_due_while_the_machine_slept_is_ready_soon_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers stand still with the machine: it came as late as that had slept, and all after it until the next start."""
    monkeypatch.setattr("backend_store.node.node.CLOCK_LOOK_SECONDS", 0.01)
    machine, node = Asleep(monkeypatch), Node(MemoryEngine(), directory=None)
    await node.start()
    definition, _ = await node.metadata.create_queue("default", "q", QueueConfig(), 0)
    partition = node.queues.of(definition).first
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    blocks = column_blocks(Columns(KIND_JSON, [b"1"], dues=[node.steady_ms() + 300_000])).blocks
    partition.publish(list(blocks), done.set_result)
    await done
    view = partition.main
    assert view is not None and not view.has_ready
    machine.sleep_s(600)
    await eventually(lambda: view.has_ready)
    await node.close()


@pytest.mark.anyio
@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
async def test_a_lease_lasts_as_long_as_it_had_left_after_a_clean_start_with_an_earlier_clock(
    monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    """Of a machine without a battery it lasted for fifty years."""
    engine = MemoryEngine()
    store = await opened(engine)
    queue = await made(store, "q", ordering=ordering)
    await published(queue, draft("1"))
    assert queue.take(1, Consumer(), 30_000) is not None
    await store.close()
    left = MemoryEngine()
    left.disk_id, left._rows, left._keys = engine.disk_id, engine._rows, engine._keys
    said = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: said() - HOURS_MS * 1_000_000)
    again = await opened(left)
    view = again.node.queues.of(again.queue("default", "q").definition).first.main
    assert view is not None
    [lease] = view.core.leases.values()
    assert 0 < lease.deadline_ms - again.steady_ms() <= 30_000
    await again.close()
