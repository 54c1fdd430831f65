"""The times along a lane's log: each later than the one before it, whoever owns the lane and whatever its clock says.

So a reader who has a lane's committed log up to some entry knows that nothing older will come: the entry's time is
the lane's *closed* time. It needs no announcement of its own, and none may be made. A time that was only said, and is
in no log, would bind nobody who adopts the lane: with a slower clock it would append below it.

A lane to which nothing is sent writes `TimeClosed` down, ten times a second. An adopter's `EpochBegan` stands above
all that it inherits, what is not committed yet among it.
"""

from __future__ import annotations

from typing import NamedTuple

from backend_store.core.hlc import HybridClock
from backend_store.core.host_lanes.limits import CLOSED_EVERY_MS
from backend_store.model import Epoch


class EpochBegan(NamedTuple):
    """The first entry of an epoch: what lies below was inherited."""

    epoch: Epoch


class TimeClosed(NamedTuple):
    """Nothing was sent for a while; the entry's time is all that it says."""


class LaneStamps:
    """Stamps in microseconds since 1970; `last_us` is the time of the log's last entry, committed or not."""

    def __init__(self, last_us: int = 0):
        self.last_us = last_us
        self._clock = HybridClock(last_us)
        self._written_ms = 0

    def span(self, count: int, *, now_us: int, steady_ms: int) -> range:
        """Times of `count` entries that are appended now. The physical clock may be set; the steady one is not."""
        stamps = self._clock.span(count, now_us)
        if stamps[0] <= self.last_us:
            stamps = range(self.last_us + 1, self.last_us + 1 + count)
        self.last_us = stamps[-1]
        self._written_ms = steady_ms
        return stamps

    def go_on_after(self, time_us: int) -> None:
        """Slots came from another lane, sealed there at this time: a key's times go on rising here."""
        self.last_us = max(self.last_us, time_us)

    def notice(self, remote_us: int, now_us: int) -> None:
        """Another lane's time was seen: this one's go on after it, unless it is too far ahead to be true."""
        self._clock.receive(remote_us, now_us)

    def closes(self, steady_ms: int, *, is_committed: bool) -> bool:
        """Whether it is time to write `TimeClosed`. Not while something is to be committed (`is_committed` is false):
        that says as much, and a lane cut off from its holders would write for ever."""
        return is_committed and steady_ms - self._written_ms >= CLOSED_EVERY_MS
