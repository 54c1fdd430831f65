"""Places in a queue of several partitions: ids of messages, and cursors that stand in all partitions at once.

A message without an id of its own is known by its place, `"{partition}-{offset:012x}"`; a number is never given to a
second partition before its offsets go on, so no place is given out twice. A stream's cursor is a *vector*: where its
reader stands in each partition. Cursors of one partition keep the form they always had (`cursor`).
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping

from backend_store.core.cursor import encode_cursor
from backend_store.model import PARTITIONS_MAX, Epoch, FieldError, InvalidRequest, Offset, Position

_ONE = struct.Struct(">BHIQ")  # version 1, partition, epoch, offset: as in `cursor`
_HEAD = struct.Struct(">BB")  # version 2, partitions
_ENTRY = struct.Struct(">HIQ")  # partition, epoch, offset
_VERSION_ONE = 1
_VERSION_VECTOR = 2
CURSOR_CHARS_MAX = (_HEAD.size + PARTITIONS_MAX * _ENTRY.size + 2) // 3 * 4


def message_id(partition: int, offset: int) -> str:
    """The id of a message whose producer gave it none: its place."""
    return f"{partition}-{offset:012x}"


def parse_message_id(text: str) -> tuple[int, Offset] | None:
    """(partition, offset) of an id that is a place; None for any other id. Only the spelling that was given out."""
    partition, dash, offset = text.partition("-")
    if not dash or not (partition.isascii() and partition.isdigit()) or not (12 <= len(offset) <= 16):
        return None
    try:
        place = int(partition), Offset(int(offset, 16))
    except ValueError:
        return None
    return place if place[0] < PARTITIONS_MAX and message_id(*place) == text else None


def encode_positions(positions: Mapping[int, Position]) -> str:
    """The cursor of a reader who stands at these positions, by partition."""
    assert 0 < len(positions) <= PARTITIONS_MAX
    if list(positions) == [0]:
        return encode_cursor(positions[0].epoch, positions[0].offset)
    entries = (_ENTRY.pack(number, *_fields(positions[number])) for number in sorted(positions))
    return urlsafe_b64encode(_HEAD.pack(_VERSION_VECTOR, len(positions)) + b"".join(entries)).rstrip(b"=").decode()


def _fields(position: Position) -> tuple[int, int]:
    return position.epoch, position.offset


def cursors_along(others: Mapping[int, Position], partition: int, epoch: Epoch) -> Callable[[int], str]:
    """The cursors of a reader who moves on in one partition, by its offset there, and stands still in the others."""
    numbers = sorted({*others, partition})
    entries = {number: _ENTRY.pack(number, *_fields(others[number])) for number in numbers if number != partition}
    at = numbers.index(partition)
    head = _HEAD.pack(_VERSION_VECTOR, len(numbers)) + b"".join(entries[number] for number in numbers[:at])
    tail = b"".join(entries[number] for number in numbers[at + 1 :])

    def cursor(offset: int) -> str:
        return urlsafe_b64encode(head + _ENTRY.pack(partition, epoch, offset) + tail).rstrip(b"=").decode()

    return cursor


def decode_positions(text: str) -> dict[int, Position]:
    """Where the reader stood, by partition; cursors of either form. Raises `InvalidRequest`.

    A partition that is not in it did not exist (or not again) when the cursor was given out: the reader begins at the
    earliest that is there. One that has retired since was read to its end or trimmed: its position is passed over.
    """
    positions = _decoded(text)
    if positions is None:
        raise InvalidRequest(
            "this is no cursor of Pushq", errors=(FieldError("/from/cursor", "send a cursor back as it was given"),)
        )
    return positions


def _decoded(text: str) -> dict[int, Position] | None:
    if len(text) > CURSOR_CHARS_MAX:
        return None
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    if len(raw) == _ONE.size and raw[0] == _VERSION_ONE:
        _version, partition, epoch, offset = _ONE.unpack(raw)
        return {partition: Position(Epoch(epoch), Offset(offset))}
    if len(raw) < _HEAD.size or raw[0] != _VERSION_VECTOR or len(raw) != _HEAD.size + raw[1] * _ENTRY.size:
        return None
    entries = list(_ENTRY.iter_unpack(raw[_HEAD.size :]))
    numbers = [number for number, _, _ in entries]
    if not numbers or numbers != sorted(set(numbers)) or numbers[-1] >= PARTITIONS_MAX:
        return None
    return {number: Position(Epoch(epoch), Offset(offset)) for number, epoch, offset in entries}
