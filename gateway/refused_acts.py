"""Which refused acts are written down: the first of each principal's in a minute, so that nobody fills the audit."""

from __future__ import annotations

from collections import Counter
from typing import Final

from gateway.limits import REFUSED_ACTS_PER_MINUTE_MAX, REFUSED_PRINCIPALS_MAX

_MINUTE_MS: Final = 60_000


class RefusedActs:
    """Counts of the minute. What is above the bound stands among the minutes of usage, like every request."""

    def __init__(self) -> None:
        self._minute = 0
        self._counts: Counter[str] = Counter()

    def is_written(self, principal: str, now_ms: int) -> bool:
        """Counts one more, and says whether it becomes a row."""
        minute = now_ms // _MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
        if principal not in self._counts and len(self._counts) >= REFUSED_PRINCIPALS_MAX:
            return False
        self._counts[principal] += 1
        return self._counts[principal] <= REFUSED_ACTS_PER_MINUTE_MAX
