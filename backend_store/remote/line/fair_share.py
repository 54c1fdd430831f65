"""Shares a nearly full line among tenants: counts each tenant's waiting calls and refuses one that holds too many.

Calls are counted only while a line is nearly full, and not at each call: a line with room pays nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from backend_store.wire.store_frames import Publish, Settle

TIMES_FREE = 9
"""A tenant may hold up to this many times the number of free places; see `throttling.room`."""


class Crowd:
    def __init__(self, *, places_max: int, count_calls: int) -> None:
        """`count_calls`: number of further calls after which they are counted anew."""
        self._places_max = places_max
        self._count_calls = count_calls
        self._held: Counter[str] = Counter()
        self._counted_at: int | None = None
        """Number of the call at which they were counted."""

    def admits(self, call: Publish, waiting: int, frames: Iterable[Publish | Settle]) -> bool:
        """Takes a place for a publish if its tenant may have one; returns whether it did. `waiting`: number of calls
        that wait; `frames`: their frames."""
        if self._counted_at is None or call.number - self._counted_at >= self._count_calls:
            self._held = Counter(
                [frame.tenant if isinstance(frame, Publish) else frame.place.tenant for frame in frames]
            )
            self._counted_at = call.number
        held = self._held[call.tenant]
        if held and held + 1 > (self._places_max - waiting) * TIMES_FREE:
            return False
        self._held[call.tenant] = held + 1
        return True

    def held(self, tenant: str) -> int:
        """Places the tenant holds, as of the last count."""
        return self._held[tenant]
