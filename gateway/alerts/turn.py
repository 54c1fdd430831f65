"""One change of the alerts at a time: those that people make have a time in which they are made or refused.

A look at the rules waits for its turn, too, and must not stand behind a row of changes each of which waits for backends
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
    """See the file's first sentence."""

    def __init__(self, *, has_limit: bool) -> None:
        """Without a limit where the disk is this process's: what is not answered for may not be given up there."""
        self._lock = asyncio.Lock()
        self._seconds_max = CHANGE_SECONDS_MAX if has_limit else None

    @asynccontextmanager
    async def look(self) -> AsyncIterator[None]:
        async with self._lock:
            yield

    def limit(self) -> asyncio.Timeout:
        """The time that a change has."""
        return asyncio.timeout(self._seconds_max)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Raises `Unavailable` where it was not begun in time, `OutcomeUnknown` where it was not written down."""
        has_begun = False
        try:
            async with self.limit(), self._lock:
                has_begun = True
                yield
        except TimeoutError:
            if has_begun:
                raise OutcomeUnknown("the backends did not answer in time; the change may have been made") from None
            raise Unavailable("other changes wait for the backends", retry_after_ms=_RETRY_MS) from None
