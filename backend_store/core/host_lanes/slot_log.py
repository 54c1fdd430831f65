"""A lane's slots, where the log's end is committed later than it is written.

`SlotKeeper` has two books: what is decided, and what is committed. In a partition of one host a commit makes them
equal. A lane has many entries on their way to its holders: each book waits for the offset that it rests on, and what
others are told (pages, answers, that slots have arrived) is read from what is committed. An adopter begins from the
log: what it inherits uncommitted counts as decided, and as committed when its own epoch's beginning is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from backend_store.core.slot_book import SlotBook, SlotRecord
from backend_store.core.slot_moves import SlotKeeper


class LaneSlots(SlotKeeper):
    """The keeper of one lane in one epoch. `records`: those in the log, each with its offset, rising."""

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
        """What was decided last lies at this offset."""
        self._waiting.append((offset, self.ahead))

    def committed_below(self, offset: int) -> bool:
        """The log is committed up to there; whether the book says more than before."""
        before = self.book
        while self._waiting and self._waiting[0][0] < offset:
            self.book = self._waiting.popleft()[1]
        return self.book is not before

    def committed(self) -> None:
        """Not to be said of a lane: what was decided since the commit began is not committed with it."""
        raise AssertionError("a lane's book is committed up to an offset")
