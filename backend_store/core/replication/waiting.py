"""Callers that wait until the log is confirmed up to an offset: publishes, and duplicates of publishes."""

from __future__ import annotations

import heapq
from typing import Any

from backend_store.core.replication.limits import WAITERS_MAX
from backend_store.model import Offset


class Waiting:
    """The waiting callers of one epoch, as tickets by offset. The leader owns it."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_full(self) -> bool:
        return len(self._heap) >= WAITERS_MAX

    def add(self, end: Offset, ticket: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (end, self._number, ticket))

    def take(self, confirmed_end: int) -> tuple[Any, ...]:
        """Removes and returns the tickets up to `confirmed_end`, in log order."""
        taken = []
        while self._heap and self._heap[0][0] <= confirmed_end:
            taken.append(heapq.heappop(self._heap)[2])
        return tuple(taken)

    def take_all(self) -> tuple[Any, ...]:
        taken = tuple(ticket for _, _, ticket in sorted(self._heap, key=lambda waiter: waiter[:2]))
        self._heap.clear()
        return taken
