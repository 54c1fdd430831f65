"""Pages of a snapshot: the final rows of a shard, in the order of their tables and keys.

A leader's disk also has rows of entries that are not final. A page has their previous values instead.
"""

from __future__ import annotations

from typing import Final

from backend_store.core.replication.limits import SNAPSHOT_BYTES_MAX, SNAPSHOT_ROWS_MAX
from backend_store.core.replication.messages import Row
from backend_store.model import Offset
from backend_store.shard.entry_rows import LOCAL, not_final
from backend_store.storage.engine import Changes, Rows, Table

_TABLES: Final = sorted((table for table in Table if table is not Table.REPLICATION), key=lambda table: table.value)
_BY_NAME: Final = {table.value.encode(): table for table in _TABLES}
_LAST: Final = b"\xff" * 512
_READ: Final = 128


def read_page(changes: Changes, after: bytes, applied: Offset) -> tuple[tuple[Row, ...], bool]:
    """(rows after the key `after`, whether they are the last ones), without any effect of entries from `applied` on."""
    before = not_final(changes, applied)
    name, _, key = after.partition(b"\0")
    page: list[Row] = []
    size = 0
    for table in _TABLES:
        this = table.value.encode()
        if this < name:
            continue
        start = key + b"\0" if this == name else b""
        while True:
            rows = _rows(changes, table, start, before.get(table, {}))
            for row_key, value in rows:
                if size and (len(page) >= SNAPSHOT_ROWS_MAX or size + len(value) > SNAPSHOT_BYTES_MAX):
                    return tuple(page), False
                page.append((this + b"\0" + row_key, value))
                size += len(value) + len(row_key)
            found = changes.scan(table, start, _LAST, _READ)
            if len(found) < _READ:
                break
            start = found[-1][0] + b"\0"
    return tuple(page), True


def _rows(changes: Changes, table: Table, start: bytes, before: Rows) -> list[Row]:
    """The final ones of a table's next rows."""
    found = changes.scan(table, start, _LAST, _READ)
    end = found[-1][0] if len(found) == _READ else _LAST
    rows = dict(found)
    for key, value in before.items():
        if start <= key <= end:
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
    return sorted(row for row in rows.items() if not (table is Table.META and row[0] in LOCAL))


def parse_row(row: Row) -> tuple[Table, Row]:
    """Raises `KeyError` for a table that this program does not know."""
    name, _, key = row[0].partition(b"\0")
    return _BY_NAME[name], (key, row[1])
