"""Garbage collector: deletes rows of purged and deleted queues, a few per commit, so that it delays no other work.

Each mark of what to delete is itself a row, written with the purge or deletion, so a restart continues where a crash
stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from backend_store.core.log.sublogs import MAIN_SHELVES, SHELF_OF_VIEW, VIEW_GROUPS, VIEW_MAIN
from backend_store.model import PushqError
from backend_store.node.limits import SWEEP_ROWS_PER_COMMIT
from backend_store.node.log.apply import decode_lease, decode_name, decode_places
from backend_store.storage.engine import Batch, Engine, Row, StorageCorrupt, Table
from backend_store.storage.keys import (
    counted_key,
    lane_key,
    log_key,
    log_range,
    mark_key,
    name_range,
    parked_range,
    parse_log_key,
    parse_mark_key,
    retry_key,
    schedule_key,
    view_range,
)
from backend_store.storage.seal import seal, unseal

log = structlog.get_logger("pushq.sweeper")

GARBAGE = b"garbage/"
MARKS_PER_READ = 100


EVERYTHING = 1 << 63
"""As `below`: everything of a replica, because its queue is deleted."""
NODE_TABLES = (Table.META, Table.QUARANTINE, Table.USAGE)
"""Their keys do not begin with a replica, or their rows outlast it."""
ALL_OF_VIEW = EVERYTHING - 1
"""As `below`: everything of a view, because its group is deleted or renumbered."""


def add_garbage(batch: Batch, replica: int, below: int, view: int = VIEW_MAIN) -> None:
    """Marks a view's rows below an offset for deletion, or with `EVERYTHING` all of the replica's. Each mark is a row
    of its own, so that a finished one can be deleted without another that a purge sets at the same moment.
    """
    key = GARBAGE + mark_key(replica, view, below)
    batch.put(Table.META, key, seal(key, b""))


def _parse(name: bytes) -> tuple[int, int, int]:
    """(replica, view, below); marks of the first format name no view."""
    if len(name) == len(log_key(0, 0)):
        replica, below = parse_log_key(name)
        return replica, VIEW_MAIN, below
    return parse_mark_key(name)


def _by_key(key: bytes, row: bytes) -> int:
    """The offset that a row is about: the end of its key."""
    return int.from_bytes(key[-8:], "big")


class Range(NamedTuple):
    """Rows to delete: those between two keys that are about an offset below a bound."""

    table: Table
    start: bytes
    end: bytes
    below: int = EVERYTHING
    offset: Callable[[bytes, bytes], int] = _by_key

    def covers(self, key: bytes, row: bytes) -> bool:
        return self.below >= EVERYTHING or self.offset(key, row) < self.below


def ranges(replica: int, view: int, below: int) -> list[Range]:
    """The rows of a view of a replica below an offset."""
    if below >= EVERYTHING:
        whole = log_range(replica)
        return [Range(table, *whole) for table in Table if table not in NODE_TABLES]
    found = [
        Range(Table.MARKS, mark_key(replica, view, 0), mark_key(replica, view, below)),
        Range(Table.RETRY, retry_key(replica, view, 0), retry_key(replica, view, below)),
    ]
    if view >= VIEW_GROUPS:
        if below == ALL_OF_VIEW:
            found.append(Range(Table.LEASES, *view_range(replica, view)))
            found.append(Range(Table.PARKED, *parked_range(replica, view)))
        return found
    if view != VIEW_MAIN:
        shelf = SHELF_OF_VIEW[view]
        return [*found, Range(Table.LANES, lane_key(replica, shelf, 0), lane_key(replica, shelf, below))]
    found.append(Range(Table.GROUPS, counted_key(replica, 0), counted_key(replica, below)))
    found.append(Range(Table.LOG, log_key(replica, 0), log_key(replica, below)))
    found += [
        Range(Table.LANES, lane_key(replica, shelf, 0), lane_key(replica, shelf, below)) for shelf in MAIN_SHELVES
    ]
    times = log_range(replica)
    found += [Range(Table.DUE, *times, below), Range(Table.EXPIRY, *times, below)]
    found.append(Range(Table.BY_ID, schedule_key(replica, 0), schedule_key(replica, below)))
    found.append(Range(Table.BY_ID, *name_range(replica), below, _of_name))
    found.append(Range(Table.LEASES, *view_range(replica, view), below, _of_lease))
    found.append(Range(Table.ORDER, *log_range(replica), below, _of_batch))
    return found


def _of_name(key: bytes, row: bytes) -> int:
    """A row that does not verify is about offset 0: deleted."""
    try:
        return decode_name(unseal(key, row))[1]
    except StorageCorrupt:
        return 0


def _of_batch(key: bytes, row: bytes) -> int:
    """A purge takes all messages of a released batch, or none."""
    try:
        return decode_places(unseal(key, row))[0][0]
    except StorageCorrupt:
        return 0


def _of_lease(key: bytes, row: bytes) -> int:
    try:
        return decode_lease(unseal(key, row)).base
    except StorageCorrupt:
        return 0


def is_swept(engine: Engine, replica: int) -> bool:
    """Whether all rows of an earlier queue stored under this number are deleted."""
    key = GARBAGE + mark_key(replica, VIEW_MAIN, EVERYTHING)
    return engine.get(Table.META, key) is None


class GarbageCollector:
    """A node's one background task that deletes marked rows."""

    def __init__(self, engine: Engine, write: Callable[[Batch], Awaitable[None]]):
        self._engine = engine
        self._write = write
        self._wake = asyncio.Event()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        failed: set[bytes] = set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while marks := [mark for mark in self._marks() if mark[0] not in failed]:
                for key, row in marks:
                    try:
                        unseal(key, row)
                        await self._sweep(*_parse(key[len(GARBAGE) :]))
                    except StorageCorrupt as error:
                        log.error("a mark of what to sweep is broken: nothing is deleted for it", reason=str(error))
                    except PushqError:
                        raise  # the store is closed
                    except Exception:
                        # A bug with one queue's rows must not leave those of all others on disk.
                        log.exception("what is to be swept stays until the next start", key=key.hex())
                        failed.add(key)
                        continue
                    await self._finish(key)

    def _marks(self) -> list[Row]:
        return self._engine.scan(Table.META, GARBAGE, GARBAGE[:-1] + b"0", MARKS_PER_READ)

    async def _sweep(self, replica: int, view: int, below: int) -> None:
        swept = 0
        for part in ranges(replica, view, below):
            table, start, end = part.table, part.start, part.end
            while rows := self._engine.scan(table, start, end, SWEEP_ROWS_PER_COMMIT):
                batch = Batch()
                for key, row in rows:
                    if part.covers(key, row):
                        batch.delete(table, key)
                if batch:
                    await self._write(batch)
                swept += sum(map(len, batch.rows.values()))
                start = rows[-1][0] + b"\0"
                await asyncio.sleep(0)
        log.info("swept", replica=replica, view=view, below=below, rows=swept)

    async def _finish(self, key: bytes) -> None:
        batch = Batch()
        batch.delete(Table.META, key)
        await self._write(batch)
