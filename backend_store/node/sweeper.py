"""Deletes the rows of purged and deleted queues, a few a commit, so that nobody waits behind them.

What is to be swept is itself a row, written with the purge or the deletion, so a restart goes on where a crash stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from backend_store.node.limits import SWEEP_ROWS_PER_COMMIT
from backend_store.storage.engine import Batch, Engine, StorageCorrupt, Table
from backend_store.storage.keys import log_key, mark_key, parse_log_key, retry_key
from backend_store.storage.seal import seal, unseal

log = structlog.get_logger("pushq.sweeper")

GARBAGE = b"garbage/"
MARKS_PER_READ = 100


def add_garbage(batch: Batch, replica: int, below: int) -> None:
    """Marks the replica's rows below an offset for sweeping. Each mark is a row of its own: one that is done with can
    go without taking along another that a purge sets at the same moment.
    """
    key = GARBAGE + log_key(replica, below)
    batch.put(Table.META, key, seal(key, b""))


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
                        await self._sweep(*parse_log_key(key[len(GARBAGE) :]))
                    except StorageCorrupt as error:
                        log.error("a mark of what to sweep is broken: nothing is deleted for it", reason=str(error))
                    await self._finish(key)

    async def _sweep(self, replica: int, below: int) -> None:
        swept = 0
        for table, start, end in (
            (Table.LOG, log_key(replica, 0), log_key(replica, below)),
            (Table.MARKS, mark_key(replica, 0, 0), mark_key(replica, 0, below)),
            (Table.RETRY, retry_key(replica, 0, 0), retry_key(replica, 0, below)),
        ):
            while rows := self._engine.scan(table, start, end, SWEEP_ROWS_PER_COMMIT):
                batch = Batch()
                for row_key, _ in rows:
                    batch.delete(table, row_key)
                await self._write(batch)
                swept += len(rows)
                await asyncio.sleep(0)
        log.info("swept", replica=replica, below=below, rows=swept)

    async def _finish(self, key: bytes) -> None:
        batch = Batch()
        batch.delete(Table.META, key)
        await self._write(batch)
