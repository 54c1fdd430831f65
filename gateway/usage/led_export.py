"""Exports the ledger and the audit of every shard that a backend leads, for as long as it leads it.

Rows belong to the shard: the next leader has them until a file of some leader has them, and writes rows that may be in
no file again, unchanged. Files of two leaders have different names, so a deposed leader that does not know it yet
cannot overwrite a file of its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from backend_store.client import AuditLog, LedgerBook
from backend_store.model import PushqError
from gateway.limits import USAGE_CLOSE_SECONDS_MAX, USAGE_LEAD_SECONDS_MAX
from gateway.usage.files import UsageFolder
from gateway.usage.store_export import StoreExport
from gateway.usage.writing import UsageWriter, Written, each_period

log = structlog.get_logger("pushq.usage")


class LedExports:
    """One export task per led shard; owned by the backend, which calls `lead`, `lose` and `close`."""

    def __init__(self, folder: Path, *, clock_ms: Callable[[], int], period_ms: int, bytes_max: int, kept_days: int):
        self._folder = folder
        self._clock_ms = clock_ms
        self._period_ms = period_ms
        self._bytes_max = bytes_max
        self._kept_days = kept_days
        self._led: dict[int, _Led] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The last task of each shard: its successor waits for its end, within a bound."""
        self.written = Written()

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest row of all shards led here has been waiting for a file."""
        return max((led.export.waiting_seconds for led in self._led.values()), default=0.0)

    def lead(self, shard: int, log_name: str, epoch: int, *, ledger: LedgerBook, audit: AuditLog) -> None:
        """Begins to export a shard. `log_name`: the name of the shard's log in its ledger rows, the same under any
        leader. `epoch`: of this leadership."""
        folder = UsageFolder(self._folder, log_name, epoch=epoch)
        writer = UsageWriter(folder, bytes_max=self._bytes_max, written=self.written)
        export = StoreExport(writer, ledger=ledger, audit=audit, clock_ms=self._clock_ms, kept_days=self._kept_days)
        led = self._led[shard] = _Led(shard, export, writer)
        before = self._tasks.get(shard)
        self._tasks[shard] = asyncio.get_running_loop().create_task(self._run(led, before), name=f"usage of {shard}")

    def lose(self, shard: int) -> None:
        """Stops exporting a shard that another backend leads. A file that is being written is completed."""
        if (led := self._led.pop(shard, None)) is not None:
            led.stopping.set()

    async def _run(self, led: _Led, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,), timeout=USAGE_LEAD_SECONDS_MAX)
            if not before.done():
                # The disk does not answer; a file that may still be written has its own name and is valid.
                log.warning("usage rows of an earlier leader are still being written", shard=led.shard)
                before.cancel()
        await each_period(led.turn, led.stopping, period_ms=self._period_ms, clock_ms=self._clock_ms)

    async def close(self) -> None:
        """Writes the last files of a clean stop, for the shards still led here."""
        left = list(self._led.items())
        for shard, _ in left:
            self.lose(shard)
        try:
            async with asyncio.timeout(USAGE_CLOSE_SECONDS_MAX):
                await asyncio.gather(*self._tasks.values())
                await asyncio.gather(*(led.turn() for _, led in left))
        except TimeoutError:
            log.warning("the last usage rows were not written in time: they stay in the store")
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class _Led:
    """One shard, while it is led."""

    def __init__(self, shard: int, export: StoreExport, writer: UsageWriter):
        self.shard = shard
        self.export = export
        self.stopping = asyncio.Event()
        self._writer = writer

    async def turn(self) -> None:
        try:
            await self.export.turn()
        except OSError as error:
            self._writer.failed(error)
        except PushqError as error:
            # Another backend leads the shard now, and has the rows.
            log.info("usage rows are waiting for a leader", shard=self.shard, reason=error.detail)
        except Exception as error:
            # A failure of one shard must not stop the export of others.
            log.exception("usage rows of a shard cannot be written", shard=self.shard)
            self._writer.failed(error)
