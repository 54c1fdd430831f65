"""Where a stream's reader begins: complete, with a gap, or anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.cursor import StreamStart, decode_cursor, encode_cursor, resolve
from backend_store.core.records import EpochStart, PartitionState
from backend_store.model import Epoch, InvalidRequest, Offset

# Epoch 1 wrote up to 100, a restored backup went on from there in epoch 4; everything below 20 was purged.
STATE = PartitionState([EpochStart(Epoch(1), Offset(0)), EpochStart(Epoch(4), Offset(100))], end=150, floor=20)


def at_time(time_ms: int) -> Offset:
    return Offset(77)


def start(wanted: object) -> StreamStart:
    return resolve(STATE, wanted, at_time)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_cursor_says_what_it_was_made_of(epoch: int, offset: int) -> None:
    assert decode_cursor(encode_cursor(epoch, offset)) == (epoch, offset)


GOOD = encode_cursor(1, 5)


@pytest.mark.parametrize("text", ["", "x", "AAAA", "é", "====", GOOD[:-1], GOOD + "A", "A" * 20, "A" * 9999])
def test_what_was_never_given_out_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_cursor(text)
    assert refused.value.errors[0].pointer == "/from/cursor"


@given(st.text(max_size=40))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        epoch, offset = decode_cursor(text)
    except InvalidRequest:
        return
    assert epoch >= 0 and offset >= 0


def test_the_earliest_is_what_no_purge_has_taken_and_the_latest_is_the_end() -> None:
    assert start("earliest") == StreamStart(Offset(20), "complete")
    assert start("latest") == start(None) == StreamStart(Offset(150), "complete")


def test_a_time_is_looked_up() -> None:
    assert start({"time": 5}) == StreamStart(Offset(77), "complete")


def test_a_seq_below_the_purge_is_a_gap_and_one_beyond_the_end_is_the_end() -> None:
    assert start({"seq": 20}) == StreamStart(Offset(20), "complete")
    assert start({"seq": 5}) == StreamStart(Offset(20), "gap", (5, 19))
    assert start({"seq": 10_000}) == StreamStart(Offset(150), "complete")


def test_a_cursor_goes_on_where_it_stood() -> None:
    assert start({"cursor": encode_cursor(4, 120)}) == StreamStart(Offset(120), "complete")
    assert start({"cursor": encode_cursor(1, 100)}) == StreamStart(Offset(100), "complete")
    assert start({"cursor": encode_cursor(4, 150)}) == StreamStart(Offset(150), "complete")


def test_a_cursor_below_the_purge_says_what_is_missed() -> None:
    assert start({"cursor": encode_cursor(1, 7)}) == StreamStart(Offset(20), "gap", (7, 19))


@pytest.mark.parametrize(("epoch", "offset"), [(1, 101), (2, 50), (4, 151), (5, 10), (0, 0)])
def test_a_cursor_into_a_log_that_was_replaced_is_told_to_begin_anew(epoch: int, offset: int) -> None:
    """After a restore the same offsets may hold other messages: the epoch tells."""
    found = start({"cursor": encode_cursor(epoch, offset)})
    assert (found.offset, found.outcome) == (20, "reset")
    assert decode_cursor(found.cursor) == (4, 20)
