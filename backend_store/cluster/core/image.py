"""What a reader holds of a prefix: records, the revision they are true at, and since when that is known.

It is filled by a list and then follows a watch. What each step changed comes back as events, from a new list too, so
that whoever listens hears of all that is different now, be it that history was compacted.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.cluster.core.values import NEVER, Changes, Event, Page, Record, Revision


class Image:
    """See the file's first sentence. `as_of` is in seconds of the reader's clock."""

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.revision = NEVER
        self.as_of: float | None = None
        """The records were the coordinator's at this time or later. None: nothing was read yet."""
        self._asked: tuple[int, float] | None = None
        """A revision that the coordinator had reached, and when it was asked: to be reached by the watch."""

    def replace(self, records: Sequence[Record], revision: Revision, *, sent_at: float) -> tuple[Event, ...]:
        """A whole list as of that revision, asked for at `sent_at`. What is different."""
        listed = {record.key: record for record in records}
        gone = [Event(key, None) for key in self.records if key not in listed]
        new = [Event(key, record) for key, record in listed.items() if self.records.get(key) != record]
        self._asked = None
        self.records, self.revision, self.as_of = listed, revision, sent_at
        return (*gone, *new)

    def apply(self, changes: Changes) -> tuple[Event, ...]:
        """One revision of a watch. What is known already changes nothing."""
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
        """Whether an answer to "what changed after our revision?", asked at `sent_at`, proves that we are up to date.

        Nothing newer, and as many records as we have: then none is missing and none is left over.
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
