"""Sums over a tenant's queues, updated with each changed pulse instead of counted anew."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from gateway.series.core.columns import OLDEST, QUEUE_COLUMNS, QUEUE_LEVELS

_LEVELS: Final = len(QUEUE_LEVELS)
_SPARE: Final = 64


class Tally:
    """Levels are current; rates are sums over the rows added since the last `row`."""

    def __init__(self) -> None:
        self.is_changed = False
        """Something was added or removed since the last `row`."""
        self._pulses: dict[int, Sequence[int]] = {}
        self._sums = [0] * _LEVELS
        self._rates = [0.0] * (len(QUEUE_COLUMNS) - _LEVELS)
        self._oldest: list[tuple[int, int]] = []
        """Heap of (when a queue's oldest message came, queue). Outdated entries are skipped."""

    def __len__(self) -> int:
        """The number of queues."""
        return len(self._pulses)

    def add(self, uid: int, pulse: Sequence[int], row: Sequence[float] = ()) -> None:
        """Replaces a queue's pulse; `row` is the row that its series got."""
        self.is_changed = True
        before = self._pulses.get(uid)
        self._pulses[uid] = pulse
        for column in range(_LEVELS):
            self._sums[column] += pulse[column] - (before[column] if before is not None else 0)
        for column, rate in enumerate(row[_LEVELS:]):
            self._rates[column] += rate
        since = pulse[OLDEST]
        if since and (before is None or before[OLDEST] != since):
            heapq.heappush(self._oldest, (since, uid))
            if len(self._oldest) > 2 * len(self._pulses) + _SPARE:
                self._oldest = [(one[OLDEST], uid) for uid, one in self._pulses.items() if one[OLDEST]]
                heapq.heapify(self._oldest)

    def remove(self, uid: int) -> None:
        """Takes a queue out: it was deleted, or its series was evicted."""
        self.is_changed = True
        before = self._pulses.pop(uid, None)
        for column, value in enumerate(before[:_LEVELS] if before is not None else ()):
            self._sums[column] -= value

    def row(self, steady_ms: int) -> list[float]:
        """The row of all queues together: sums of levels, except the worst age. Resets the rates."""
        while self._oldest and not self._is_so(*self._oldest[0]):
            heapq.heappop(self._oldest)
        levels: list[float] = list(self._sums)
        levels[OLDEST] = max(1, steady_ms - self._oldest[0][0]) if self._oldest else 0
        self.is_changed = False
        rates, self._rates = self._rates, [0.0] * len(self._rates)
        return levels + rates

    def _is_so(self, since: int, uid: int) -> bool:
        pulse = self._pulses.get(uid)
        return pulse is not None and pulse[OLDEST] == since
