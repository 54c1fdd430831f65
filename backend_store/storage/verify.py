"""Verification after an unclean shutdown: reads every entry of the log once and moves broken ones out of the way.

A row that fails its check goes to QUARANTINE under its own key, with the reason, so that serving goes on and nothing is
thrown away. The caller supplies the check; rows come in the order of their keys, so a check that remembers its last row
notices missing ones too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from backend_store.storage.engine import Batch, Engine, Row, Table

Check = Callable[[bytes, bytes], str | None]
"""(key, value) → why the row is broken, or None."""

ENTRY_TABLES = (Table.LOG, Table.LANES)
ROWS_PER_READ = 64
ROWS_PER_COMMIT = 64
QUARANTINED_LISTED_MAX = 100
REASON_BYTES_MAX = 1000
_KEY_END = b"\xff" * 16


@dataclass(frozen=True, slots=True)
class VerifyReport:
    rows: int
    value_bytes: int
    quarantined: int
    listed: tuple[tuple[bytes, str], ...]
    """(key, reason) of the first 100 quarantined rows."""


def verify(engine: Engine, check: Check) -> VerifyReport:
    """Reads all entries in short transactions. It commits itself, so it runs in the writer's place, or before there is
    one."""
    rows = size = quarantined = 0
    listed: list[tuple[bytes, str]] = []
    broken: list[tuple[Table, Row, str]] = []
    for table, (key, value) in _entries(engine):
        rows += 1
        size += len(value)
        reason = check(key, value)
        if reason is None:
            continue
        quarantined += 1
        broken.append((table, (key, value), reason))
        if len(listed) < QUARANTINED_LISTED_MAX:
            listed.append((key, reason))
        if len(broken) == ROWS_PER_COMMIT:
            _quarantine(engine, broken)
            broken = []
    if broken:
        _quarantine(engine, broken)
    return VerifyReport(rows, size, quarantined, tuple(listed))


def first_broken(engine: Engine, check: Check) -> tuple[bytes, str] | None:
    """(key, reason) of the first entry that fails; changes nothing."""
    for _, (key, value) in _entries(engine):
        reason = check(key, value)
        if reason is not None:
            return key, reason
    return None


def _entries(engine: Engine) -> Iterator[tuple[Table, Row]]:
    for table in ENTRY_TABLES:
        for row in walk(engine, table):
            yield table, row


def walk(engine: Engine, table: Table) -> Iterator[Row]:
    """All rows of a table in order, 64 per read transaction, so that no page is pinned for long."""
    start = b"\x00"
    while found := engine.scan(table, start, _KEY_END, ROWS_PER_READ):
        yield from found
        start = found[-1][0] + b"\x00"


def quarantine_value(reason: str, value: bytes) -> bytes:
    """Length of the reason (u16), the reason in UTF-8, the row's value unchanged."""
    text = reason.encode()[:REASON_BYTES_MAX]
    return len(text).to_bytes(2) + text + value


def parse_quarantine_value(stored: bytes) -> tuple[str, bytes]:
    """(reason, the row's value unchanged)."""
    end = 2 + int.from_bytes(stored[:2])
    return stored[2:end].decode(errors="replace"), stored[end:]


def _quarantine(engine: Engine, broken: list[tuple[Table, Row, str]]) -> None:
    batch = Batch()
    for table, (key, value), reason in broken:
        batch.put(Table.QUARANTINE, key, quarantine_value(reason, value))
        batch.delete(table, key)
    engine.commit(batch, lambda: None)
