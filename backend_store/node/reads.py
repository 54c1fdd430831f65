"""What a partition reads of its own log: entries on any shelf, found by place, by time or by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.core.chunk import Chunk, clear_column
from backend_store.core.records import PartitionState
from backend_store.core.shelves import (
    MAIN,
    MAIN_SHELVES,
    SCHEDULED,
    SHELF_OF_VIEW,
    SORTING,
    VIEW_MAIN,
    view_of,
)
from backend_store.model import CHUNK_MESSAGES_MAX, Offset, QueueConfig
from backend_store.node.limits import CANCEL_LOOKS_MAX
from backend_store.node.publishing import name_of
from backend_store.node.reader import LogReader, Progress

if TYPE_CHECKING:
    from backend_store.node.partition import Surroundings


class LogReads:
    """The reading half of a partition: committed entries only."""

    node: Surroundings
    reader: LogReader
    state: PartitionState
    config: QueueConfig
    index: int

    def read(self, offset: Offset | int, shelf: int = MAIN) -> Chunk | None:
        """The first committed chunk of a shelf at or above `offset`. A corrupt one is put aside, counted and skipped.

        What was purged is not there, even while its rows still wait to be swept.
        """
        floor = self.state.low if shelf < 32 else self.floor_of(view_of(shelf))
        return self.reader.first(max(offset, floor), self.state.high_watermark, shelf)

    def oldest(self, view: int) -> int | None:
        """When the oldest message of a view was published; None when it has none."""
        shelves = (MAIN, *MAIN_SHELVES) if view == VIEW_MAIN else (SHELF_OF_VIEW[view],)
        if view == VIEW_MAIN and self.config.priorities == 1 and self.config.sequencing == "arrival":
            shelves = (MAIN, SCHEDULED)
        firsts = [chunk.time_ms for shelf in shelves if (chunk := self.read(0, shelf)) is not None]
        return min(firsts, default=None)

    def floor_of(self, view: int) -> int:
        tally = self.state.views.get(view)
        return self.state.floor if view == VIEW_MAIN else tally.floor if tally is not None else 0

    def progress(self, base: int, view: int = VIEW_MAIN) -> Progress:
        """What is stored of a chunk's messages."""
        return self.reader.progress(base, view)

    def chunk_at(self, offset: int, shelf: int, *, exactly: bool = False) -> Chunk | None:
        """The first chunk of a shelf that has an offset at or above `offset`; `exactly`: the one that begins there."""
        if exactly:
            chunk = self.read(offset, shelf)
            return chunk if chunk is not None and chunk.base == offset else None
        chunk = self.read(max(0, offset - CHUNK_MESSAGES_MAX + 1), shelf)
        while chunk is not None and chunk.base + chunk.count <= offset:
            chunk = self.read(chunk.base + 1, shelf)
        return chunk

    def find_message(self, message_id: str) -> tuple[int, int, int] | None:
        """(shelf, base, index) of a message that is ready or scheduled, by its id. None when there is none, or none
        among the first `CANCEL_LOOKS_MAX` messages of the backlog.
        """
        named = self.reader.named(name_of(message_id))
        if named is not None:
            return named
        offset = implied_offset(message_id, self.index)
        shelves = [*range(self.config.priorities), *range(SCHEDULED, SCHEDULED + self.config.priorities)]
        if self.config.sequencing != "arrival":
            shelves.append(SORTING)
        looks = 0
        for shelf in shelves:
            chunk = self.read(max(0, offset - CHUNK_MESSAGES_MAX + 1) if offset is not None else 0, shelf)
            while chunk is not None and looks < CANCEL_LOOKS_MAX:
                ids = clear_column(chunk, "id")
                if offset is not None:
                    if chunk.base > offset:
                        break
                    if offset < chunk.base + chunk.count and not (ids and ids[offset - chunk.base]):
                        return shelf, chunk.base, offset - chunk.base
                elif ids is not None and message_id in ids:
                    return shelf, chunk.base, ids.index(message_id)
                looks += chunk.count
                chunk = self.read(chunk.base + 1, shelf)
        return None


def implied_offset(message_id: str, partition: int) -> int | None:
    """The place that an id names which the server made; None for a producer's own id."""
    head, _, tail = message_id.partition("-")
    if head != str(partition) or len(tail) != 12:
        return None
    try:
        return int(tail, 16)
    except ValueError:
        return None
