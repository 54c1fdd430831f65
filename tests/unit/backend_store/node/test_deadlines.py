"""A publish has a time. Over before it is begun: nothing is accepted, and that is said. Over after that: who knows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore
from backend_store.core.log.chunk import KIND_JSON, plain_blocks
from backend_store.model import OutcomeUnknown, Overloaded, Published, QueueFull
from backend_store.storage.memory import MemoryEngine
from tests.support import partitioned
from tests.support.node_world import NodeWorld
from tests.support.patience import eventually
from tests.support.stores import made, opened

pytestmark = pytest.mark.anyio

BODY = plain_blocks(KIND_JSON, [b"1"], None)


class Disk(MemoryEngine):
    """Commits when the test lets it: a disk that stands still under a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = threading.Event()
        self.may_commit.set()

    def commit(self, *args: Any, **options: Any) -> Any:
        self.may_commit.wait(10)
        return super().commit(*args, **options)


@pytest.fixture
async def disk() -> Disk:
    return Disk()


@pytest.fixture
async def store(disk: Disk) -> AsyncIterator[EmbeddedStore]:
    store = await opened(disk)
    yield store
    disk.may_commit.set()
    await store.close()


@pytest.fixture(params=[1, 3])
async def queue(request: pytest.FixtureRequest, store: EmbeddedStore) -> EmbeddedQueue:
    return await made(store, "q", partitions=request.param)


def ask(store: EmbeddedStore, queue: EmbeddedQueue, ms: int) -> list[Any]:
    told: list[Any] = []
    queue.publish(BODY, told.append, until_ms=store.steady_ms() + ms)
    return told


async def test_a_publish_whose_time_is_over_before_it_is_begun_is_dropped(
    store: EmbeddedStore, disk: Disk, queue: EmbeddedQueue
) -> None:
    disk.may_commit.clear()
    patient = ask(store, queue, 60_000)
    await asyncio.sleep(0.02)  # the disk has it
    hasty = [ask(store, queue, 50) for _ in range(8)]
    await eventually(lambda: all(hasty))
    for told in hasty:
        assert isinstance(told[0], Overloaded | OutcomeUnknown)
    assert any(isinstance(told[0], Overloaded) for told in hasty) and not patient
    refused = sum(isinstance(told[0], Overloaded) for told in hasty)
    assert "nothing was accepted" in next(t[0].detail for t in hasty if isinstance(t[0], Overloaded))
    disk.may_commit.set()
    await eventually(lambda: bool(patient))
    later = ask(store, queue, 60_000)
    await eventually(lambda: bool(later))
    assert isinstance(patient[0], Published)
    assert queue.stats().published_total == 2 + len(hasty) - refused, "what was said to be refused was not stored"
    assert all(len(told) == 1 for told in (*hasty, patient)), "each is answered once"


async def test_a_publish_whose_time_is_over_on_the_way_to_the_disk_has_an_open_outcome(
    store: EmbeddedStore, disk: Disk, queue: EmbeddedQueue
) -> None:
    disk.may_commit.clear()
    told = ask(store, queue, 50)
    await eventually(lambda: bool(told))
    assert isinstance(told[0], OutcomeUnknown)
    disk.may_commit.set()
    await eventually(lambda: queue.stats().published_total == 1)
    assert len(told) == 1, "it was stored, and who asked is not told twice"


async def test_a_publish_in_time_is_answered_as_ever(store: EmbeddedStore, queue: EmbeddedQueue) -> None:
    answers = [ask(store, queue, 60_000) for _ in range(100)]
    await eventually(lambda: all(answers))
    assert all(isinstance(told[0], Published) for told in answers)


async def test_without_a_time_a_publish_waits_as_long_as_it_takes(
    store: EmbeddedStore, disk: Disk, queue: EmbeddedQueue
) -> None:
    disk.may_commit.clear()
    told: list[Any] = []
    queue.publish(BODY, told.append)
    await asyncio.sleep(0.1)
    assert not told
    disk.may_commit.set()
    await eventually(lambda: bool(told))
    assert isinstance(told[0], Published)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def begun(world: NodeWorld, queue: EmbeddedQueue, *, ms: int | None = None) -> list[Any]:
    told: list[Any] = []
    until_ms = world.now_ms + ms if ms is not None else 0
    world.tell(lambda: queue.publish(BODY, lambda result: told.append(result), until_ms=until_ms))
    return told


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_publish_whose_time_is_over_as_a_commit_begins_does_not_wait_for_that_commit(
    world: NodeWorld, partitions: int
) -> None:
    made = partitioned.queue(world, partitions=partitions)
    world.hold()
    told = begun(world, made, ms=0)
    world.settle()
    assert world.writer.is_held and isinstance(told[0], Overloaded)
    world.let_go()
    assert len(told) == 1 and made.stats().published_total == 0


def test_a_publish_that_is_refused_hears_so_at_its_time_however_long_the_disk_takes(world: NodeWorld) -> None:
    made = partitioned.queue(world, max_messages=1)
    world.hold()
    taken: list[Any] = []
    refused: list[Any] = []

    def publish() -> None:
        made.publish(BODY, taken.append)
        made.publish(BODY, refused.append, until_ms=world.now_ms + 50)

    world.tell(publish)
    world.pass_time(49)
    assert not refused, "it is told with the commit by which the queue is full"
    world.pass_time(1)
    assert isinstance(refused[0], QueueFull) and not taken
    world.let_go()
    assert isinstance(taken[0], Published) and len(refused) == 1


def test_thousands_that_wait_for_a_disk_that_stands_still_are_told_so_at_no_great_cost(world: NodeWorld) -> None:
    """With a look at all for each whose time is over the node had time for nothing else."""
    made = partitioned.queue(world)
    world.hold()
    told: list[Any] = []

    def publish() -> None:
        for number in range(1_250):
            made.publish(BODY, lambda result: told.append(result), until_ms=world.now_ms + 100 + number * 7 % 1_250)

    for _ in range(2):  # under way, and behind that
        world.tell(publish)
        world.settle()
    world.pass_time(99)
    assert not told
    before = world.node.ticks
    world.pass_time(11)
    assert {type(result) for result in told} == {Overloaded, OutcomeUnknown} and len(told) >= 20
    world.pass_time(1_245)
    assert len(told) == 2_500 and world.node.ticks - before < 600
    patient = begun(world, made)
    world.let_go()
    assert isinstance(patient[0], Published) and made.stats().published_total == 1_251
