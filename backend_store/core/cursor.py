"""Where a stream's reader stands: cursors with an epoch, and what a reader may have missed.

A cursor names (epoch, offset). After a backup was restored the log may hold other messages under offsets it had given
out before; the epoch tells them apart, and such a reader is told `reset` instead of being handed other data.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from backend_store.core.records import PartitionState
from backend_store.model import Epoch, FieldError, InvalidRequest, Offset, Position

_CURSOR = struct.Struct(">BHIQ")  # version, partition, epoch, offset
_VERSION = 1


class StreamStart(NamedTuple):
    """`missed` is the range of offsets a gap leaves out."""

    offset: Offset
    outcome: Literal["complete", "gap", "reset"]
    missed: tuple[int, int] | None = None
    cursor: str = ""


def encode_cursor(epoch: int, offset: int, partition: int = 0) -> str:
    return urlsafe_b64encode(_CURSOR.pack(_VERSION, partition, epoch, offset)).rstrip(b"=").decode()


def decode_cursor(text: str) -> tuple[int, int]:
    """(epoch, offset). Raises `InvalidRequest`."""
    try:
        version, _partition, epoch, offset = _CURSOR.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, struct.error):
        version = 0
    if version != _VERSION:
        raise InvalidRequest(
            "this is no cursor of Pushq", errors=(FieldError("/from/cursor", "send a cursor back as it was given"),)
        )
    return epoch, offset


def resolve(state: PartitionState, wanted: Any, time_to_offset: Callable[[int], Offset]) -> StreamStart:
    """Where a reader begins. `wanted`: "earliest", "latest", {"seq": n}, {"time": ms} or {"cursor": text}."""
    floor, end = state.floor, state.end
    if wanted == "earliest":
        return StreamStart(Offset(floor), "complete")
    if wanted in (None, "latest"):
        return StreamStart(Offset(end), "complete")
    if "time" in wanted:
        return StreamStart(time_to_offset(wanted["time"]), "complete")
    if "seq" in wanted:
        return _from_offset(state, wanted["seq"])
    epoch, offset = decode_cursor(wanted["cursor"])
    return resume(state, Position(Epoch(epoch), Offset(offset)))


def resume(state: PartitionState, position: Position) -> StreamStart:
    """Where a reader goes on who stood at a position of this log."""
    if position.offset > _end_of_epoch(state, position.epoch):
        return StreamStart(Offset(state.floor), "reset", None, encode_cursor(state.epoch, state.floor))
    return _from_offset(state, position.offset)


def _from_offset(state: PartitionState, offset: int) -> StreamStart:
    if offset < state.floor:
        return StreamStart(Offset(state.floor), "gap", (offset, state.floor - 1))
    return StreamStart(Offset(min(offset, state.end)), "complete")


def _end_of_epoch(state: PartitionState, epoch: int) -> int:
    """The offset at which an epoch's log ended; -1 for an epoch this log never had."""
    for index, start in enumerate(state.epochs):
        if start.epoch == epoch:
            return state.epochs[index + 1].start if index + 1 < len(state.epochs) else state.end
    return -1
