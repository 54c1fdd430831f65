"""Finds the messages that a broken row of the release order named: they were released, but not delivered.

The row is unreadable, so they are found by exclusion: stored, not leased, not waiting for their turn, and in no other
row. Others were delivered before them, so they are late, and go where late messages go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from backend_store.core.log.chunk import Chunk, holes
from backend_store.core.log.sublogs import SORTING
from backend_store.core.ready.attempt_policy import Reason
from backend_store.node.limits import READS_PER_TAKE_MAX

if TYPE_CHECKING:
    from backend_store.node.views.view import View

log = structlog.get_logger("pushq.rescue")


class ReorderRepair:
    """One walk over a sorted queue, started between two commits: covers what is stored then."""

    def __init__(self, view: View, rows: Sequence[tuple[int, bool]], waiting: Mapping[int, int]):
        """`rows`: the broken ones, as (number, is_head); `waiting`: base → messages whose turn is still to come."""
        self.rows = rows
        self.found = 0
        """How many messages were found."""
        self._view = view
        self._waiting = dict(waiting)
        self._named: dict[int, int] = {}
        self._end = view.partition.state.high_watermark
        self._steps = self._walk()

    def go_on(self) -> bool:
        """Reads a bounded number of rows. False when the walk is over."""
        return all(next(self._steps, False) for _ in range(READS_PER_TAKE_MAX))

    def _walk(self) -> Iterator[bool]:
        partition = self._view.partition
        for is_head in (False, True):
            number = 0
            while (row := partition.reader.order(is_head, number)) is not None:
                number = row[0] + 1
                for base, index in row[1] or ():
                    self._named[base] = self._named.get(base, 0) | 1 << index
                yield True
        chunk = partition.read(0, SORTING)
        while chunk is not None and chunk.base < self._end:
            self._release(chunk)
            yield True
            chunk = partition.read(chunk.base + 1, SORTING)
        log.error("messages of a broken release order are late", queue=partition.label, messages=self.found)

    def _release(self, chunk: Chunk) -> None:
        """Ends those of a chunk's messages that would never be delivered, as late."""
        view, base = self._view, chunk.base
        known = view.core.state(base)
        settled = known.full & ~known.free if known is not None else view.partition.progress(base).settled
        gone = settled | holes(chunk) | self._named.get(base, 0) | self._waiting.get(base, 0)
        if gone & (1 << chunk.count) - 1 == (1 << chunk.count) - 1:
            return
        state = view.find(SORTING, base)
        if state is not None and (bits := state.free & ~gone):
            self.found += bits.bit_count()
            view.end(state, bits, Reason.LATE)
