"""Ids and cursors that name partitions: what was given out is read back, anything else is refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.cursor import encode_cursor
from backend_store.core.places import (
    CURSOR_CHARS_MAX,
    cursors_along,
    decode_positions,
    encode_positions,
    message_id,
    parse_message_id,
)
from backend_store.model import PARTITIONS_MAX, Epoch, InvalidRequest, Offset, Position

places = st.builds(Position, st.integers(0, 2**32 - 1).map(Epoch), st.integers(0, 2**64 - 1).map(Offset))
partitions = st.integers(0, PARTITIONS_MAX - 1)


@given(st.dictionaries(partitions, places, min_size=1))
def test_a_cursor_says_where_its_reader_stood_in_each_partition(positions: dict[int, Position]) -> None:
    text = encode_positions(positions)
    assert decode_positions(text) == positions and len(text) <= CURSOR_CHARS_MAX


def test_the_cursor_of_one_partition_has_the_form_it_always_had() -> None:
    assert encode_positions({0: Position(Epoch(3), Offset(7))}) == encode_cursor(3, 7)
    assert decode_positions(encode_cursor(3, 7)) == {0: Position(Epoch(3), Offset(7))}


VECTOR = encode_positions({0: Position(Epoch(1), Offset(5)), 2: Position(Epoch(1), Offset(6))})


@pytest.mark.parametrize(
    "text",
    ["", "x", "AAAA", "é", "====", VECTOR[:-1], VECTOR + "AAAA", "AgA", "A" * 20, "Ag" + "A" * 9999, "A" * 99999],
)
def test_what_was_never_given_out_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_positions(text)
    assert refused.value.errors[0].pointer == "/from/cursor"


def test_a_cursor_that_names_a_partition_twice_is_none() -> None:
    raw = bytearray(urlsafe_b64decode(VECTOR + "=" * (-len(VECTOR) % 4)))
    raw[2:4], raw[16:18] = b"\0\2", b"\0\2"
    with pytest.raises(InvalidRequest):
        decode_positions(urlsafe_b64encode(raw).rstrip(b"=").decode())


@given(st.text(max_size=60))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        assert decode_positions(text)
    except InvalidRequest:
        return


@given(partitions, st.integers(0, 2**64 - 1))
def test_a_place_is_read_from_the_id_it_makes(partition: int, offset: int) -> None:
    assert parse_message_id(message_id(partition, offset)) == (partition, offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-000000000001",
        "0-1",
        "0-00000000000G",
        "0-00000000000A",
        "00-000000000001",
        "0-0000000000001",
        "64-000000000001",
        "٣-000000000001",
        "0-+00000000001",
        "0-00_000000001",
        "order-17",
    ],
)
def test_an_id_that_is_no_place_is_somebodys_own(text: str) -> None:
    assert parse_message_id(text) is None


@given(st.dictionaries(partitions, places), partitions, st.lists(st.integers(0, 2**64 - 1), max_size=3))
def test_cursors_of_a_reader_who_moves_in_one_partition_are_those_of_its_places(
    others: dict[int, Position], partition: int, offsets: list[int]
) -> None:
    cursor = cursors_along(others, partition, Epoch(3))
    for offset in offsets:
        wanted = {number: place for number, place in others.items() if number != partition}
        assert decode_positions(cursor(offset)) == wanted | {partition: Position(Epoch(3), Offset(offset))}
