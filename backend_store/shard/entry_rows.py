"""The rows of a shard's log entry on the disk: the entry, the rows that it writes, and the values that these replaced.

What a node commits at once is one entry. The entry is stored in the same transaction as its rows, so that the state is
always that of the whole log. While an entry is not final, the values that it replaced are stored beside it; truncating
the log restores them, the last entry first. Everything is in one table, by key:

    e OFFSET  the entry       u OFFSET  the values it replaced      k ...  quarantined messages: see `quarantine`
    stored    the log's row   disk      name of this copy
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from backend_store.core.log.chunk import ENTRY_HEADER_BYTES
from backend_store.core.replication.entries import Entry, decode
from backend_store.core.replication.log import StoredLog
from backend_store.model import Offset
from backend_store.shard import quarantine
from backend_store.shard.limits import TRIM_BYTES_MAX, TRIM_ROWS_MAX
from backend_store.storage.engine import Batch, Changes, Row, Rows, Table
from backend_store.storage.keys import META_DISK_ID, META_FORMAT, META_RUNNING
from backend_store.storage.seal import seal, unseal

STORED: Final = b"stored"
DISK: Final = b"disk"
LOCAL: Final = frozenset({META_DISK_ID, META_FORMAT, META_RUNNING})
"""Rows of META that belong to this folder, and to no log."""
_ROWS_PER_READ: Final = 64
_TRIM_ROWS_PER_READ: Final = 8
"""Fewer: an entry may be big, and its value is read although only its key is needed."""
_KEY = struct.Struct(">cQ")
_END: Final = 2**64 - 1

Written = list[tuple[str, list[tuple[bytes, bytes | None]]]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Written).decode
_decode_stored = msgspec.msgpack.Decoder(StoredLog).decode
_TABLES: Final = {table.value: table for table in Table}


def entry_key(offset: int) -> bytes:
    return _KEY.pack(b"e", offset)


def undo_key(offset: int) -> bytes:
    return _KEY.pack(b"u", offset)


def payload_of(batch: Batch) -> bytes:
    """The payload of an entry: the batch's rows with absolute values."""
    return _encode([(table.value, list(rows.items())) for table, rows in batch.rows.items()])


def rows_of(payload: bytes) -> dict[Table, Rows]:
    """The inverse of `payload_of`. A barrier has no rows. Raises `msgspec.MsgspecError`, `KeyError`."""
    return {_TABLES[name]: dict(rows) for name, rows in _decode(payload)} if payload else {}


class Stored(NamedTuple):
    """An entry, with its rows where the caller has them."""

    entry: Entry
    rows: dict[Table, Rows] | None = None


def append(changes: Changes, stored: Stored) -> None:
    """Stores the entry, writes its rows and keeps the values that these replace."""
    entry = stored.entry
    tables = rows_of(entry.payload) if stored.rows is None else stored.rows
    replaced: Written = []
    for table, rows in tables.items():
        replaced.append((table.value, [(key, changes.get(table, key)) for key in rows]))
        _put(changes, table, rows)
    changes.put_all(
        Table.REPLICATION,
        [(entry_key(entry.offset), entry.data), _sealed(undo_key(entry.offset), _encode(replaced))],
    )


class Keeping(NamedTuple):
    """How a tail is quarantined: its shard, the tally to update, the wall-clock time, and the leader's log as for
    `quarantine.keep`."""

    shard: int
    tally: quarantine.Tally
    now_ms: int
    base: quarantine.Base | None = None


def truncate(changes: Changes, end: int, keeping: Keeping | None = None) -> None:
    """Restores what the entries from `end` on replaced, and deletes the entries. With `keeping`, messages confirmed in
    them are quarantined. Raises `StorageCorrupt`, `CorruptEntry`."""
    if keeping is not None:
        keep(changes, end, keeping)
    while found := changes.scan(Table.REPLICATION, undo_key(end), undo_key(_END), _ROWS_PER_READ, reverse=True):
        for key, value in found:
            for name, rows in _decode(unseal(key, value)):
                _put(changes, _TABLES[name], dict(rows))
            changes.delete(Table.REPLICATION, key)
    while found := changes.scan(Table.REPLICATION, entry_key(end), entry_key(_END), _ROWS_PER_READ):
        for key, _ in found:
            changes.delete(Table.REPLICATION, key)


def keep(changes: Changes, end: int, keeping: Keeping) -> None:
    """Quarantines the messages confirmed in the entries from `end` on; the entries stay."""
    shard, tally, now_ms, base = keeping
    quarantine.keep(changes, _tail(changes, end), tally, shard=shard, now_ms=now_ms, base=base)


def _tail(changes: Changes, end: int) -> quarantine.Tail:
    """The entries from the last one down to `end`."""
    stop = entry_key(_END)
    while found := changes.scan(Table.REPLICATION, entry_key(end), stop, _TRIM_ROWS_PER_READ, reverse=True):
        for key, data in found:
            undo = undo_key(_KEY.unpack(key)[1])
            stored = changes.get(Table.REPLICATION, undo)
            replaced = None
            if stored is not None:
                replaced = {_TABLES[name]: dict(rows) for name, rows in _decode(unseal(undo, stored))}
            yield data, rows_of(data[ENTRY_HEADER_BYTES:]), replaced
        stop = found[-1][0]


def settle(changes: Changes, end: int) -> None:
    """Makes the entries below `end` final: they cannot be undone any more."""
    _delete_range(changes, undo_key(0), undo_key(end))


def trim(changes: Changes, start: int) -> None:
    """Deletes the log below `start`, or as much of it as one commit may delete; the state's rows stay. See
    `has_below`."""
    rows = size = 0
    for key_of in (undo_key, entry_key):
        while found := changes.scan(Table.REPLICATION, key_of(0), key_of(start), _TRIM_ROWS_PER_READ):
            for key, value in found:
                if rows == TRIM_ROWS_MAX or size >= TRIM_BYTES_MAX:
                    return
                changes.delete(Table.REPLICATION, key)
                rows += 1
                size += len(value)


def has_below(changes: Changes, start: int) -> bool:
    """Whether part of the log below `start` is still to be deleted."""
    keys = undo_key, entry_key
    return any(changes.scan(Table.REPLICATION, key_of(0), key_of(start), 1) for key_of in keys)


def put_stored(changes: Changes, stored: StoredLog) -> None:
    changes.put_all(Table.REPLICATION, [_sealed(STORED, _encode(stored))])


def put_disk(changes: Changes, name: str) -> None:
    changes.put_all(Table.REPLICATION, [_sealed(DISK, name.encode())])


def stored_of(changes: Changes) -> StoredLog:
    """Raises `StorageCorrupt`."""
    row = changes.get(Table.REPLICATION, STORED)
    return StoredLog() if row is None else _decode_stored(unseal(STORED, row))


def disk_of(changes: Changes) -> str:
    """Returns "" where this copy has no name yet. Raises `StorageCorrupt`."""
    row = changes.get(Table.REPLICATION, DISK)
    return "" if row is None else unseal(DISK, row).decode()


def entries_from(changes: Changes, start: int, end: int, bytes_max: int, *, partition: int) -> list[Entry]:
    """Verified entries from `start` on, below `end`: at least one, then as many as fit in `bytes_max`. Raises
    `CorruptEntry`."""
    found: list[Entry] = []
    size = 0
    while rows := changes.scan(Table.REPLICATION, entry_key(start), entry_key(end), _ROWS_PER_READ):
        for _, data in rows:
            size += len(data)
            if found and size > bytes_max:
                return found
            found.append(decode(data, partition=partition))
        start = found[-1].end
    return found


def not_final(changes: Changes, applied: Offset) -> dict[Table, Rows]:
    """The previous values of the rows that entries from `applied` on have replaced."""
    before: dict[Table, Rows] = {}
    start = undo_key(applied)
    while found := changes.scan(Table.REPLICATION, start, undo_key(_END), _ROWS_PER_READ):
        for key, value in found:
            for name, rows in _decode(unseal(key, value)):
                known = before.setdefault(_TABLES[name], {})
                for row_key, row in rows:
                    known.setdefault(row_key, row)
        start = found[-1][0] + b"\0"
    return before


def _put(changes: Changes, table: Table, rows: Rows) -> None:
    puts = [(key, value) for key, value in rows.items() if value is not None]
    if puts:
        changes.put_all(table, puts)
    if len(puts) < len(rows):
        for key, value in rows.items():
            if value is None:
                changes.delete(table, key)


def _delete_range(changes: Changes, start: bytes, end: bytes) -> None:
    while found := changes.scan(Table.REPLICATION, start, end, _ROWS_PER_READ):
        for key, _ in found:
            changes.delete(Table.REPLICATION, key)


def _sealed(key: bytes, row: bytes) -> Row:
    return key, seal(key, row)


Step = Callable[[Changes], None]
"""One of the functions above, as a part of a commit."""
