"""Serializes changes of the alerts, and limits how long a change made by the API may wait and take.

The evaluation of the rules takes the same lock: it must not wait behind a row of changes that each wait for backends
that do not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from backend_store.model import OutcomeUnknown, Unavailable
from gateway.alerts.limits import CHANGE_SECONDS_MAX

_RETRY_MS: Final = 1_000


class Turn:
    """A lock around changes, owned by `Alerts`."""

    def __init__(self, *, has_limit: bool) -> None:
        """`has_limit`: False where the disk is this process's own, as a write to it cannot be given up half-way."""
        self._lock = asyncio.Lock()
        self._seconds_max = CHANGE_SECONDS_MAX if has_limit else None

    @asynccontextmanager
    async def look(self) -> AsyncIterator[None]:
        async with self._lock:
            yield

    def limit(self) -> asyncio.Timeout:
        """The time limit of a change."""
        return asyncio.timeout(self._seconds_max)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Raises `Unavailable` if the change did not begin in time, `OutcomeUnknown` if it was not stored in time."""
        has_begun = False
        try:
            async with self.limit(), self._lock:
                has_begun = True
                yield
        except TimeoutError:
            if has_begun:
                raise OutcomeUnknown("the backends did not answer in time; the change may have been made") from None
            raise Unavailable("other changes are waiting for the backends", retry_after_ms=_RETRY_MS) from None
