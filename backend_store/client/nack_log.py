"""Logs nacks: at most one line per queue and second, and only for nacks that took effect."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

log = structlog.get_logger("pushq.queue")

SUMMARY_SECONDS: Final = 1.0


class NackLog:
    """The nack log of one queue. Nacks whose receipts held nothing are left out: their reason may come from a
    stranger."""

    def __init__(self, tenant: str, queue: str):
        self._tenant = tenant
        self._queue = queue
        self._messages = 0
        self._reason: str | None = None

    def note(self, messages: int, reason: str | None) -> None:
        """Counts nacked messages. `reason`: None if only consumers may read it."""
        if not self._messages:
            asyncio.get_running_loop().call_later(SUMMARY_SECONDS, self._tell)
        self._messages += messages
        self._reason = reason

    def _tell(self) -> None:
        messages, reason = self._messages, self._reason
        self._messages, self._reason = 0, None
        said = {} if reason is None else {"last_reason": reason}
        log.info("nacked", tenant=self._tenant, queue=self._queue, messages=messages, **said)
