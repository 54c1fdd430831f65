"""What a start costs: reads for queues that wait for something, none for the many that do not."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.node.log.apply import replicas_in
from backend_store.storage.engine import Row, Table
from backend_store.storage.keys import timed_key
from backend_store.storage.memory import MemoryEngine
from tests.support.queues import draft
from tests.support.storage import commit
from tests.support.stores import made, opened, published


class Counting(MemoryEngine):
    """Counts how often it is asked for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = self.looks = 0

    def scan(self, *place: Any, **how: Any) -> list[Row]:
        self.scans += 1
        return super().scan(*place, **how)

    def first_at_or_above(self, *place: Any) -> Row | None:
        self.looks += 1
        return super().first_at_or_above(*place)


def test_who_has_rows_in_a_table_costs_a_read_for_each_of_them() -> None:
    engine = Counting()
    commit(engine, *((Table.DUE, timed_key(replica, at, 1), b"x") for replica in (3, 4, 900) for at in range(50)))
    assert replicas_in(engine, Table.DUE) == {3, 4, 900} and engine.looks == 4
    assert replicas_in(engine, Table.RETRY) == set()


@pytest.mark.anyio
async def test_a_start_asks_nothing_of_queues_that_wait_for_no_time() -> None:
    """Hundreds of queues with a message each; one of them has another one for later, one a message that expires."""
    engine = Counting()
    store = await opened(engine)
    for number in range(300):
        await published(await made(store, f"q{number}"), draft("1"))
    now_ms = store.node.steady_ms()
    await published(store.queue("default", "q7"), draft("later", due_ms=now_ms + 60_000))
    await published(store.queue("default", "q8"), draft("soon gone", expires_ms=now_ms + 60_000))
    await store.close()
    left = Counting()
    left.disk_id, left._rows, left._keys = engine.disk_id, engine._rows, engine._keys
    again = await opened(left)
    assert left.scans < 40 and left.looks < 40
    assert again.queue("default", "q7").stats().ready == 1
    await published(again.queue("default", "q9"), draft("2", expires_ms=now_ms + 1_000))
    partition = again.node.queues.of(again.queue("default", "q9").definition).first
    assert partition.next_wakeup_ms() is not None
    for name in ("q7", "q8"):
        assert again.node.queues.of(again.queue("default", name).definition).first.next_wakeup_ms() is not None
    await again.close()


@pytest.mark.anyio
async def test_queues_that_nothing_happens_to_take_little_memory() -> None:
    """Objects with less than 30 attributes share their names; equal configs are one object."""
    store = await opened(engine := Counting())
    for number in range(3):
        await published(await made(store, f"q{number}", max_attempts=3), draft("1"))
    await store.close()
    left = Counting()
    left.disk_id, left._rows, left._keys = engine.disk_id, engine._rows, engine._keys
    again = await opened(left)
    partitions = list(again.node.queues.partitions.values())
    assert len({id(partition.config) for partition in partitions}) == 1
    for partition in partitions:
        assert partition.main is not None
        assert max(len(vars(partition)), len(vars(partition.main)), len(vars(partition.main.core))) < 30
    await again.close()
