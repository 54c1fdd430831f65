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
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.keys import log_key, mark_key, retry_key
from backend_store.storage.seal import seal, unseal

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
                key = mark_key(replica, DEFAULT_GROUP, base)
                batch.put(Table.MARKS, key, seal(key, encode_mark(messages, settled, started)))
            case AttemptsRecorded(base, attempts):
                key = retry_key(replica, DEFAULT_GROUP, base)
                batch.put(Table.RETRY, key, seal(key, _encode(attempts)))
            case ChunkDone(base):
                batch.delete(Table.LOG, log_key(replica, base))
                batch.delete(Table.MARKS, mark_key(replica, DEFAULT_GROUP, base))
                batch.delete(Table.RETRY, retry_key(replica, DEFAULT_GROUP, base))
            case Purged():
                pass  # The floor is in the state row; the rows below it are swept afterwards.
            case _:
                assert_never(record)


def stage_state(batch: Batch, replica: int, state: PartitionState) -> None:
    key = state_key(replica)
    batch.put(Table.META, key, seal(key, _encode(state)))


def read_state(engine: Engine, replica: int) -> PartitionState | None:
    """A partition's own row. Raises `StorageCorrupt`: without it nobody knows where the log ends."""
    key = state_key(replica)
    row = engine.get(Table.META, key)
    return None if row is None else _state.decode(unseal(key, row))


def read_mark(engine: Engine, replica: int, base: int) -> tuple[int, int]:
    """(settled, started) bits of a chunk; one without a row has none. Raises `StorageCorrupt`."""
    key = mark_key(replica, DEFAULT_GROUP, base)
    row = engine.get(Table.MARKS, key)
    return (0, 0) if row is None else decode_mark(unseal(key, row))


def read_attempts(engine: Engine, replica: int, base: int) -> dict[int, tuple[int, int]]:
    """index → (attempts started, due in ms or 0). Raises `StorageCorrupt`."""
    key = retry_key(replica, DEFAULT_GROUP, base)
    row = engine.get(Table.RETRY, key)
    return {} if row is None else _attempts.decode(unseal(key, row))


def encode_mark(count: int, settled: int, started: int) -> bytes:
    size = (count + 7) // 8
    return _MARK.pack(_MARK_VERSION, count) + settled.to_bytes(size, "little") + started.to_bytes(size, "little")


def decode_mark(data: bytes) -> tuple[int, int]:
    """(settled, started) bits."""
    version, count = _MARK.unpack_from(data)
    if version != _MARK_VERSION:
        raise ValueError(f"mark version {version}: this program reads version {_MARK_VERSION}")
    size = (count + 7) // 8
    at = _MARK.size
    return int.from_bytes(data[at : at + size], "little"), int.from_bytes(data[at + size : at + 2 * size], "little")
