"""Timers of many sleepers: finds the few of thousands of partitions that are due.

Each sleeper's earliest requested time is kept, and the next one after it. A woken sleeper says when it next has work;
the second time is for requests that only the requester knew of.
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
        """When each sleeper wakes next. Heap rows with another time are stale."""
        self._second: dict[Sleeper, int] = {}
        self._numbers = count()

    def set(self, sleeper: Sleeper, at_ms: int) -> None:
        """Wakes a sleeper at `at_ms`, besides the time it asked for before."""
        first_ms = self._first.get(sleeper)
        if first_ms is None or at_ms < first_ms:
            self._first[sleeper] = at_ms
            heapq.heappush(self._heap, (at_ms, next(self._numbers), sleeper))
            at_ms = first_ms if first_ms is not None else at_ms
        if at_ms > self._first[sleeper] and at_ms < self._second.get(sleeper, at_ms + 1):
            self._second[sleeper] = at_ms

    def drop(self, sleeper: Sleeper) -> None:
        """Cancels a sleeper's times."""
        self._second.pop(sleeper, None)
        if self._first.pop(sleeper, None) is not None and len(self._heap) > 2 * len(self._first) + STALE_ALARMS_KEPT:
            self._heap = [row for row in self._heap if self._first.get(row[2]) == row[0]]
            heapq.heapify(self._heap)

    def take(self, now_ms: int) -> list[Sleeper]:
        """Removes and returns the due sleepers, longest due first. Each must ask anew, except for its second time."""
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
        """The next due time; None if there is none."""
        while self._heap:
            at_ms, _, sleeper = self._heap[0]
            if self._first.get(sleeper) == at_ms:
                return at_ms
            heapq.heappop(self._heap)
        return None
