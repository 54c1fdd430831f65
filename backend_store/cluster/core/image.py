"""A reader's copy of a prefix: the records, their revision, and the time at which they were known to be current.

The copy is filled by a list and then follows a watch. Each step returns its changes as events, also a new list, so that
listeners hear of all differences even if history was compacted.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.cluster.core.values import NEVER, Changes, Event, Page, Record, Revision


class Image:
    """A reader's copy of a prefix. `as_of` is in seconds of the reader's clock."""

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.revision = NEVER
        self.as_of: float | None = None
        """The records were the coordinator's at this time or later. None: nothing was read yet."""
        self._asked: tuple[int, float] | None = None
        """A revision that the coordinator had reached, and when it was asked; the watch has not reached it yet."""

    def replace(self, records: Sequence[Record], revision: Revision, *, sent_at: float) -> tuple[Event, ...]:
        """Replaces the records by a whole list as of that revision, requested at `sent_at`. Returns the differences."""
        listed = {record.key: record for record in records}
        gone = [Event(key, None) for key in self.records if key not in listed]
        new = [Event(key, record) for key, record in listed.items() if self.records.get(key) != record]
        self._asked = None
        self.records, self.revision, self.as_of = listed, revision, sent_at
        return (*gone, *new)

    def apply(self, changes: Changes) -> tuple[Event, ...]:
        """Applies one revision of a watch. A known revision changes nothing."""
        if changes.revision <= self.revision:
            return ()
        for event in changes.events:
            if event.record is None:
                self.records.pop(event.key, None)
            else:
                self.records[event.key] = event.record
        self.revision = changes.revision
        if self._asked is not None and self._asked[0] <= self.revision:
            self._date(self._asked[1])
            self._asked = None
        return changes.events

    def confirm(self, page: Page, *, sent_at: float) -> bool:
        """Whether an answer to "what changed after our revision?", asked at `sent_at`, proves that the copy is current.

        Nothing newer, and as many records as in the copy: then none is missing and none is left over.
        """
        if page.revision > self.revision:
            if page.records or page.count != len(self.records):
                if self._asked is None:
                    self._asked = page.revision, sent_at
                return False
            self.revision = page.revision
        self._asked = None
        self._date(sent_at)
        return True

    def _date(self, time: float) -> None:
        self.as_of = time if self.as_of is None else max(self.as_of, time)
