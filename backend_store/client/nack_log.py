"""What the log says of nacks: one line a queue and second, however many there were, and only of those that counted."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

log = structlog.get_logger("pushq.queue")

SUMMARY_SECONDS: Final = 1.0


class NackLog:
    """Of one queue. Nacks whose receipts were nobody's do not come here: their text is a stranger's."""

    def __init__(self, tenant: str, queue: str):
        self._tenant = tenant
        self._queue = queue
        self._messages = 0
        self._reason: str | None = None

    def note(self, messages: int, reason: str | None) -> None:
        """Some messages were given back. `reason`: None where nobody but the consumers may read it."""
        if not self._messages:
            asyncio.get_running_loop().call_later(SUMMARY_SECONDS, self._tell)
        self._messages += messages
        self._reason = reason

    def _tell(self) -> None:
        messages, reason = self._messages, self._reason
        self._messages, self._reason = 0, None
        said = {} if reason is None else {"last_reason": reason}
        log.info("nacked", tenant=self._tenant, queue=self._queue, messages=messages, **said)
