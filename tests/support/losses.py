"""Periods in which a lost leader may have confirmed something alone: mode `async` excuses losses only in these."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from backend_store.core.replication.limits import LAG_MS_MAX

BEHIND_S: Final = LAG_MS_MAX / 1000
"""A follower that lags by up to this time is still in sync, and may lead next."""


class Losses:
    """Written by the test's thread, read by the load's thread."""

    def __init__(self) -> None:
        self._over: list[tuple[float, float]] = []
        self._since: float | None = None

    @contextlib.contextmanager
    def possible(self) -> Iterator[None]:
        began = self._since = time.monotonic()
        try:
            yield
        finally:
            self._over.append((began, time.monotonic()))
            self._since = None

    def excuse(self, confirmed_at: float) -> bool:
        """Whether a message or ack confirmed at that time may be lost."""
        is_on = (since := self._since) is not None and confirmed_at >= since - BEHIND_S
        return is_on or any(began - BEHIND_S <= confirmed_at <= ended for began, ended in self._over)
