"""Places in a stream's log: by offset, by time, and how many messages lie before one."""

from __future__ import annotations

import pytest

from backend_store.model import Offset
from backend_store.node.garbage_collector import ranges
from backend_store.node.limits import COUNTED_CHUNKS
from backend_store.node.log.seek import messages_behind, offset_at_time, read_at
from backend_store.storage.engine import Batch, Table
from tests.support.streams import StreamWorld
from tests.support.world import REPLICA, queue_of, receipts_by_seq


def timed(world: StreamWorld, chunks: int = 20, each_ms: int = 100) -> list[tuple[int, int]]:
    """Publishes chunks at rising times: (time, seq of the first message)."""
    found = []
    for number in range(chunks):
        world.now_ms += each_ms
        found.append((world.now_ms, world.stored(*[b"x"] * (1 + number % 5)).base))
    return found


def test_a_chunk_is_found_by_any_offset_of_it() -> None:
    world = StreamWorld()
    bases = [base for _, base in timed(world)]
    for offset in range(world.partition.state.end):
        chunk = read_at(world.partition, offset)
        assert chunk is not None and chunk.base == max(base for base in bases if base <= offset)
    assert read_at(world.partition, world.partition.state.end) is None


def test_an_offset_at_the_end_leads_nowhere_while_a_commit_is_on_the_disk_and_not_taken_in() -> None:
    world = StreamWorld()
    world.publish(b"x")
    world.committer.prepare()
    world.committer.reach_the_disk()
    assert read_at(world.partition, 0) is None
    world.committer.land()
    assert read_at(world.partition, 0) is not None


def test_an_offset_of_a_decision_leads_to_the_chunk_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StreamWorld()
    group = world.group(mode="leases")
    for number in range(300):
        world.stored(b"x")
        if number % 3 == 0:
            group.ack(*receipts_by_seq(group.leased()).values())
    reads: list[int] = []
    get = world.engine.first_at_or_above
    monkeypatch.setattr(world.engine, "first_at_or_above", lambda *args: reads.append(1) or get(*args))
    [part] = queue_of(world).parts.all
    offset, seqs = Offset(0), []
    while (chunk := part.read(offset)) is not None:
        seqs.append(chunk.base)
        offset = Offset(chunk.base + chunk.count)
    assert len(seqs) == 300 and len(reads) <= 3 * 300


def test_a_time_leads_to_the_first_message_stored_then_or_later() -> None:
    world = StreamWorld()
    chunks = timed(world)
    for at_ms, base in chunks:
        assert offset_at_time(world.partition, at_ms) == base
        assert offset_at_time(world.partition, at_ms - 99) == base
    assert offset_at_time(world.partition, chunks[-1][0] + 1) == world.partition.state.end
    assert offset_at_time(world.partition, 0) == 0


def test_messages_of_one_time_are_found_from_their_first() -> None:
    world = StreamWorld()
    bases = [world.stored(b"x").base for _ in range(9)]
    assert offset_at_time(world.partition, world.now_ms) == bases[0]


def test_a_time_before_what_is_kept_leads_to_the_floor() -> None:
    world = StreamWorld(max_messages=7, overflow="drop_oldest")
    chunks = timed(world)
    state = world.partition.state
    assert state.inside > 0, "the floor lies within a chunk"
    assert offset_at_time(world.partition, chunks[0][0]) == state.floor
    purged = StreamWorld()
    old = timed(purged)
    purged.purge()
    purged.settle_down()
    new = timed(purged, 3)
    assert offset_at_time(purged.partition, old[3][0]) == new[0][1]


def test_a_time_is_found_among_holes_and_decisions() -> None:
    world = StreamWorld()
    group = world.group(mode="leases")
    wanted = []
    for number in range(30):
        world.now_ms += 10
        if number % 4 == 0:
            base = world.stored_with_holes(b"a", b"b", holes=0b01)
        else:
            base = world.stored(b"a").base
        wanted.append((world.now_ms, base))
        group.ack(*receipts_by_seq(group.leased()).values())
    assert [offset_at_time(world.partition, at_ms) for at_ms, _ in wanted] == [base for _, base in wanted]


def test_a_time_is_found_with_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StreamWorld()
    chunks = timed(world, 2000)
    reads: list[int] = []
    get = world.engine.first_at_or_above
    monkeypatch.setattr(world.engine, "first_at_or_above", lambda *args: reads.append(1) or get(*args))
    assert offset_at_time(world.partition, chunks[777][0]) == chunks[777][1]
    assert len(reads) <= 15


def test_a_count_reads_no_more_than_lies_behind_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StreamWorld()
    timed(world, 5 * COUNTED_CHUNKS)
    reads: list[int] = []
    get = world.engine.first_at_or_above
    monkeypatch.setattr(world.engine, "first_at_or_above", lambda *args: reads.append(1) or get(*args))
    end = world.partition.state.end
    assert messages_behind(world.partition, end - 3) == end - 3
    assert len(reads) <= COUNTED_CHUNKS + 3


def test_a_broken_count_is_no_wrong_count() -> None:
    world = StreamWorld()
    timed(world, 2 * COUNTED_CHUNKS)
    keys = [key for key, _ in world.engine.scan(Table.GROUPS, b"", b"\xff" * 20, 100)]
    assert len(keys) == 2
    batch = Batch()
    for key in keys:
        batch.put(Table.GROUPS, key, b"broken")
    world.engine.commit(batch, lambda: None)
    place = world.partition.state.end - 7
    assert messages_behind(world.partition, place) == place


def test_counts_below_the_floor_are_swept_and_groups_are_not() -> None:
    world = StreamWorld()
    world.group()
    world.stored(b"x")
    [(table, start, end, *_)] = [one for one in ranges(REPLICA, 0, 100) if one.table is Table.GROUPS]
    assert len(world.engine.scan(table, start, end, 100)) == 1
    assert len(world.engine.scan(table, b"", b"\xff" * 20, 100)) == 2
