"""Who is to be woken when: of thousands of partitions only those whose time has come are looked at.

Of each the first time is kept that it asked for, and the first one after that. Whoever is woken says when it has
something to do next; the second time is there for what only the asker knew.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

from backend_store.node.limits import STALE_ALARMS_KEPT

Sleeper = TypeVar("Sleeper", bound=Hashable)


class Alarms(Generic[Sleeper]):
    """A heap of due times, in milliseconds of any one clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sleeper]] = []
        self._first: dict[Sleeper, int] = {}
        """When each is woken next. Rows of the heap that say something else are of no use any more."""
        self._second: dict[Sleeper, int] = {}
        self._numbers = count()

    def set(self, sleeper: Sleeper, at_ms: int) -> None:
        """Wakes it at that time, beside what it asked for before."""
        first_ms = self._first.get(sleeper)
        if first_ms is None or at_ms < first_ms:
            self._first[sleeper] = at_ms
            heapq.heappush(self._heap, (at_ms, next(self._numbers), sleeper))
            at_ms = first_ms if first_ms is not None else at_ms
        if at_ms > self._first[sleeper] and at_ms < self._second.get(sleeper, at_ms + 1):
            self._second[sleeper] = at_ms

    def drop(self, sleeper: Sleeper) -> None:
        """It is woken no more."""
        self._second.pop(sleeper, None)
        if self._first.pop(sleeper, None) is not None and len(self._heap) > 2 * len(self._first) + STALE_ALARMS_KEPT:
            self._heap = [row for row in self._heap if self._first.get(row[2]) == row[0]]
            heapq.heapify(self._heap)

    def take(self, now_ms: int) -> list[Sleeper]:
        """Those whose time has come, the longest due first. Each asks anew, but for the second time it asked for."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, sleeper = heapq.heappop(self._heap)
            if self._first.get(sleeper) != at_ms:
                continue
            due.append(sleeper)
            del self._first[sleeper]
            second_ms = self._second.pop(sleeper, None)
            if second_ms is not None and second_ms > now_ms:
                self.set(sleeper, second_ms)
        return due

    def next_ms(self) -> int | None:
        """When the next one is due; None where nobody is."""
        while self._heap:
            at_ms, _, sleeper = self._heap[0]
            if self._first.get(sleeper) == at_ms:
                return at_ms
            heapq.heappop(self._heap)
        return None
