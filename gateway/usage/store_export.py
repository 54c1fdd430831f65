"""Exports the rows of the ledger and the audit from a store into files.

A row is removed from the store only when a file with it is durable under its final name. A crash in between makes the
row be written again, unchanged. Rows that cannot be written wait in the store; none is dropped. A row that cannot be
decoded stays there, is counted, and does not stop others. While many rows wait only one row of each day is cut, so that
a folder that takes nothing for weeks does not fill the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog

from backend_store.client import AuditEntry, AuditLog, LedgerBook
from gateway.limits import USAGE_AUDIT_ROWS_KEPT
from gateway.usage.ledger_rows import rows_of
from gateway.usage.schema import AuditRow
from gateway.usage.writing import UsageWriter

log = structlog.get_logger("pushq.usage")

_audit_row: Final = msgspec.json.Decoder(AuditRow).decode


class StoreExport:
    """The export of one store; owned by `Exporter` or by the leader of a shard."""

    def __init__(
        self,
        writer: UsageWriter,
        *,
        ledger: LedgerBook,
        audit: AuditLog,
        clock_ms: Callable[[], int],
        kept_days: int,
    ):
        self._writer = writer
        self._ledger = ledger
        self._audit = audit
        self._clock_ms = clock_ms
        self._kept_days = kept_days
        self._undecoded: set[int] = set()
        """Numbers of audit rows that are undamaged and cannot be decoded."""
        self._unreadable = 0
        """How many rows were counted as unreadable."""

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest row of the ledger has been waiting for a file."""
        oldest_ms = self._ledger.oldest_waiting_ms()
        return 0.0 if oldest_ms is None else max(0, self._clock_ms() - oldest_ms) / 1000

    async def turn(self) -> None:
        """Writes what was counted and done before. Raises `OSError`, and `PushqError` if the store takes no commit."""
        if not (was_behind := self._ledger.is_behind):
            await self._ledger.cut()  # even if no file can be written: the rows wait
        await self._writer.open()
        try:
            await self._write_ledger()
            if was_behind and not self._ledger.is_behind:
                await self._ledger.cut()
                await self._write_ledger()
            await self._write_audit()
        finally:
            self._count_unreadable()

    def _count_unreadable(self) -> None:
        unreadable = len(self._ledger.unreadable) + len(self._audit.unreadable) + len(self._undecoded)
        self._writer.unreadable(unreadable - self._unreadable)
        self._unreadable = unreadable

    async def _write_ledger(self) -> None:
        while (waiting := self._ledger.waiting()) and await self._writer.has_room():
            await self._ledger.confirmed()  # no file may have rows that are not committed
            rows = [row for one in waiting for row in rows_of(one.row)]
            await self._writer.write("ledger", rows, waiting[0].row.at_ms, self._ledger.files + 1)
            await self._ledger.taken(waiting, kept_days=self._kept_days)

    async def _write_audit(self) -> None:
        while (waiting := self._audit.waiting()) and await self._writer.has_room():
            await self._ledger.confirmed()
            if rows := self._audit_rows(waiting):
                await self._writer.write("audit", rows, self._clock_ms())
            await self._audit.taken(waiting[-1].seq, kept=USAGE_AUDIT_ROWS_KEPT)

    def _audit_rows(self, entries: Iterable[AuditEntry]) -> list[AuditRow]:
        found: list[AuditRow] = []
        for entry in entries:
            try:
                found.append(_audit_row(entry.data))
            except msgspec.MsgspecError as error:
                self._undecoded.add(entry.seq)
                log.error("an audit row has an unknown kind", seq=entry.seq, error=str(error))
        return found
