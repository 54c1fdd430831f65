"""Whose calls fill a line: where nearly all places are taken, tenants share what is left as they share other rooms.

It is counted only then, and not with each call: a line that has room pays nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from backend_store.wire.store_frames import Publish, Settle

TIMES_FREE = 9
"""A tenant may have so many times as many places as are still free; see `throttling.room`."""


class Crowd:
    def __init__(self, *, places_max: int, count_calls: int) -> None:
        """`count_calls`: after so many further calls it is counted anew."""
        self._places_max = places_max
        self._count_calls = count_calls
        self._held: Counter[str] = Counter()
        self._counted_at: int | None = None
        """The number of the call at which it was counted."""

    def admits(self, call: Publish, waiting: int, frames: Iterable[Publish | Settle]) -> bool:
        """Whether a publish has a place, beside so many that wait: `frames`. Then it is taken."""
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
        """As it was counted last."""
        return self._held[tenant]
