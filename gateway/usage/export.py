"""Takes rows from where they are counted to files, once a period: the ledger's and the audit's out of the store, the
minutes' out of memory.

A row leaves the store only when the file that has it is durable under its name. A crash in between writes it again, as
it was. What cannot be written waits in the store, and metrics say so; nothing of the ledger or the audit is dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from backend_store.client import AuditLog, LedgerBook
from gateway.limits import USAGE_AUDIT_ROWS_KEPT, USAGE_CLOSE_SECONDS_MAX, USAGE_UNWRITTEN_ROWS_MAX
from gateway.usage.files import UsageFolder
from gateway.usage.ledger_rows import rows_of
from gateway.usage.meter import Meter
from gateway.usage.schema import AuditRow, FileKind, MinuteRow

log = structlog.get_logger("pushq.usage")

_audit_row: Final = msgspec.json.Decoder(AuditRow).decode


class Exporter:
    """See the file's first sentence. One task owns it."""

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
        self._folder = UsageFolder(folder, node)
        self._running = folder / f"running-{node}"
        self._ledger = ledger
        self._audit = audit
        self._clock_ms = clock_ms
        self._period_ms = period_ms
        self._bytes_max = bytes_max
        self._kept_days = kept_days
        self._unwritten: list[MinuteRow] = []
        self._is_open = False
        self._stopping = asyncio.Event()
        self.files: Counter[FileKind] = Counter()
        self.rows: Counter[FileKind] = Counter()
        self.rows_lost = 0
        """Rows of minutes that could not be written for so long that there was no room for them."""
        self.failures = 0
        self.is_full = False
        """The ledger and the audit fill what the folder may have: their rows wait in the store."""

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest row of the ledger has been waiting for a file."""
        oldest_ms = self._ledger.oldest_waiting_ms()
        return 0.0 if oldest_ms is None else max(0, self._clock_ms() - oldest_ms) / 1000

    async def run(self) -> None:
        """Writes what there is once a period, at whole periods of the clock."""
        while not self._stopping.is_set():
            await self.turn()
            with suppress(TimeoutError):
                async with asyncio.timeout((self._period_ms - self._clock_ms() % self._period_ms) / 1000):
                    await self._stopping.wait()

    def stop(self) -> None:
        """Lets `run` come to its end: a file that is being written is written to its end first."""
        self._stopping.set()

    async def close(self) -> None:
        """The last files of a clean stop."""
        try:
            async with asyncio.timeout(USAGE_CLOSE_SECONDS_MAX):
                if await self.turn(last=True):
                    await asyncio.to_thread(self._running.unlink, missing_ok=True)
        except TimeoutError:
            log.warning("the last usage rows were not written in time: the ledger's and the audit's wait in the store")

    async def turn(self, *, last: bool = False) -> bool:
        """Writes everything that waits. False if it could not: the next turn tries again."""
        try:
            if not self._is_open:
                await self._open()
            self._unwritten += self.meter.take(unfinished=last)
            await self._ledger.cut()
            await self._write_ledger()
            await self._write_audit()
            await self._write_minutes()
        except OSError as error:
            self.failures += 1
            self._forget_minutes()
            log.error("usage rows cannot be written, and wait", folder=str(self._folder.path), error=str(error))
            return False
        return True

    async def _open(self) -> None:
        await asyncio.to_thread(self._folder.open)
        lossy = await asyncio.to_thread(_begin, self._running)
        self._unwritten.insert(0, self.meter.marker(lossy=lossy))
        self._is_open = True

    async def _write_ledger(self) -> None:
        while (waiting := self._ledger.waiting()) and await self._has_room():
            rows = [row for one in waiting for row in rows_of(one.row)]
            await self._write("ledger", rows, waiting[0].row.at_ms, self._ledger.files + 1)
            await self._ledger.taken(waiting, kept_days=self._kept_days)

    async def _write_audit(self) -> None:
        while (waiting := self._audit.waiting()) and await self._has_room():
            rows = [_audit_row(entry.data) for entry in waiting]
            await self._write("audit", rows, self._clock_ms())
            await self._audit.taken(waiting[-1].seq, kept=USAGE_AUDIT_ROWS_KEPT)

    async def _write_minutes(self) -> None:
        if self._unwritten and await self._has_room():
            await self._write("minutes", self._unwritten, self._clock_ms())
            self._unwritten = []
        self._forget_minutes()

    async def _write(
        self, kind: FileKind, rows: Sequence[msgspec.Struct], first_ms: int, number: int | None = None
    ) -> None:
        await asyncio.to_thread(self._folder.write, kind, rows, first_ms, number)
        self.files[kind] += 1
        self.rows[kind] += len(rows)

    async def _has_room(self) -> bool:
        """Whether the folder may have another file, after the oldest minutes have gone."""
        over = await asyncio.to_thread(partial(self._folder.make_room, self._bytes_max))
        if over and not self.is_full:
            log.error("the usage folder is full of rows that are never removed: collect them and move them away")
        self.is_full = over > 0
        return not over

    def _forget_minutes(self) -> None:
        lost = len(self._unwritten) - USAGE_UNWRITTEN_ROWS_MAX
        if lost > 0:
            del self._unwritten[:lost]
            self.rows_lost += lost


def _begin(running: Path) -> bool:
    """Notes that a process is at work here. True if the one before never said that it had ended."""
    was_there = running.exists()
    running.touch(mode=0o600)
    return was_there
