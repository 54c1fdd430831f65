"""The times along a lane's log: each is later than the one before, whatever the lane's owner and the owner's clock.

So a reader that has a lane's committed log up to some entry knows that no older entry will follow: the entry's time is
the lane's *closed* time. It needs no announcement of its own, and none may be made: a time that is in no log would not
bind an adopter of the lane, which with a slower clock would append below it.

An idle lane appends `TimeClosed`, ten times a second. An adopter's `EpochBegan` is later than all entries that it
inherits, including those not committed yet.
"""

from __future__ import annotations

from typing import NamedTuple

from backend_store.core.host_lanes.limits import CLOSED_EVERY_MS
from backend_store.core.reorder.hlc import HybridClock
from backend_store.model import Epoch


class EpochBegan(NamedTuple):
    """The first entry of an epoch: entries below it were inherited."""

    epoch: Epoch


class TimeClosed(NamedTuple):
    """An entry of an idle lane, which has only a time."""


class LaneStamps:
    """Makes the times of a lane's log, in microseconds since 1970. `last_us`: the log's last one, committed or not."""

    def __init__(self, last_us: int = 0):
        self.last_us = last_us
        self._clock = HybridClock(last_us)
        self._written_ms = 0

    def span(self, count: int, *, now_us: int, steady_ms: int) -> range:
        """Returns the times of `count` entries that are appended now. `now_us` is of a clock that may be set,
        `steady_ms` of one that is not.
        """
        stamps = self._clock.span(count, now_us)
        if stamps[0] <= self.last_us:
            stamps = range(self.last_us + 1, self.last_us + 1 + count)
        self.last_us = stamps[-1]
        self._written_ms = steady_ms
        return stamps

    def go_on_after(self, time_us: int) -> None:
        """Continues after the time at which another lane sealed slots that came here, so that a key's times rise."""
        self.last_us = max(self.last_us, time_us)

    def notice(self, remote_us: int, now_us: int) -> None:
        """Continues after a time seen in another lane, unless that is too far ahead to be plausible."""
        self._clock.receive(remote_us, now_us)

    def closes(self, steady_ms: int, *, is_committed: bool) -> bool:
        """Whether to append `TimeClosed` now. Not while entries are not committed (`is_committed` is false): these have
        a time as well, and a lane that is cut off from its holders would append for ever.
        """
        return is_committed and steady_ms - self._written_ms >= CLOSED_EVERY_MS
