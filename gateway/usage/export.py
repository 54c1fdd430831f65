"""Exports usage rows to files, once a period: those of the ledger and the audit from the store, those of minutes from
memory.

Rows that cannot be written wait, and metrics show that; no row of the ledger or the audit is dropped. After any failure
the next turn tries again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

from backend_store.client import AuditLog, LedgerBook
from backend_store.model import PushqError
from gateway.limits import USAGE_CLOSE_SECONDS_MAX, USAGE_UNWRITTEN_ROWS_MAX
from gateway.usage.files import UsageFolder
from gateway.usage.meter import Meter
from gateway.usage.running import Running
from gateway.usage.schema import FileKind, MinuteRow
from gateway.usage.store_export import StoreExport
from gateway.usage.writing import UsageWriter, Written, each_period

log = structlog.get_logger("pushq.usage")


class Exporter:
    """The export of one process. One task owns it."""

    def __init__(
        self,
        folder: Path,
        node: str,
        *,
        ledger: LedgerBook,
        audit: AuditLog,
        meter: Meter,
        clock_ms: Callable[[], int],
        period_ms: int,
        bytes_max: int,
        kept_days: int,
    ):
        self.meter = meter
        self.written = Written()
        self._writer = UsageWriter(UsageFolder(folder, node), bytes_max=bytes_max, written=self.written)
        self._store = StoreExport(self._writer, ledger=ledger, audit=audit, clock_ms=clock_ms, kept_days=kept_days)
        self._running = Running(folder, node)
        self._clock_ms = clock_ms
        self._period_ms = period_ms
        self._unwritten: list[MinuteRow] = []
        self._has_begun = False
        self._stopping = asyncio.Event()
        self.rows_lost = 0
        """Rows of minutes that were dropped, as too many waited."""

    @property
    def files(self) -> Counter[FileKind]:
        return self.written.files

    @property
    def rows(self) -> Counter[FileKind]:
        return self.written.rows

    @property
    def failures(self) -> int:
        return self.written.failures

    @property
    def is_full(self) -> bool:
        return self.written.is_full

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest row of the ledger has been waiting for a file."""
        return self._store.waiting_seconds

    async def run(self) -> None:
        """Writes what waits, at once and at whole periods of the clock, until `stop`."""
        await each_period(self.turn, self._stopping, period_ms=self._period_ms, clock_ms=self._clock_ms)

    def stop(self) -> None:
        """Ends `run` after the file that is being written."""
        self._stopping.set()

    async def close(self) -> None:
        """Writes the last files of a clean stop."""
        try:
            async with asyncio.timeout(USAGE_CLOSE_SECONDS_MAX):
                if await self.turn(last=True):
                    await asyncio.to_thread(self._running.end)
        except TimeoutError:
            log.warning("the last usage rows were not written in time: ledger and audit rows stay in the store")

    async def turn(self, *, last: bool = False) -> bool:
        """Writes everything that waits. Returns False if a part could not be written: the next turn tries again."""
        self._unwritten += self.meter.take(unfinished=last)
        try:
            await self._begin()
            is_taken = await self._take_stored()
            await self._write_minutes()
        except OSError as error:
            self._writer.failed(error)
            self._forget_minutes()
            return False
        return is_taken

    async def _take_stored(self) -> bool:
        """Writes the rows of the store. A failure of the store does not stop the minutes. Raises `OSError`."""
        try:
            await self._store.turn()
        except OSError:
            raise
        except PushqError as error:  # the store takes no commit, or does not answer
            self._writer.failed(error)
            return False
        except Exception as error:
            log.exception("usage rows cannot be read from the store")
            self._writer.failed(error)
            return False
        return True

    async def _begin(self) -> None:
        if self._has_begun:
            return
        await self._writer.open()
        lossy = await asyncio.to_thread(self._running.begin)
        self._unwritten.insert(0, self.meter.marker(lossy=lossy))
        self._has_begun = True

    async def _write_minutes(self) -> None:
        if self._unwritten and await self._writer.has_room():
            await self._writer.write("minutes", self._unwritten, self._clock_ms())
            self._unwritten = []
        self._forget_minutes()

    def _forget_minutes(self) -> None:
        lost = len(self._unwritten) - USAGE_UNWRITTEN_ROWS_MAX
        if lost > 0:
            del self._unwritten[:lost]
            self.rows_lost += lost
