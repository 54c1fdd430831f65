"""Where a stream's reader begins: complete, with a gap, or anew; and the cursors that say it."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.cursor import (
    CURSOR_CHARS_MAX,
    Stand,
    StreamStart,
    cursors_along,
    decode_cursor,
    encode_cursor,
    encode_positions,
    epoch_at,
    resolve,
    where_they_part,
)
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.model import PARTITIONS_MAX, Epoch, InvalidRequest, Offset, Position

UID = 9
# Epoch 1 wrote up to 100, a restored backup went on from there in epoch 4; everything below 20 was purged.
STATE = PartitionState(
    [EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(4), Offset(100))], end=150, floor=20, time_ms=900, dropped_ms=300
)
positions = st.builds(Position, st.integers(0, 2**32 - 1).map(Epoch), st.integers(0, 2**64 - 1).map(Offset))
partitions = st.integers(0, PARTITIONS_MAX - 1)
uids = st.integers(0, 2**64 - 1)


def at_time(time_ms: int) -> Offset:
    return Offset(77) if time_ms > 500 else Offset(20)


def start(wanted: object) -> StreamStart:
    return resolve(STATE, wanted, at_time, uid=UID)


def cursor(epoch: int, offset: int) -> str:
    return encode_cursor(epoch, offset, uid=UID)


def as_text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def before(epoch: int, offset: int, partition: int = 0) -> str:
    """A cursor as it was before it named its queue."""
    return as_text(struct.pack(">BHIQ", 1, partition, epoch, offset))


# ---------------------------------------------------------------------------------------------------------- as text


@given(st.dictionaries(partitions, positions, min_size=1), uids)
def test_a_cursor_says_its_queue_and_where_its_reader_stood_in_each_partition(
    stood: dict[int, Position], uid: int
) -> None:
    text = encode_positions(stood, uid=uid)
    assert decode_cursor(text) == Stand(uid, stood) and len(text) <= CURSOR_CHARS_MAX


@given(positions, partitions, uids)
def test_the_cursor_of_one_partition_is_one_of_all_that_there_are(one: Position, number: int, uid: int) -> None:
    assert encode_cursor(one.epoch, one.offset, number, uid=uid) == encode_positions({number: one}, uid=uid)


@given(st.dictionaries(partitions, positions), partitions, st.lists(st.integers(0, 2**64 - 1), max_size=3))
def test_cursors_of_a_reader_who_moves_in_one_partition_are_those_of_its_places(
    others: dict[int, Position], partition: int, offsets: list[int]
) -> None:
    along = cursors_along(others, partition, Epoch(3), uid=UID)
    for offset in offsets:
        wanted = {number: place for number, place in others.items() if number != partition}
        assert decode_cursor(along(offset)).positions == wanted | {partition: Position(Epoch(3), Offset(offset))}


def test_cursors_of_earlier_versions_are_read_and_name_no_queue() -> None:
    one, other = Position(Epoch(1), Offset(5)), Position(Epoch(4), Offset(6))
    assert decode_cursor(before(1, 5)) == Stand(None, {0: one})
    vector = as_text(struct.pack(">BB", 2, 2) + struct.pack(">HIQHIQ", 0, 1, 5, 2, 4, 6))
    assert decode_cursor(vector) == Stand(None, {0: one, 2: other})
    assert Stand(None, {}).is_of(UID)


GOOD = encode_positions({0: Position(Epoch(1), Offset(5)), 2: Position(Epoch(1), Offset(6))}, uid=UID)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "AAAA", "é", "====", GOOD[:-1], GOOD + "AAAA", before(1, 5)[:-1], before(1, 5) + "A", "AgA", "AwA",
        "A" * 20, "A" * 9999, "Ag" + "A" * 9999, "A" * 99999,
    ],
)  # fmt: skip
def test_what_was_never_given_out_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_cursor(text)
    assert refused.value.errors[0].pointer == "/from/cursor"


def test_a_cursor_that_names_a_partition_twice_is_none() -> None:
    raw = bytearray(urlsafe_b64decode(GOOD + "=" * (-len(GOOD) % 4)))
    raw[10:12], raw[24:26] = b"\0\2", b"\0\2"
    with pytest.raises(InvalidRequest):
        decode_cursor(as_text(bytes(raw)))


@given(st.text(max_size=60))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        assert decode_cursor(text).positions
    except InvalidRequest:
        return


# ---------------------------------------------------------------------------------------------------- where it begins


def test_the_earliest_is_what_no_purge_has_taken_and_the_latest_is_the_end() -> None:
    assert start("earliest") == StreamStart(Offset(20), "complete")
    assert start("latest") == start(None) == StreamStart(Offset(150), "complete")


@pytest.mark.parametrize("time_ms", [0, 299, 300])
def test_a_time_since_when_messages_were_dropped_is_a_gap(time_ms: int) -> None:
    assert start({"time": time_ms}) == StreamStart(Offset(20), "gap", (0, 19))


def test_a_time_after_all_that_was_dropped_is_complete() -> None:
    assert start({"time": 301}) == StreamStart(Offset(20), "complete")
    assert start({"time": 501}) == StreamStart(Offset(77), "complete")


def test_where_nobody_knows_when_it_was_dropped_it_may_have_been_at_any_time_before_what_is_kept() -> None:
    state = PartitionState([EpochStart(Epoch(1), Offset(0))], end=150, floor=20, time_ms=900)
    assert resolve(state, {"time": 450}, at_time, uid=UID).outcome == "gap"
    assert resolve(state, {"time": 501}, at_time, uid=UID).outcome == "complete", "an older one is there still"
    state.floor = 0
    assert resolve(state, {"time": 0}, lambda _: Offset(0), uid=UID).outcome == "complete"


def test_a_seq_below_the_purge_is_a_gap_and_one_beyond_the_end_is_the_end() -> None:
    assert start({"seq": 20}) == StreamStart(Offset(20), "complete")
    assert start({"seq": 5}) == StreamStart(Offset(20), "gap", (5, 19))
    assert start({"seq": 10_000}) == StreamStart(Offset(150), "complete")


def test_a_cursor_goes_on_where_it_stood() -> None:
    for text in (cursor(4, 120), before(4, 120)):
        assert start({"cursor": text}) == StreamStart(Offset(120), "complete")
    assert start({"cursor": cursor(1, 100)}) == StreamStart(Offset(100), "complete")
    assert start({"cursor": cursor(4, 150)}) == StreamStart(Offset(150), "complete")


def test_a_cursor_below_the_purge_says_what_is_missed() -> None:
    assert start({"cursor": cursor(1, 7)}) == StreamStart(Offset(20), "gap", (7, 19))


@pytest.mark.parametrize("offset", [101, 140, 151])
def test_a_cursor_into_what_was_replaced_goes_on_where_the_logs_part(offset: int) -> None:
    """After a restore the same offsets may hold other messages: the epoch tells."""
    assert start({"cursor": cursor(1, offset)}) == StreamStart(Offset(100), "reset")


def test_who_has_read_nothing_of_an_unknown_log_has_nothing_to_forget() -> None:
    state = PartitionState([EpochStart(Epoch(4), Offset(0))], end=3, floor=0, time_ms=900)
    assert resolve(state, {"cursor": cursor(1, 0)}, at_time, uid=UID) == StreamStart(Offset(0), "complete")


def _log(*starts: tuple[int, int]) -> list[EpochStart]:
    return [EpochStart(Epoch(epoch), Offset(start)) for epoch, start in starts]


@pytest.mark.parametrize(
    ("before", "now", "offset", "parted"),
    [
        ([(1, 0)], [(1, 0), (2, 5)], 5, None),
        ([(1, 0)], [(1, 0), (2, 5)], 6, 5),
        ([(1, 0), (2, 5)], [(1, 0), (3, 5)], 5, None),
        ([(1, 0), (2, 5)], [(1, 0), (3, 7)], 6, 5),
        ([(1, 0), (2, 7)], [(1, 0), (3, 5)], 9, 5),
        ([(1, 0), (2, 5), (3, 8)], [(1, 0), (2, 5), (4, 9)], 10, 8),
        ([(1, 0), (2, 5)], [(2, 5), (3, 9)], 4, None),
        ([(1, 0)], [(2, 5), (3, 9)], 4, 0),
        ([(1, 0)], [(2, 0)], 0, None),
        ([], [(2, 0)], 7, None),
        ([(1, 0)], [], 7, None),
    ],
)
def test_two_logs_part_where_the_last_epoch_that_both_have_ends_in_one_of_them(
    before: list[tuple[int, int]], now: list[tuple[int, int]], offset: int, parted: int | None
) -> None:
    assert where_they_part(_log(*before), _log(*now), offset) == parted


def test_a_place_is_of_the_epoch_of_the_message_before_it() -> None:
    log = _log((1, 0), (2, 5), (3, 5), (4, 9))
    assert [epoch_at(log, offset) for offset in (0, 1, 5, 6, 9, 10)] == [1, 1, 1, 3, 3, 4]


def test_where_the_logs_part_below_the_purge_it_is_the_earliest() -> None:
    epochs = [EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(4), Offset(10))]
    state = PartitionState(epochs, end=150, floor=20, time_ms=900)
    found = resolve(state, {"cursor": cursor(1, 15)}, at_time, uid=UID)
    assert found == StreamStart(Offset(20), "reset")


@pytest.mark.parametrize(("epoch", "offset"), [(2, 50), (4, 151), (5, 10), (0, 1)])
def test_a_cursor_into_a_log_that_was_replaced_is_told_to_begin_anew(epoch: int, offset: int) -> None:
    assert start({"cursor": cursor(epoch, offset)}) == StreamStart(Offset(20), "reset")


def test_a_cursor_of_another_queue_is_told_to_begin_anew() -> None:
    assert start({"cursor": encode_cursor(4, 120, uid=UID + 1)}) == StreamStart(Offset(20), "reset")


def test_of_a_cursor_that_stands_in_other_partitions_only_all_is_read() -> None:
    assert start({"cursor": encode_cursor(4, 120, 3, uid=UID)}) == StreamStart(Offset(20), "complete")
