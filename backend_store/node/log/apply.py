"""Turns records into rows: absolute values and no reads, so that a record may be applied again.

Live traffic, recovery and (in a cluster) followers share this code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, assert_never

import msgspec

from backend_store.core.log.records import (
    AttemptsRecorded,
    ChunkAppended,
    ChunkDone,
    ChunkMarked,
    ChunkPassed,
    ExpirySet,
    GroupDropped,
    GroupRow,
    GroupStood,
    LeaseRecorded,
    MessagesCounted,
    OrderDropped,
    OrderReleased,
    PartitionState,
    Purged,
    Record,
    Rescheduled,
    Retry,
    RowParked,
    RowUnparked,
    Scheduled,
    Unscheduled,
)
from backend_store.core.log.sublogs import MAIN, VIEW_MAIN
from backend_store.core.reorder.records import (
    OrderRecord,
    ProducerAdvanced,
    ProducerForgotten,
    WatermarkRaised,
    decode_producer,
    decode_watermark,
    encode_producer,
    encode_watermark,
)
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.keys import (
    REPLICA_MAX,
    counted_key,
    group_key,
    lane_key,
    lease_key,
    log_key,
    log_range,
    mark_key,
    name_key,
    order_key,
    parked_key,
    producer_key,
    retry_key,
    schedule_key,
    timed_key,
)
from backend_store.storage.seal import seal, unseal

_MARK = struct.Struct(">BH")
_MARK_VERSION = 1
_PLACE = struct.Struct(">QB")
_NAMED = struct.Struct(">BQB")
ROWS_PER_READ = 256
_encode = msgspec.msgpack.Encoder().encode
_attempts = msgspec.msgpack.Decoder(dict[int, Retry])
_state = msgspec.msgpack.Decoder(PartitionState)
_group = msgspec.msgpack.Decoder(GroupRow)


def state_key(replica: int) -> bytes:
    return b"state/" + replica.to_bytes(4, "big")


def entry_place(replica: int, shelf: int, base: int) -> tuple[Table, bytes]:
    """Table and key of an entry: the main shelf has a table of its own."""
    if shelf == MAIN:
        return Table.LOG, log_key(replica, base)
    return Table.LANES, lane_key(replica, shelf, base)


def stage(batch: Batch, replica: int, records: Iterable[Record]) -> None:
    """Adds the records' rows to the batch."""
    for record in records:
        match record:
            case ChunkAppended(shelf, base, data):
                table, key = entry_place(replica, shelf, base)
                batch.put(table, key, data)
            case ChunkMarked(view, base, messages, settled, started):
                key = mark_key(replica, view, base)
                batch.put(Table.MARKS, key, seal(key, encode_mark(messages, settled, started)))
            case AttemptsRecorded(view, base, attempts):
                key = retry_key(replica, view, base)
                batch.put(Table.RETRY, key, seal(key, _encode(attempts)))
            case ChunkDone(view, shelf, base):
                batch.delete(*entry_place(replica, shelf, base))
                batch.delete(Table.MARKS, mark_key(replica, view, base))
                batch.delete(Table.RETRY, retry_key(replica, view, base))
            case Scheduled():
                _stage_schedule(batch, replica, record)
            case Rescheduled(shelf, base, due_ms, bits):
                _put_or_delete(batch, Table.DUE, timed_key(replica, due_ms, base), encode_bits(shelf, bits))
            case Unscheduled(base, dues, hashes):
                for due_ms in dues:
                    batch.delete(Table.DUE, timed_key(replica, due_ms, base))
                for name in hashes:
                    batch.delete(Table.BY_ID, name_key(replica, name))
                batch.delete(Table.BY_ID, schedule_key(replica, base))
            case ExpirySet(shelf, base, before_ms, expires_ms):
                if before_ms:
                    batch.delete(Table.EXPIRY, timed_key(replica, before_ms, base))
                if expires_ms:
                    key = timed_key(replica, expires_ms, base)
                    batch.put(Table.EXPIRY, key, seal(key, bytes([shelf])))
            case LeaseRecorded(view, number, _, _, bits, _, _):
                row = _encode(_storable(record)) if bits else b""
                _put_or_delete(batch, Table.LEASES, lease_key(replica, view, number), row)
            case OrderReleased(number, is_head, places):
                key = order_key(replica, is_head, number)
                batch.put(Table.ORDER, key, seal(key, b"".join(_PLACE.pack(*place) for place in places)))
            case ChunkPassed(view, base):
                batch.delete(Table.MARKS, mark_key(replica, view, base))
                batch.delete(Table.RETRY, retry_key(replica, view, base))
            case GroupStood(row):
                key = group_key(replica, row.number)
                batch.put(Table.GROUPS, key, seal(key, _encode(row)))
            case GroupDropped(number):
                batch.delete(Table.GROUPS, group_key(replica, number))
            case MessagesCounted(base, messages):
                key = counted_key(replica, base)
                batch.put(Table.GROUPS, key, seal(key, messages.to_bytes(8, "big")))
            case OrderDropped(number, is_head):
                batch.delete(Table.ORDER, order_key(replica, is_head, number))
            case RowParked(lane, number, position, base, bits):
                key = parked_key(replica, lane, number, position)
                batch.put(Table.PARKED, key, seal(key, base.to_bytes(8, "big") + encode_bits(0, bits)))
            case RowUnparked(lane, number, position):
                batch.delete(Table.PARKED, parked_key(replica, lane, number, position))
            case Purged():
                pass  # the floor is in the state row; rows below it are swept afterwards
            case _:
                assert_never(record)


def _stage_schedule(batch: Batch, replica: int, record: Scheduled) -> None:
    shelf, base, times, names = record
    for due_ms, bits in times:
        key = timed_key(replica, due_ms, base)
        batch.put(Table.DUE, key, seal(key, encode_bits(shelf, bits)))
    for name, index in names:
        key = name_key(replica, name)
        batch.put(Table.BY_ID, key, seal(key, _NAMED.pack(shelf, base, index)))
    key = schedule_key(replica, base)
    batch.put(Table.BY_ID, key, seal(key, b"".join(due_ms.to_bytes(8, "big") for due_ms, _ in times)))


def read_schedule(engine: Engine, replica: int, base: int) -> list[int]:
    """The due times of a scheduled chunk's messages. Raises `StorageCorrupt`."""
    key = schedule_key(replica, base)
    row = engine.get(Table.BY_ID, key)
    data = b"" if row is None else unseal(key, row)
    return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]


def read_due_bits(engine: Engine, replica: int, base: int, due_ms: int) -> int:
    """Which messages of a chunk become ready at `due_ms`. Raises `StorageCorrupt`."""
    key = timed_key(replica, due_ms, base)
    row = engine.get(Table.DUE, key)
    return 0 if row is None else decode_bits(unseal(key, row))[1]


def read_name(engine: Engine, replica: int, name: bytes) -> tuple[int, int, int] | None:
    """(shelf, base, index) of the scheduled message with this hash of its id. Raises `StorageCorrupt`."""
    key = name_key(replica, name)
    row = engine.get(Table.BY_ID, key)
    if row is None:
        return None
    return decode_name(unseal(key, row))


def decode_name(row: bytes) -> tuple[int, int, int]:
    """(shelf, base, index)."""
    shelf, base, index = _NAMED.unpack(row)
    return shelf, base, index


def stage_order(batch: Batch, replica: int, records: Iterable[OrderRecord]) -> None:
    """Adds what a sorted queue remembers of its producers and its clock."""
    for record in records:
        match record:
            case ProducerAdvanced():
                key = producer_key(replica, record.producer)
                batch.put(Table.PRODUCERS, key, seal(key, encode_producer(record)))
            case ProducerForgotten(producer):
                batch.delete(Table.PRODUCERS, producer_key(replica, producer))
            case WatermarkRaised():
                key = producer_key(replica, "")
                batch.put(Table.PRODUCERS, key, seal(key, encode_watermark(record)))


def read_order(engine: Engine, replica: int) -> list[OrderRecord]:
    """What a sorted queue remembered. Raises `StorageCorrupt`: without it messages would come again, or never."""
    found: list[OrderRecord] = []
    start, end = log_range(replica)
    while rows := engine.scan(Table.PRODUCERS, start, end, ROWS_PER_READ):
        for key, row in rows:
            name = key[4:].decode("utf-8", "surrogatepass")
            data = unseal(key, row)
            found.append(decode_producer(name, data) if name else decode_watermark(data))
        start = rows[-1][0] + b"\0"
    return found


def _put_or_delete(batch: Batch, table: Table, key: bytes, value: bytes) -> None:
    if value:
        batch.put(table, key, seal(key, value))
    else:
        batch.delete(table, key)


def _storable(record: LeaseRecorded) -> tuple[int, int, str, int, bytes, int, str]:
    size = (record.bits.bit_length() + 7) // 8
    return (
        record.view,
        record.number,
        record.token,
        record.base,
        record.bits.to_bytes(size, "little"),
        record.deadline_ms,
        record.gateway,
    )


def encode_bits(shelf: int, bits: int) -> bytes:
    """Some messages of a chunk; empty if there are none."""
    return bytes([shelf]) + bits.to_bytes((bits.bit_length() + 7) // 8, "little") if bits else b""


def decode_bits(row: bytes) -> tuple[int, int]:
    """(shelf, bits)."""
    return row[0], int.from_bytes(row[1:], "little")


def decode_places(row: bytes) -> list[tuple[int, int]]:
    """(base, index) pairs in the order of their release."""
    return [(base, index) for base, index in _PLACE.iter_unpack(row)]


class StoredLease(msgspec.Struct, array_like=True):
    view: int
    number: int
    token: str
    base: int
    bits: bytes
    deadline_ms: int
    gateway: str = ""


_lease_row = msgspec.msgpack.Decoder(StoredLease)


def decode_lease(row: bytes) -> StoredLease:
    return _lease_row.decode(row)


def stage_state(batch: Batch, replica: int, state: PartitionState) -> None:
    key = state_key(replica)
    batch.put(Table.META, key, seal(key, _encode(state)))


def read_state(engine: Engine, replica: int) -> PartitionState | None:
    """A partition's own row. Raises `StorageCorrupt`: without it the end of the log is unknown."""
    key = state_key(replica)
    row = engine.get(Table.META, key)
    return None if row is None else _state.decode(unseal(key, row))


TIMED: Final = (Table.RETRY, Table.DUE, Table.EXPIRY)
"""Tables of messages that wait for a time."""


def replicas_in(engine: Engine, table: Table) -> set[int]:
    """The replicas with rows in a table: one read per replica, however many rows each has."""
    found: set[int] = set()
    start, end = log_range(0)[0], log_range(REPLICA_MAX)[1]
    while (row := engine.first_at_or_above(table, start, end)) is not None:
        replica = int.from_bytes(row[0][:4])
        found.add(replica)
        start = log_range(replica)[1]
    return found


def read_mark(engine: Engine, replica: int, base: int, view: int = VIEW_MAIN) -> tuple[int, int]:
    """(settled, started) bits of a chunk; (0, 0) if it has no row. Raises `StorageCorrupt`."""
    key = mark_key(replica, view, base)
    row = engine.get(Table.MARKS, key)
    return (0, 0) if row is None else decode_mark(unseal(key, row))


def read_attempts(engine: Engine, replica: int, base: int, view: int = VIEW_MAIN) -> dict[int, Retry]:
    """What is stored about a chunk's returned messages, by index. Raises `StorageCorrupt`."""
    key = retry_key(replica, view, base)
    row = engine.get(Table.RETRY, key)
    return {} if row is None else _attempts.decode(unseal(key, row))


def decode_group(key: bytes, stored: bytes) -> GroupRow:
    """Raises `StorageCorrupt`."""
    return _group.decode(unseal(key, stored))


def read_counted(engine: Engine, replica: int, offset: int) -> tuple[int, int] | None:
    """(base, messages before it) of the last count at or below an offset. Raises `StorageCorrupt`."""
    rows = engine.scan(Table.GROUPS, counted_key(replica, 0), counted_key(replica, offset + 1), 1, reverse=True)
    if not rows:
        return None
    key, stored = rows[0]
    return int.from_bytes(key[-8:], "big"), int.from_bytes(unseal(key, stored), "big")


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
