"""One order of time over the lanes of a queue: reads their committed logs and emits messages that no older can follow.

A lane is closed up to the time of the last entry read from it, since times only rise along a log (`stamping`). The
*watermark* is the smallest of these times. Messages up to the watermark are emitted by time, then lane, then offset. So
the order by stamps is exact; clocks that differ only make it differ from the order of the real events.

A lane that delays the others for longer than the window is *left out*: a silent lane, or one that was read to its end
and whose time is more than the window behind the median of all lanes. A lane whose clock is ahead causes no other to be
left out. A message that a lane delivers below the watermark is *late*. A left-out lane is included again when its time
has reached the watermark. A strict merge leaves no lane out and waits.

A reader that hears from no lane at all is itself cut off, and leaves no lane out: when it hears from one again, all
lanes get a new window. So a pause of the reader makes no message late.

Emitted messages, late messages and `place` must be stored in one transaction, because each message is one or the other,
once.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from backend_store.core.host_lanes.limits import MERGE_HELD_MESSAGES_MAX, MERGE_WINDOW_MS


class LaneEntry(NamedTuple):
    """A committed entry of a lane; `message` is None for an entry that has only a time."""

    offset: int
    time_us: int
    message: Any = None


class Merged(NamedTuple):
    """A message whose place in the order of time is final."""

    time_us: int
    lane: int
    offset: int
    message: Any


class Late(NamedTuple):
    """A message that arrived after its place was passed, and by how much it was late."""

    merged: Merged
    lateness_us: int


class MergePlace(NamedTuple):
    """The position of a merge: everything up to `watermark_us` is emitted, and in each lane all below its offset."""

    watermark_us: int
    offsets: dict[int, int]


class _Lane:
    __slots__ = ("closed_us", "done", "is_out", "is_read", "moved_ms", "next")

    def __init__(self, offset: int, now_ms: int):
        self.next = offset
        self.done = offset
        """Messages below are emitted or late; those between it and `next` are held."""
        self.closed_us = 0
        self.moved_ms = now_ms
        self.is_out = False
        self.is_read = False
        """Whether it was read to its end when last heard of: if its time is behind then, the reader is not to blame."""


class Merge:
    """Merges the lanes of one queue for one reader. `now_ms` is the reader's steady clock."""

    def __init__(
        self,
        place: MergePlace,
        *,
        now_ms: int,
        is_strict: bool,
        window_ms: int = MERGE_WINDOW_MS,
        held_max: int = MERGE_HELD_MESSAGES_MAX,
    ):
        self.watermark_us = place.watermark_us
        self.late_total = 0
        self._is_strict = is_strict
        self._window_ms = window_ms
        self._held_max = held_max
        self._lanes = {lane: _Lane(offset, now_ms) for lane, offset in place.offsets.items()}
        self._held: list[tuple[int, int, int, Any]] = []
        self._heard_ms = now_ms

    @property
    def place(self) -> MergePlace:
        return MergePlace(self.watermark_us, {number: lane.done for number, lane in self._lanes.items()})

    def wants(self, number: int) -> int | None:
        """Returns the offset from which to read a lane now; None if too much is held and the lane would add to that."""
        lane = self._lanes[number]
        if len(self._held) >= self._held_max and lane.closed_us > min(one.closed_us for one in self._lanes.values()):
            return None
        return lane.next

    def take(self, number: int, entries: Iterable[LaneEntry], *, end: int, now_ms: int) -> list[Late]:
        """Takes committed entries of a lane that continue where it was read to; ignores others. Returns late messages.
        `end`: up to where the lane was committed when it sent them.
        """
        self._hear(now_ms)
        lane, late = self._lanes[number], []
        for entry in entries:
            if entry.offset != lane.next:
                continue
            assert entry.time_us > lane.closed_us, f"lane {number}: time stands still at offset {entry.offset}"
            lane.next += 1
            lane.closed_us, lane.moved_ms = entry.time_us, now_ms
            if entry.message is not None and entry.time_us > self.watermark_us:
                heappush(self._held, (entry.time_us, number, entry.offset, entry.message))
            elif entry.message is not None:
                merged = Merged(entry.time_us, number, entry.offset, entry.message)
                late.append(Late(merged, self.watermark_us - entry.time_us))
            if entry.time_us <= self.watermark_us:
                lane.done = lane.next
        lane.is_read = lane.next >= end
        self.late_total += len(late)
        return late

    def advance(self, now_ms: int) -> list[Merged]:
        """Returns the messages that are older than any that may still arrive."""
        self._leave_out(now_ms)
        waited_for = [lane.closed_us for lane in self._lanes.values() if not lane.is_out]
        if not waited_for:
            return []
        self.watermark_us = max(self.watermark_us, min(waited_for))
        out = []
        while self._held and self._held[0][0] <= self.watermark_us:
            merged = Merged(*heappop(self._held))
            self._lanes[merged.lane].done = merged.offset + 1
            out.append(merged)
        return out

    def next_wakeup_ms(self) -> int | None:
        """Returns when the next silent lane may be left out; None: never."""
        if self._is_strict:
            return None
        return min((lane.moved_ms + self._window_ms for lane in self._lanes.values() if not lane.is_out), default=None)

    @property
    def left_out(self) -> list[int]:
        return [number for number, lane in self._lanes.items() if lane.is_out]

    def _hear(self, now_ms: int) -> None:
        if now_ms - self._heard_ms >= self._window_ms:
            for lane in self._lanes.values():
                lane.moved_ms, lane.is_read = now_ms, False
        self._heard_ms = now_ms

    def _leave_out(self, now_ms: int) -> None:
        if self._is_strict or now_ms - self._heard_ms >= self._window_ms:
            return
        times = sorted(lane.closed_us for lane in self._lanes.values())
        oldest_us = times[(len(times) - 1) // 2] - self._window_ms * 1000
        for lane in self._lanes.values():
            is_silent = now_ms - lane.moved_ms >= self._window_ms
            if is_silent or (lane.is_read and lane.closed_us < oldest_us):
                lane.is_out = True
            elif lane.closed_us >= self.watermark_us:
                lane.is_out = False
