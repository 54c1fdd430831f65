"""A partition's reads of its own log: entries on any shelf by offset, and the release order.

The disk may be ahead of the partition: a commit is durable before the partition applies it, and waits for other
replicas first where they must have it too. Reads leave such entries out: a reader that saw them early would skip them
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.core.log.chunk import Chunk
from backend_store.core.log.records import PartitionState
from backend_store.core.log.sublogs import (
    DEAD,
    MAIN,
    MAIN_SHELVES,
    SCHEDULED,
    SHELF_OF_VIEW,
    VIEW_MAIN,
    view_of,
)
from backend_store.model import CHUNK_MESSAGES_MAX, Offset, QueueConfig
from backend_store.node.log.row_reader import LogReader, OrderRow, Progress

if TYPE_CHECKING:
    from backend_store.node.partition import Surroundings


class LogReads:
    """The reading half of a partition: returns committed entries only."""

    node: Surroundings
    reader: LogReader
    state: PartitionState
    config: QueueConfig
    index: int

    def read(self, offset: Offset | int, shelf: int = MAIN) -> Chunk | None:
        """The first committed chunk of a shelf at or above `offset`. A corrupt chunk is put aside, counted and skipped.

        Purged entries are left out, even while their rows wait to be swept.
        """
        return self.reader.first(max(offset, self._floor(shelf)), self.state.high_watermark, shelf)

    def read_before(self, offset: int, shelf: int = MAIN) -> Chunk | None:
        """The last committed chunk of a shelf that begins at or below `offset`, and may contain it."""
        start, end = self._floor(shelf), min(offset, self.state.high_watermark - 1)
        return self.reader.last(max(start, offset - CHUNK_MESSAGES_MAX + 1), end, shelf)

    def released_row(self, is_head: bool, number: int) -> OrderRow | None:
        """The first committed batch of the release order at or above a number."""
        row = self.reader.order(is_head, number)
        return row if row is not None and row.number < self.state.released else None

    def oldest(self, view: int) -> int | None:
        """When the oldest message of a view was published; None if the view is empty."""
        shelves = (MAIN, *MAIN_SHELVES) if view == VIEW_MAIN else (SHELF_OF_VIEW[view],)
        if view == VIEW_MAIN and self.config.priorities == 1 and self.config.sequencing == "arrival":
            shelves = (MAIN, SCHEDULED)
        firsts = [chunk.time_ms for shelf in shelves if (chunk := self.read(0, shelf)) is not None]
        return min(firsts, default=None)

    def has_entry(self, view: int) -> bool:
        """Whether a view has anything on disk, on any shelf."""
        shelves = (MAIN, *MAIN_SHELVES) if view == VIEW_MAIN else (SHELF_OF_VIEW[view],)
        return any(self.read(0, shelf) is not None for shelf in shelves)

    def floor_of(self, view: int) -> int:
        tally = self.state.views.get(view)
        return self.state.floor if view == VIEW_MAIN else tally.floor if tally is not None else 0

    def _floor(self, shelf: int) -> int:
        return self.state.low if shelf < DEAD else self.floor_of(view_of(shelf))

    def progress(self, base: int, view: int = VIEW_MAIN) -> Progress:
        """What is stored about a chunk's messages."""
        return self.reader.progress(base, view)

    def chunk_at(self, offset: int, shelf: int, *, exactly: bool = False) -> Chunk | None:
        """The first chunk of a shelf with a message at or above `offset`; `exactly`: the one that begins there, or
        None."""
        if exactly:
            chunk = self.read(offset, shelf)
            return chunk if chunk is not None and chunk.base == offset else None
        chunk = self.read(max(0, offset - CHUNK_MESSAGES_MAX + 1), shelf)
        while chunk is not None and chunk.base + chunk.count <= offset:
            chunk = self.read(chunk.base + 1, shelf)
        return chunk
