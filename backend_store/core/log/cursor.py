"""Cursors of stream readers: where a reader resumes, and what it may have missed.

A cursor is a *vector*: it names the queue, and (epoch, offset) in each of its partitions. After a backup was restored,
the log may hold other messages under offsets it had used before; the epoch tells them apart. Another queue, or an
earlier one of the same name, has another uid. In both cases the reader gets the outcome `reset` instead of other data,
and resumes where the two logs diverge, or at the earliest message if that is unknown.

    cursor = version 3 u8 | queue uid u64 | partitions u8 | (partition u16 | epoch u32 | offset u64) each

Cursors of versions 1 (one partition) and 2 (several) name no queue; they are accepted without that check.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.model import PARTITIONS_MAX, Epoch, FieldError, InvalidRequest, Offset, Position

_ONE = struct.Struct(">BHIQ")  # version 1, partition, epoch, offset
_VECTOR = struct.Struct(">BB")  # version 2, partitions
_HEAD = struct.Struct(">BQB")  # version 3, uid, partitions
_ENTRY = struct.Struct(">HIQ")  # partition, epoch, offset
_VERSION_ONE = 1
_VERSION_VECTOR = 2
_VERSION = 3
PLACE_EPOCHS: Final = 1 << 32
"""Cursors have room for epochs below that; see `in_place`."""
CURSOR_CHARS_MAX = (_HEAD.size + PARTITIONS_MAX * _ENTRY.size + 2) // 3 * 4


class Stand(NamedTuple):
    """The position of a reader in each partition. `uid` None: the cursor names no queue.

    A partition that is missing did not exist (or not again) when the cursor was issued: the reader starts at its
    earliest message. One that has retired since was read to its end or trimmed: its position is ignored.
    """

    uid: int | None
    positions: dict[int, Position]

    def is_of(self, uid: int) -> bool:
        """Whether the cursor may belong to a queue; one without a uid belongs to any."""
        return self.uid is None or self.uid == uid


class StreamStart(NamedTuple):
    """Where a reader starts in one partition. `missed`: first and last offset that a `gap` leaves out."""

    offset: Offset
    outcome: Literal["complete", "gap", "reset"]
    missed: tuple[int, int] | None = None


# ---------------------------------------------------------------------------------------------------------- text form


def encode_cursor(epoch: int, offset: int, partition: int = 0, *, uid: int) -> str:
    """Returns the cursor of a reader of one partition."""
    return _text(_HEAD.pack(_VERSION, uid, 1) + _ENTRY.pack(partition, epoch, offset))


def encode_positions(positions: Mapping[int, Position], *, uid: int) -> str:
    """Returns the cursor of a reader at these positions, by partition."""
    assert 0 < len(positions) <= PARTITIONS_MAX
    entries = (_ENTRY.pack(number, *_fields(positions[number])) for number in sorted(positions))
    return _text(_HEAD.pack(_VERSION, uid, len(positions)) + b"".join(entries))


def cursors_along(others: Mapping[int, Position], partition: int, epoch: Epoch, *, uid: int) -> Callable[[int], str]:
    """Returns a function from an offset in `partition` to the cursor of a reader that stays put in the others."""
    numbers = sorted({*others, partition})
    entries = {number: _ENTRY.pack(number, *_fields(others[number])) for number in numbers if number != partition}
    at = numbers.index(partition)
    head = _HEAD.pack(_VERSION, uid, len(numbers)) + b"".join(entries[number] for number in numbers[:at])
    tail = b"".join(entries[number] for number in numbers[at + 1 :])

    def cursor(offset: int) -> str:
        return _text(head + _ENTRY.pack(partition, epoch, offset) + tail)

    return cursor


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _fields(position: Position) -> tuple[int, int]:
    return position.epoch, position.offset


def decode_cursor(text: str) -> Stand:
    """Decodes a cursor of any version. Raises `InvalidRequest`."""
    stand = _decoded(text)
    if stand is None:
        raise InvalidRequest("not a Pushq cursor", errors=(FieldError("/from/cursor", "pass a cursor unchanged"),))
    return stand


def _decoded(text: str) -> Stand | None:
    if len(text) > CURSOR_CHARS_MAX:
        return None
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    if len(raw) == _ONE.size and raw[0] == _VERSION_ONE:
        _version, partition, epoch, offset = _ONE.unpack(raw)
        return Stand(None, {partition: Position(Epoch(epoch), Offset(offset))})
    if len(raw) >= _HEAD.size and raw[0] == _VERSION:
        _version, uid, count = _HEAD.unpack_from(raw)
        return _vector(uid, count, raw[_HEAD.size :])
    if len(raw) >= _VECTOR.size and raw[0] == _VERSION_VECTOR:
        return _vector(None, raw[1], raw[_VECTOR.size :])
    return None


def _vector(uid: int | None, count: int, raw: bytes) -> Stand | None:
    if len(raw) != count * _ENTRY.size:
        return None
    entries = list(_ENTRY.iter_unpack(raw))
    numbers = [number for number, _, _ in entries]
    if not numbers or numbers != sorted(set(numbers)) or numbers[-1] >= PARTITIONS_MAX:
        return None
    return Stand(uid, {number: Position(Epoch(epoch), Offset(offset)) for number, epoch, offset in entries})


# ------------------------------------------------------------------------------------------------ resume in one log


def resolve(
    state: PartitionState, wanted: Any, time_to_offset: Callable[[int], Offset], *, uid: int, partition: int = 0
) -> StreamStart:
    """Returns where a reader starts in one partition of a queue. `wanted`: "earliest", "latest" (or None), {"seq": n},
    {"time": ms} or {"cursor": text}. Raises `InvalidRequest` for a text that is no cursor.
    """
    floor, end = state.floor, state.end
    if wanted == "earliest":
        return StreamStart(Offset(floor), "complete")
    if wanted in (None, "latest"):
        return StreamStart(Offset(end), "complete")
    if "time" in wanted:
        start = time_to_offset(wanted["time"])
        # If an older message is still there, all dropped ones are older, too.
        if has_dropped_since(state, wanted["time"]) and start == time_to_offset(0):
            return StreamStart(start, "gap", (0, floor - 1))
        return StreamStart(start, "complete")
    if "seq" in wanted:
        return _from_offset(state, wanted["seq"])
    stand = decode_cursor(wanted["cursor"])
    if not stand.is_of(uid):
        return begin_anew(state)
    position = stand.positions.get(partition)
    return resume(state, position) if position is not None else StreamStart(Offset(floor), "complete")


def has_dropped_since(state: PartitionState, time_ms: int) -> bool:
    """Whether messages published at `time_ms` or later may have been dropped; how many is unknown."""
    return state.floor > 0 and time_ms <= min(state.dropped_ms, state.time_ms)


def resume(state: PartitionState, position: Position) -> StreamStart:
    """Returns where a reader resumes whose position is in this log."""
    parted = where_they_part([EpochStart(position.epoch, Offset(0))], state.epochs, position.offset)
    if parted is not None:
        return StreamStart(Offset(max(parted, state.floor)), "reset")
    if position.offset > state.end:
        return begin_anew(state)
    return _from_offset(state, position.offset)


def where_they_part(before: Sequence[EpochStart], now: Sequence[EpochStart], offset: int) -> Offset | None:
    """Returns the offset up to which the log `now` equals the log `before`, of which a reader has read up to `offset`.
    None if the reader has read nothing beyond it, or one of the logs is unknown; 0 if they have no epoch in common.

    Two logs with an epoch in common are equal up to the end of that epoch in either of them. What was read beyond that
    was lost with its leader, or written after the backup that was restored.
    """
    floor = max(_place_at(before, offset), _place_at(now, offset))
    before, now = _in(before, floor), _in(now, floor)
    if not before or not now or offset == 0:
        return None
    ours = {start.epoch: index for index, start in enumerate(now)}
    common = next((index for index in reversed(range(len(before))) if before[index].epoch in ours), None)
    if common is None:
        return Offset(0)
    ends = [*before[common + 1 : common + 2], *now[ours[before[common].epoch] + 1 :][:1]]
    parted = min((end.start for end in ends), default=None)
    return parted if parted is not None and parted < offset else None


def in_place(epochs: Sequence[EpochStart], floor: int) -> list[EpochStart]:
    """The epochs of one of several places of a stream, whose numbers begin at `floor`, told apart from those of the
    others: each cluster counts its own."""
    assert floor % PLACE_EPOCHS == 0, "places begin at multiples of that"
    return [EpochStart(Epoch(floor + start.epoch), start.start) for start in epochs]


def of_place(epochs: Sequence[EpochStart], offset: int) -> Sequence[EpochStart]:
    """Those of the place that an offset lies in; of a stream that never moved all of them."""
    return _in(epochs, _place_at(epochs, offset))


def _place_at(epochs: Sequence[EpochStart], offset: int) -> int:
    """Of the places whose epochs these are the floor of the one that an offset lies in."""
    if not epochs or epochs[-1].epoch < PLACE_EPOCHS:  # the last one is that of the last place
        return 0
    return max((_place(start) for start in epochs if _place(start) <= offset), default=0)


def _in(epochs: Sequence[EpochStart], floor: int) -> Sequence[EpochStart]:
    if not floor and (not epochs or epochs[-1].epoch < PLACE_EPOCHS):
        return epochs
    return [start for start in epochs if _place(start) == floor]


def _place(start: EpochStart) -> int:
    return start.epoch - start.epoch % PLACE_EPOCHS


def epoch_at(epochs: Sequence[EpochStart], offset: int) -> Epoch:
    """Returns the epoch of the last message before an offset. A log that diverges at the offset has that epoch, too."""
    return next((start.epoch for start in reversed(epochs) if start.start < offset), epochs[0].epoch)


def begin_anew(state: PartitionState) -> StreamStart:
    """Returns where a reader resumes whose position is in another log."""
    return StreamStart(Offset(state.floor), "reset")


def _from_offset(state: PartitionState, offset: int) -> StreamStart:
    if offset < state.floor:
        return StreamStart(Offset(state.floor), "gap", (offset, state.floor - 1))
    return StreamStart(Offset(min(offset, state.end)), "complete")
