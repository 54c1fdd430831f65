"""Records as rows: absolute values, so that a record applied twice leaves what it left once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.records import (
    AttemptsRecorded,
    ChunkAppended,
    ChunkDone,
    ChunkMarked,
    EpochStart,
    PartitionState,
    Purged,
    Record,
    Retry,
)
from backend_store.core.ready.work_queue import DEFAULT_GROUP
from backend_store.model import Epoch, Offset
from backend_store.node.log.apply import (
    decode_mark,
    encode_mark,
    read_attempts,
    read_mark,
    read_state,
    stage,
    stage_state,
)
from backend_store.storage.engine import Batch, StorageCorrupt, Table
from backend_store.storage.keys import log_key, mark_key
from backend_store.storage.memory import MemoryEngine
from tests.support.storage import all_rows

bits = st.integers(0, (1 << 256) - 1)


@given(st.integers(1, 256), bits, bits)
def test_a_mark_says_what_it_was_made_of(count: int, settled: int, started: int) -> None:
    mask = (1 << count) - 1
    assert decode_mark(encode_mark(count, settled & mask, started & mask)) == (settled & mask, started & mask)


def test_a_chunk_without_a_mark_or_attempts_has_none() -> None:
    assert read_mark(MemoryEngine(), 7, 0) == (0, 0)
    assert read_attempts(MemoryEngine(), 7, 0) == {}


@pytest.mark.parametrize("bit", range(0, 8 * 9, 7))
def test_a_flipped_bit_in_a_mark_is_seen(bit: int) -> None:
    engine = applied(RECORDS)
    key = mark_key(7, DEFAULT_GROUP, 0)
    row = bytearray(engine.get(Table.MARKS, key) or b"")
    row[bit // 8] ^= 1 << bit % 8
    batch = Batch()
    batch.put(Table.MARKS, key, bytes(row))
    engine.commit(batch, lambda: None)
    with pytest.raises(StorageCorrupt):
        read_mark(engine, 7, 0)


def test_a_row_of_another_chunk_is_no_mark_of_this_one() -> None:
    engine = applied(RECORDS)
    batch = Batch()
    batch.put(Table.MARKS, mark_key(7, DEFAULT_GROUP, 5), engine.get(Table.MARKS, mark_key(7, DEFAULT_GROUP, 0)) or b"")
    engine.commit(batch, lambda: None)
    with pytest.raises(StorageCorrupt):
        read_mark(engine, 7, 5)


def test_a_mark_of_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="version 9"):
        decode_mark(b"\x09" + encode_mark(8, 1, 1)[1:])


def test_the_state_of_a_partition_comes_back() -> None:
    state = PartitionState(
        [EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(2), Offset(9))],
        end=2**40, time_ms=5, prev_crc=2**32 - 1, floor=3, live=7, live_bytes=8, published_total=9, acked_total=10,
        letters=True,
    )  # fmt: skip
    engine, batch = MemoryEngine(), Batch()
    stage_state(batch, 7, state)
    engine.commit(batch, lambda: None)
    assert read_state(engine, 7) == state and read_state(engine, 8) is None


RECORDS: list[Record] = [
    ChunkAppended(0, Offset(0), b"chunk"),
    ChunkAppended(0, Offset(5), b"other"),
    ChunkMarked(0, Offset(0), 5, 0b101, 0b111),
    AttemptsRecorded(0, Offset(0), {1: Retry(2), 2: Retry(1, 99)}),
    Purged(0, Offset(3)),
    ChunkDone(0, 0, Offset(5)),
]


def test_records_leave_their_rows() -> None:
    engine = applied(RECORDS)
    assert all_rows(engine, Table.LOG) == {log_key(7, 0): b"chunk"}
    assert read_mark(engine, 7, 0) == (0b101, 0b111)
    assert read_attempts(engine, 7, 0) == {1: Retry(2), 2: Retry(1, 99)}


def test_records_applied_twice_leave_the_same() -> None:
    once, twice = applied(RECORDS), applied(RECORDS + RECORDS)
    assert [all_rows(once, table) for table in Table] == [all_rows(twice, table) for table in Table]


def test_a_chunk_that_is_done_with_leaves_nothing() -> None:
    engine = applied([*RECORDS, ChunkDone(0, 0, Offset(0))])
    assert all(all_rows(engine, table) == {} for table in (Table.LOG, Table.MARKS, Table.RETRY))


def applied(records: list[Record]) -> MemoryEngine:
    engine = MemoryEngine()
    for record in records:
        batch = Batch()
        stage(batch, 7, [record])
        engine.commit(batch, lambda: None)
    return engine
