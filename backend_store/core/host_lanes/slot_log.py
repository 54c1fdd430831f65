"""A lane's slots, in a log whose end is committed later than it is written.

`SlotKeeper` has two books: the decided and the committed one. In a partition of one host a commit makes them equal. A
lane has many entries on their way to its holders: each book waits until its offset is committed, and answers to others
(pages, answers to questions, opened slots) are read from the committed one. An adopter starts from the log: inherited
entries that are not committed count as decided, and as committed once its own `EpochBegan` is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from backend_store.core.partitions.slot_history import SlotBook, SlotRecord
from backend_store.core.partitions.slot_moves import SlotKeeper


class LaneSlots(SlotKeeper):
    """The keeper of one lane in one epoch. `records`: those in the log, each with its offset, ascending."""

    def __init__(
        self,
        number: int,
        first: SlotBook,
        records: Iterable[tuple[int, SlotRecord]] = (),
        *,
        committed: int = 0,
        waits: bool,
    ):
        super().__init__(number, first, waits=waits)
        self._waiting: deque[tuple[int, SlotBook]] = deque()
        for offset, record in records:
            self._decide(record)
            self.appended(offset)
        self.committed_below(committed)

    def appended(self, offset: int) -> None:
        """Notes that the last decision is in the log at this offset."""
        self._waiting.append((offset, self.ahead))

    def committed_below(self, offset: int) -> bool:
        """Notes that the log is committed up to an offset. Returns whether the committed book has changed."""
        before = self.book
        while self._waiting and self._waiting[0][0] < offset:
            self.book = self._waiting.popleft()[1]
        return self.book is not before

    def committed(self) -> None:
        """Must not be called for a lane: decisions made since a commit began are not committed with it."""
        raise AssertionError("a lane's book is committed up to an offset")
