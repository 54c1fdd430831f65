"""Ends a queue's oldest messages that are not leased, to make room for new ones.

They are found in the log in publish order, lowest priority first: ready, scheduled and delayed ones, and those that
wait behind a key. The search remembers the offset below which there is nothing to end, and what was returned below it,
so that a queue which is always full does not scan leased messages again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backend_store.core.leases.leases import ChunkState
from backend_store.core.log.bits import lowest
from backend_store.core.log.sublogs import SCHEDULED, SORTING
from backend_store.core.ready.attempt_policy import Reason
from backend_store.core.ready.strict import StrictRuns
from backend_store.node.limits import EVICTION_CHUNKS_KEPT

if TYPE_CHECKING:
    from backend_store.node.views.view import View

Ended = tuple[int, int]
"""(messages, bytes that they counted for)"""


class Eviction:
    """Eviction of one queue's main view, which owns it."""

    def __init__(self, view: View):
        self._view = view
        self._from: dict[int, int] = {}
        """Shelf → offset below which the last search found nothing to end."""
        self._back: dict[int, list[int]] = {}
        """Shelf → chunks below that offset with messages returned since, oldest first."""
        self._reads = self._reads_max = 0

    def end_oldest(self, over: Callable[[], tuple[int, int]], reads_max: int) -> tuple[Ended | None, int]:
        """Ends messages of one chunk, as many as are too many, or as it has. Returns what was ended, and how many
        chunks were read. None: there is nothing to end, or `reads_max` chunks were read and the next call continues
        from there.

        `over` returns the excess in messages and bytes. It is called after the chunk was read: what a partly settled
        chunk counts for is known only then.
        """
        self._reads, self._reads_max = 0, reads_max
        self._take_back()
        for shelves in self._shelves():
            found = [self._first(shelf) for shelf in shelves]
            state = min(filter(None, found), key=lambda state: state.base, default=None)
            if self._reads >= reads_max and None in found:
                return None, self._reads  # what was not reached may be older
            if state is not None:
                messages, size = over()
                return self._end(state, messages, size) if messages or size else (0, 0), self._reads
        return None, self._reads

    def _shelves(self) -> Sequence[Sequence[int]]:
        """The shelves that are read together, lowest priority first."""
        if self._view.partition.sorting is not None:
            return ((SORTING,),)
        return [(lane.shelf, SCHEDULED + lane.shelf) for lane in self._view.core.lanes.all]

    def _take_back(self) -> None:
        """Notes what was returned since the last call."""
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
            if state is None:  # it may be only on disk, as when its keys are locked
                if self._reads >= self._reads_max:
                    return None
                self._reads += 1
                state = view.find(shelf, back[0])
            if state is not None and _free(state):
                return state
            heapq.heappop(back)  # it ended, or is leased again
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
        if isinstance(state.lane.runs, StrictRuns):
            state.lane.runs.hold(state, bits)  # newer ones of their keys wait: a crash may bring these back
        self._view.end(state, bits, Reason.OVERFLOW)
        return ended


def _free(state: ChunkState) -> int:
    return state.present & ~(state.leased | state.returning)


def _enough(state: ChunkState, size: int) -> int:
    """How many of a chunk's messages must end to reduce its bytes by `size`."""
    if not size:
        return 0
    gone = (state.full & ~state.present).bit_count()
    before = state.size * gone // state.count
    # The least n for which size * (gone + n) // count has grown by that much.
    return -(-(before + size) * state.count // state.size) - gone
