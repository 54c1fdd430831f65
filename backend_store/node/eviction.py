"""Ends a queue's oldest messages that nobody holds, to make room for new ones.

They are found in the log, by the order of their publishing and the lowest priority first: ready ones, scheduled and
delayed ones, and those that wait behind a key. It remembers up to where there is nothing to end, and what came back
below that, so that a queue which is always full does not look through what its consumers hold again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backend_store.core.bits import lowest
from backend_store.core.keyed import KeyedRuns
from backend_store.core.leases import ChunkState
from backend_store.core.policy import Reason
from backend_store.core.shelves import SCHEDULED, SORTING
from backend_store.node.limits import EVICTION_CHUNKS_KEPT

if TYPE_CHECKING:
    from backend_store.node.view import View

Ended = tuple[int, int]
"""(messages, bytes that they counted for)"""


class Eviction:
    """One a queue's main view."""

    def __init__(self, view: View):
        self._view = view
        self._from: dict[int, int] = {}
        """Shelf → offset below which there was nothing to end when it was looked at."""
        self._back: dict[int, list[int]] = {}
        """Shelf → chunks below that of which messages came back from a consumer since, the oldest first."""
        self._reads = self._reads_max = 0

    def end_oldest(self, over: Callable[[], tuple[int, int]], reads_max: int) -> tuple[Ended | None, int]:
        """Ends messages of one chunk, as many as there are too many, or as it has. None: there is nothing to end, or
        `reads_max` chunks were read and the look goes on from there another time. How many were read comes with it.

        `over`, in messages and bytes, is asked when the chunk was read: of one that is partly settled the bytes that it
        counts for are known only then.
        """
        self._reads, self._reads_max = 0, reads_max
        self._take_back()
        for shelves in self._shelves():
            found = [self._first(shelf) for shelf in shelves]
            state = min(filter(None, found), key=lambda state: state.base, default=None)
            if self._reads >= reads_max and None in found:
                return None, self._reads  # what was not come upon may be older
            if state is not None:
                messages, size = over()
                return self._end(state, messages, size) if messages or size else (0, 0), self._reads
        return None, self._reads

    def _shelves(self) -> Sequence[Sequence[int]]:
        """The shelves that are read together, the lowest priority first."""
        if self._view.partition.sorting is not None:
            return ((SORTING,),)
        return [(lane.shelf, SCHEDULED + lane.shelf) for lane in self._view.core.lanes.all]

    def _take_back(self) -> None:
        """Notes what came back since it was asked last."""
        core = self._view.core
        if core.came_free is None:
            self._from.clear()
            self._back.clear()
        for shelf, base in core.came_free or ():
            if base < self._from.get(shelf, 0):
                heapq.heappush(self._back.setdefault(shelf, []), base)
        core.came_free = set()
        for shelf, bases in self._back.items():
            if len(bases) > EVICTION_CHUNKS_KEPT:
                self._from[shelf] = min(self._from[shelf], bases[0])
                bases.clear()

    def _first(self, shelf: int) -> ChunkState | None:
        view, partition = self._view, self._view.partition
        back = self._back.get(shelf)
        while back:
            state = view.core.state(back[0])
            if state is None:  # it may be that only the disk knows it, as when its keys are locked
                if self._reads >= self._reads_max:
                    return None
                self._reads += 1
                state = view.find(shelf, back[0])
            if state is not None and _free(state):
                return state
            heapq.heappop(back)  # it ended, or somebody has it again
        at = max(self._from.get(shelf, 0), view.floor)
        state = view.core.state(at)
        if state is not None and state.shelf == shelf and _free(state):
            return state
        while self._reads < self._reads_max:
            chunk = partition.read(at, shelf)
            if chunk is None:
                self._from[shelf] = max(at, partition.state.high_watermark)
                return None
            self._reads += 1
            state = view.adopt(chunk)
            if _free(state):
                self._from[shelf] = chunk.base
                return state
            at = chunk.base + chunk.count
        self._from[shelf] = at
        return None

    def _end(self, state: ChunkState, messages: int, size: int) -> Ended:
        free = _free(state)
        bits = lowest(free, min(free.bit_count(), max(messages, _enough(state, size))))
        ended = bits.bit_count(), state.weight(bits)
        if isinstance(state.lane.runs, KeyedRuns):
            state.lane.runs.hold(state, bits)  # newer ones of their keys wait: a crash may bring these back
        self._view.end(state, bits, Reason.OVERFLOW)
        return ended


def _free(state: ChunkState) -> int:
    return state.present & ~(state.leased | state.returning)


def _enough(state: ChunkState, size: int) -> int:
    """How many of a chunk's messages must end for it to count for so much less."""
    if not size:
        return 0
    gone = (state.full & ~state.present).bit_count()
    before = state.size * gone // state.count
    # The least n for which size * (gone + n) // count is that much more.
    return -(-(before + size) * state.count // state.size) - gone
