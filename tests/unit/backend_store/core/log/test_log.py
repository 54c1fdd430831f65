"""The log of a partition: offsets without holes, chunks that follow each other, time that never goes back."""

from __future__ import annotations

from backend_store.core.log.chunk import KIND_JSON, decode_chunk, plain_blocks
from backend_store.core.log.log import Append
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.model import Epoch, Offset


def empty() -> PartitionState:
    return PartitionState([EpochStart(Epoch(1), Offset(0))])


def blocks(*counts: int) -> list[object]:
    return [block for count in counts for block in plain_blocks(KIND_JSON, [b"1"] * count)]


def appended(state, blocks, *, now_ms):  # type: ignore[no-untyped-def]
    added = Append(state, seed=1, now_ms=now_ms)
    added.add(blocks)
    return added


def test_messages_take_offsets_in_order_without_holes() -> None:
    added = appended(empty(), blocks(60, 60, 60, 60, 60), now_ms=5)  # type: ignore[arg-type]
    assert [(c.base, c.count) for c in added.chunks] == [(0, 240), (240, 60)]
    assert (added.state.end, added.state.live, added.state.published_total) == (300, 300, 300)
    assert added.state.live_bytes == sum(len(c.data) for c in added.chunks)


def test_the_state_before_stays_as_it_was() -> None:
    state = empty()
    appended(state, blocks(3), now_ms=5)  # type: ignore[arg-type]
    assert state == empty()


def test_what_is_kept_in_memory_is_what_is_stored() -> None:
    added = appended(empty(), blocks(3), now_ms=5)  # type: ignore[arg-type]
    (record,) = added.records
    stored = decode_chunk(record.data, seed=1, offset=record.base)
    (chunk,) = added.chunks
    assert (stored.base, stored.epoch, stored.count, stored.time_ms) == (chunk.base, chunk.epoch, chunk.count, 5)
    assert stored.messages == chunk.messages


def test_time_in_a_log_never_goes_back() -> None:
    first = appended(empty(), blocks(1), now_ms=1000)  # type: ignore[arg-type]
    second = appended(first.state, blocks(1), now_ms=10)  # type: ignore[arg-type]
    assert (second.state.time_ms, second.chunks[0].time_ms) == (1000, 1000)


def test_a_cycle_without_publishes_adds_nothing_and_does_not_move_time() -> None:
    added = appended(empty(), [], now_ms=1000)
    assert (added.chunks, added.records, added.state) == ([], [], empty())
