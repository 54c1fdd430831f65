"""Limits how many refused acts the audit records: the first of each principal per minute, and a fair share of
principals per tenant, so that no caller or tenant can fill it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from gateway.limits import REFUSED_ACTS_PER_MINUTE_MAX, REFUSED_PRINCIPALS_MAX
from throttling.room import Room

_MINUTE_MS: Final = 60_000


class RefusedActs:
    """Counts of the current minute. Refused acts beyond the bound are counted in the usage minutes only, like every
    request."""

    def __init__(self) -> None:
        self._minute = 0
        self._counts: Counter[str] = Counter()
        self._room = Room(REFUSED_PRINCIPALS_MAX)

    def is_written(self, tenant: str, principal: str, now_ms: int) -> bool:
        """Counts one more refused act. Returns whether the audit records it."""
        minute = now_ms // _MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
            self._room = Room(REFUSED_PRINCIPALS_MAX)
        if principal not in self._counts and not self._room.take(tenant, 1):
            return False
        self._counts[principal] += 1
        return self._counts[principal] <= REFUSED_ACTS_PER_MINUTE_MAX
