"""Reports of facts that only a gateway itself knows (its process, its requests) to the gateway that evaluates rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec
import structlog

from backend_store.client import Document, Documents
from backend_store.model import PushqError
from gateway.alerts.core.tallies import Minutes
from gateway.alerts.limits import REPORT_SECONDS, REPORT_SECONDS_MAX, WRITE_SECONDS_MAX
from gateway.alerts.stored import REPORTS, gone, put

log = structlog.get_logger("pushq.alerts")


class Report(msgspec.Struct, frozen=True):
    """`name`: the gateway's display name. `node`: values by kind of rule. `number`: grows, so that a gateway whose
    values stay the same is not taken for one that is gone."""

    name: str
    node: dict[str, float]
    minutes: Minutes
    number: int


_decode = msgspec.msgpack.Decoder(Report).decode


class Reports:
    """Writes and reads reports of gateways that share backends; a gateway of its own store has none."""

    def __init__(self, documents: Documents, name: str) -> None:
        self.name = name
        self._documents = documents
        self._seen: dict[str, tuple[bytes, float, Report]] = {}
        """By gateway: the row, when it was first seen, and its content."""
        self._said_at = -REPORT_SECONDS
        self._number = 0

    async def say(self, node: dict[str, float], minutes: Minutes) -> None:
        """Writes this gateway's report, at most every `REPORT_SECONDS`."""
        now = time.monotonic()
        if not self._documents.are_shared or now - self._said_at < REPORT_SECONDS:
            return
        self._said_at = now
        self._number += 1
        report = Report(self.name, node, minutes, self._number)
        await self._write(
            [put(REPORTS, self._documents.holder, report)], "the backends do not accept this gateway's report"
        )

    def others(self) -> list[tuple[str, Report]]:
        """Reports of the other live gateways, by holder."""
        now = time.monotonic()
        seen: dict[str, tuple[bytes, float, Report]] = {}
        for gateway, row in self._documents.all(REPORTS) if self._documents.are_shared else ():
            if gateway != self._documents.holder:
                known = self._seen.get(gateway)
                seen[gateway] = known if known is not None and known[0] == row else (row, now, _decode(row))
        self._seen = seen
        return [(gateway, one) for gateway, (_, at, one) in seen.items() if now - at < REPORT_SECONDS_MAX]

    async def forget(self, present: Iterable[str]) -> None:
        """Removes rows of gateways not in `present`; the gateway that has the duty calls it."""
        dead = self._seen.keys() - set(present)
        if dead:
            rows = [gone(REPORTS, gateway) for gateway in dead]
            await self._write(rows, "reports of stopped gateways could not be deleted")

    async def _write(self, rows: list[Document], or_else: str) -> None:
        """Failures are logged only: an evaluation waits for this write, and the next one repeats it."""
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await self._documents.write(rows)
        except (PushqError, TimeoutError) as error:
            log.info(or_else, error=str(error) or f"no response within {WRITE_SECONDS_MAX:g} s")
