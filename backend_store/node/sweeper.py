"""Deletes the rows of purged and deleted queues, a few a commit, so that nobody waits behind them.

What is to be swept is itself a row, written with the purge or the deletion, so a restart goes on where a crash stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from backend_store.node.limits import SWEEP_ROWS_PER_COMMIT
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.keys import log_key, mark_key, retry_key

log = structlog.get_logger("pushq.sweeper")

GARBAGE = b"garbage/"


def garbage_key(replica: int) -> bytes:
    return GARBAGE + replica.to_bytes(4, "big")


def add_garbage(batch: Batch, replica: int, below: int) -> None:
    """Marks the replica's rows below an offset for sweeping. A later, higher mark replaces an earlier one."""
    batch.put(Table.META, garbage_key(replica), below.to_bytes(8, "big"))


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
            for key, value in self._engine.scan(Table.META, GARBAGE, GARBAGE[:-1] + b"0", 1000):
                replica, below = int.from_bytes(key[len(GARBAGE) :], "big"), int.from_bytes(value, "big")
                await self._sweep(replica, below)
                await self._finish(key, value)

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

    async def _finish(self, key: bytes, value: bytes) -> None:
        """Drops the mark, unless a later purge has raised it meanwhile; then there is more to do."""
        if self._engine.get(Table.META, key) != value:
            self._wake.set()
            return
        batch = Batch()
        batch.delete(Table.META, key)
        await self._write(batch)
