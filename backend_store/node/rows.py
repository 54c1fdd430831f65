"""Turns records into rows. Blind: absolute values, no reads, so that a record may be applied again.

Live traffic, recovery and (in a cluster) followers share it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import assert_never

import msgspec

from backend_store.core.records import (
    AttemptsRecorded,
    ChunkAppended,
    ChunkDone,
    ChunkMarked,
    PartitionState,
    Purged,
    Record,
)
from backend_store.core.work import DEFAULT_GROUP
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_key, mark_key, retry_key

_MARK = struct.Struct(">BH")
_MARK_VERSION = 1
_encode = msgspec.msgpack.Encoder().encode
_attempts = msgspec.msgpack.Decoder(dict[int, tuple[int, int]])
_state = msgspec.msgpack.Decoder(PartitionState)


def state_key(replica: int) -> bytes:
    return b"state/" + replica.to_bytes(4, "big")


def stage(batch: Batch, replica: int, records: Iterable[Record]) -> None:
    """Adds the records' rows to the batch."""
    for record in records:
        match record:
            case ChunkAppended(base, data):
                batch.put(Table.LOG, log_key(replica, base), data)
            case ChunkMarked(base, messages, settled, started):
                batch.put(Table.MARKS, mark_key(replica, DEFAULT_GROUP, base), encode_mark(messages, settled, started))
            case AttemptsRecorded(base, attempts):
                batch.put(Table.RETRY, retry_key(replica, DEFAULT_GROUP, base), _encode(attempts))
            case ChunkDone(base):
                batch.delete(Table.LOG, log_key(replica, base))
                batch.delete(Table.MARKS, mark_key(replica, DEFAULT_GROUP, base))
                batch.delete(Table.RETRY, retry_key(replica, DEFAULT_GROUP, base))
            case Purged():
                pass  # The floor is in the state row; the rows below it are swept afterwards.
            case _:
                assert_never(record)


def stage_state(batch: Batch, replica: int, state: PartitionState) -> None:
    batch.put(Table.META, state_key(replica), _encode(state))


def decode_state(data: bytes) -> PartitionState:
    return _state.decode(data)


def encode_mark(count: int, settled: int, started: int) -> bytes:
    size = (count + 7) // 8
    return _MARK.pack(_MARK_VERSION, count) + settled.to_bytes(size, "little") + started.to_bytes(size, "little")


def decode_mark(data: bytes | None) -> tuple[int, int]:
    """(settled, started) bits; a chunk without a row has none."""
    if data is None:
        return 0, 0
    version, count = _MARK.unpack_from(data)
    if version != _MARK_VERSION:
        raise ValueError(f"mark version {version}: this program reads version {_MARK_VERSION}")
    size = (count + 7) // 8
    at = _MARK.size
    return int.from_bytes(data[at : at + size], "little"), int.from_bytes(data[at + size : at + 2 * size], "little")


def decode_attempts(data: bytes | None) -> dict[int, tuple[int, int]]:
    return {} if data is None else _attempts.decode(data)
