"""The lanes of a view: its backlog by priority. The highest is served first, and the lower ones keep a share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend_store.core.limits import LOW_LANES_SHARE, READY_RUNS_AHEAD
from backend_store.core.log.sublogs import priority_of
from backend_store.core.ready.arrival import Runs
from backend_store.model import Offset

_GIVEN_PER_LOW = LOW_LANES_SHARE - 1
"""Messages of the highest priority between two of a lower priority."""


class Lane:
    """One priority of a backlog: runs in memory, and behind them the chunks still to be read from disk."""

    __slots__ = ("more", "next_scan", "runs", "shelf")

    def __init__(self, shelf: int, runs: Runs, next_scan: Offset, *, more: bool):
        self.shelf = shelf
        self.runs = runs
        self.next_scan = next_scan
        self.more = more
        """True if there may be chunks on disk from `next_scan` on."""

    @property
    def waits(self) -> bool:
        return bool(self.runs) or (self.more and self.runs.wants_more)

    @property
    def takes_due(self) -> bool:
        """Whether more messages that became due should be read from disk."""
        return len(self.runs) < READY_RUNS_AHEAD

    @property
    def takes_new(self) -> bool:
        """Whether a chunk just committed may go straight to the runs: it is next, and few runs are before it."""
        return not self.more and len(self.runs) < READY_RUNS_AHEAD


class Lanes:
    """The lanes of one view; picks the lane for the next messages.

    Lower lanes with ready messages get one message in `LOW_LANES_SHARE`, so that a flood of high priorities does not
    starve them; among themselves they take turns.
    """

    def __init__(self, shelves: Sequence[int], make_runs: Callable[[], Runs], next_scan: Offset, *, more: bool):
        self.all = [Lane(shelf, make_runs(), next_scan, more=more) for shelf in shelves]
        self._make_runs = make_runs
        self._given = 0
        self._turn = 0

    def of(self, shelf: int) -> Lane:
        """Returns the lane that reads a shelf; for a scheduled shelf the lane of its priority."""
        lanes = self.all
        return lanes[0] if len(lanes) == 1 else lanes[min(priority_of(shelf), len(lanes) - 1)]

    def grow(self, shelves: Sequence[int]) -> None:
        """Adds lanes for priorities that the queue did not have."""
        known = {lane.shelf for lane in self.all}
        self.all += [Lane(shelf, self._make_runs(), Offset(0), more=False) for shelf in shelves if shelf not in known]

    def pick(self) -> tuple[Lane, int] | None:
        """Returns the lane to draw from and the most messages to draw, 0 for no bound; None if no lane is ready."""
        lanes = self.all
        if len(lanes) == 1:
            lane = lanes[0]
            return (lane, 0) if lane.waits else None
        waiting = [lane for lane in reversed(lanes) if lane.waits]
        if not waiting:
            return None
        if len(waiting) > 1 and self._given >= _GIVEN_PER_LOW:
            return waiting[1 + self._turn % (len(waiting) - 1)], self._given // _GIVEN_PER_LOW
        return waiting[0], 0

    def drew(self, lane: Lane, count: int) -> None:
        """Counts messages drawn from a lane."""
        lanes = self.all
        if len(lanes) == 1:
            return
        waiting = [one for one in lanes if one.waits]
        if waiting and waiting[-1] is not lane and lane.shelf < waiting[-1].shelf:
            self._given = max(0, self._given - count * _GIVEN_PER_LOW)
            self._turn += 1
        elif any(one.shelf < lane.shelf for one in waiting):
            self._given += count
        else:
            self._given = 0

    def clear(self, next_scan: Offset) -> None:
        for lane in self.all:
            lane.runs.clear()
            lane.next_scan = next_scan
            lane.more = False
        self._given = 0
