"""Deletes the rows of purged and deleted queues, a few a commit, so that nobody waits behind them.

What is to be swept is itself a row, written with the purge or the deletion, so a restart goes on where a crash stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from backend_store.core.shelves import MAIN_SHELVES, SHELF_OF_VIEW, VIEW_GROUPS, VIEW_MAIN
from backend_store.node.limits import SWEEP_ROWS_PER_COMMIT
from backend_store.storage.engine import Batch, Engine, StorageCorrupt, Table
from backend_store.storage.keys import (
    counted_key,
    lane_key,
    log_key,
    log_range,
    mark_key,
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
"""As `below`: all of a replica, because its queue is gone."""
ALL_OF_VIEW = EVERYTHING - 1
"""As `below`: all of a view, because its group is gone or has another number."""


def add_garbage(batch: Batch, replica: int, below: int, view: int = VIEW_MAIN) -> None:
    """Marks a view's rows below an offset for sweeping, or with `EVERYTHING` all of the replica's. Each mark is a row
    of its own: one that is done with can go without taking along another that a purge sets at the same moment.
    """
    key = GARBAGE + mark_key(replica, view, below)
    batch.put(Table.META, key, seal(key, b""))


def _parse(name: bytes) -> tuple[int, int, int]:
    """(replica, view, below); marks of the first format name no view."""
    if len(name) == len(log_key(0, 0)):
        replica, below = parse_log_key(name)
        return replica, VIEW_MAIN, below
    return parse_mark_key(name)


class Range(NamedTuple):
    """Rows to delete: all between two keys whose last eight bytes, their offset, are below a bound."""

    table: Table
    start: bytes
    end: bytes
    below: int = EVERYTHING


def ranges(replica: int, view: int, below: int) -> list[Range]:
    """What belongs to a view of a replica below an offset."""
    if below >= EVERYTHING:
        whole = log_range(replica)
        return [Range(table, *whole) for table in Table if table not in (Table.META, Table.QUARANTINE)]
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
    return found


class Sweeper:
    def __init__(self, engine: Engine, write: Callable[[Batch], Awaitable[None]]):
        self._engine = engine
        self._write = write
        self._wake = asyncio.Event()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while marks := self._engine.scan(Table.META, GARBAGE, GARBAGE[:-1] + b"0", MARKS_PER_READ):
                for key, row in marks:
                    try:
                        unseal(key, row)
                        await self._sweep(*_parse(key[len(GARBAGE) :]))
                    except StorageCorrupt as error:
                        log.error("a mark of what to sweep is broken: nothing is deleted for it", reason=str(error))
                    await self._finish(key)

    async def _sweep(self, replica: int, view: int, below: int) -> None:
        swept = 0
        for table, start, end, bound in ranges(replica, view, below):
            while rows := self._engine.scan(table, start, end, SWEEP_ROWS_PER_COMMIT):
                batch = Batch()
                for row_key, _ in rows:
                    if bound >= EVERYTHING or int.from_bytes(row_key[-8:], "big") < bound:
                        batch.delete(table, row_key)
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
