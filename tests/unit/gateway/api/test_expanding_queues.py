"""Queues that grow and shrink by themselves, as their owner sees it: the clock is moved by hand, the rest is real."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend_store.client import Draft, Queue, Store, blocks_of
from backend_store.core.partitions.expansion import SHRINK_AFTER_MS
from backend_store.model import AutoExpand, QueueConfig
from gateway.api.queues import view
from tests.support.patience import eventually
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

LOOK_MS = 20


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.node.slots.rebalancer.EXPAND_CHECK_MS", LOOK_MS)


class Holder:
    """Takes messages and is told nothing."""

    gateway = ""

    def released(self, count: int) -> None: ...
    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None: ...
    def sendable(self) -> None: ...


async def made(store: Store, *, partitions: int = 1, **rule: Any) -> Queue:
    rule = {"of": "partition_messages", "limit": 10} | rule
    config = QueueConfig(partitions=partitions, auto_expand=AutoExpand(**rule))
    queue, _ = await store.create_queue("default", "orders", config)
    return queue


async def publish(queue: Queue, count: int) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    drafts = [Draft(0, b"1", {"key": f"k{number}"}) for number in range(count)]
    queue.publish(blocks_of(drafts).blocks, done.set_result)
    await done


async def settle(queue: Queue, count: int) -> None:
    holder = Holder()
    while count > 0:
        lease = queue.take(count, holder, 30_000)
        assert lease is not None
        count -= lease.bits.bit_count()
        queue.settle_lease(lease)
        await asyncio.sleep(0)


def partitions(queue: Queue) -> int:
    told: Any = view(queue).partitions
    return int(told.open) if not told.slots_moving else -1


async def looks(count: int = 5) -> None:
    """Long enough for some looks at the load."""
    await asyncio.sleep(count * LOOK_MS / 1000)


async def test_a_queue_grows_when_four_fifths_of_its_room_are_taken_and_not_before(store: Store) -> None:
    queue = await made(store)
    await publish(queue, 7)
    await looks()
    assert partitions(queue) == 1
    await publish(queue, 1)
    await eventually(lambda: partitions(queue) == 2)
    await publish(queue, 24)
    await eventually(lambda: partitions(queue) == 5)


async def test_it_gives_a_partition_up_when_it_held_little_for_a_minute(store: Store, clock: Clock) -> None:
    queue = await made(store)
    await publish(queue, 20)
    await eventually(lambda: partitions(queue) == 3)
    await settle(queue, 16)
    await looks()
    clock.ms += SHRINK_AFTER_MS - 1
    await looks()
    assert partitions(queue) == 3
    clock.ms += 1
    await eventually(lambda: partitions(queue) == 2)
    await looks()
    assert partitions(queue) == 2  # each step has its own minute
    clock.ms += SHRINK_AFTER_MS
    await looks()
    clock.ms += SHRINK_AFTER_MS
    await eventually(lambda: partitions(queue) == 1)
    assert queue.stats().ready == 4


async def test_a_pause_is_no_end(store: Store, clock: Clock) -> None:
    queue = await made(store)
    await publish(queue, 8)
    await eventually(lambda: partitions(queue) == 2)
    for _ in range(3):
        await settle(queue, queue.stats().ready)
        await looks()
        clock.ms += SHRINK_AFTER_MS - 1
        await publish(queue, 8)
        await looks()
        clock.ms += SHRINK_AFTER_MS - 1
    assert partitions(queue) == 2


async def test_it_keeps_within_its_bounds(store: Store, clock: Clock) -> None:
    queue = await made(store, partitions=2, max_partitions=3)
    await publish(queue, 500)
    await eventually(lambda: partitions(queue) == 3)
    await looks()
    assert partitions(queue) == 3
    await settle(queue, 500)
    for _ in range(4):
        await looks()
        clock.ms += SHRINK_AFTER_MS
    await eventually(lambda: partitions(queue) == 2)
    await looks()
    assert partitions(queue) == 2


async def test_without_the_rule_it_goes_back_to_what_its_config_says(store: Store) -> None:
    queue = await made(store)
    await publish(queue, 30)
    await eventually(lambda: partitions(queue) == 4)
    await store.update_queue("default", "orders", QueueConfig(partitions=2), version=1)
    await eventually(lambda: partitions(queue) == 2)
    assert queue.stats().ready == 30
