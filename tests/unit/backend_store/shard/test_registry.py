"""What a backend writes down at its coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_store.cluster.coordinator import get
from backend_store.core.replication.record import DiskId, Incarnation, NodeId, Version, change, first_record
from backend_store.model import Epoch
from backend_store.shard.interface import ShardLeader, ShardNumber
from backend_store.shard.keys import leader_key, life_key, record_key
from backend_store.shard.registry import encode, say_leader, submit
from tests.support.coordinators import open_folder, put

pytestmark = pytest.mark.anyio
A, B = NodeId("a"), NodeId("b")
SHARD = ShardNumber(0)
FIRST = Incarnation(1)


async def test_leader_that_says_late_that_it_serves_does_not_cover_the_next_one(tmp_path: Path) -> None:
    """A write that hung at the coordinator sent every gateway to the wrong backend until the next election."""
    embedded = open_folder(tmp_path)
    coordinator = embedded.coordinator
    session = await coordinator.open_session(5)
    record = first_record(SHARD, {A: DiskId("x"), B: DiskId("y")}, min_in_sync=1)
    await put(coordinator, record_key(SHARD), encode(record))
    for node in (A, B):
        await put(coordinator, life_key(node, FIRST), b"", session.id)
    led_by_a = ShardLeader(SHARD, A, FIRST, Epoch(1), "a:1")
    led_by_b = ShardLeader(SHARD, B, FIRST, Epoch(2), "b:1")
    assert await say_leader(coordinator, session, (A, FIRST), led_by_a, record.version)
    made = await submit(coordinator, SHARD, change(record, id="elects b"))
    assert made is not None and made.is_made
    assert await say_leader(coordinator, session, (B, FIRST), led_by_b, Version(1))
    assert not await say_leader(coordinator, session, (A, FIRST), led_by_a, record.version)
    found, _ = await get(coordinator, leader_key(SHARD))
    assert found is not None and found.value == encode(led_by_b)
    await session.close()
    await embedded.close()
