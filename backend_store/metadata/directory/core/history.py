"""The log of changes to the directory, by the coordinator's revisions: a moment has the same name at every host.

A watcher of one host can resume at another. A host that does not know the changes since then says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from backend_store.metadata.changes import Change, Moment, News
from backend_store.metadata.limits import CHANGES_KEPT_MAX, CHANGES_PER_TURN_MAX


class History:
    """The changes that one host knows; none before `begin`."""

    def __init__(self) -> None:
        self.era = ""
        self.revision = 0
        """All changes up to this revision are known."""
        self._floor = 0
        """Changes after this revision are kept."""
        self._kept: deque[tuple[int, Change]] = deque()
        self._listeners: set[Callable[[], None]] = set()

    @property
    def now(self) -> Moment:
        """The present moment: reads here are at least as new."""
        return Moment(self.era, self.revision)

    def begin(self, era: str, revision: int) -> None:
        """From this revision on all changes follow; earlier ones are not known, or not any more."""
        self.era = era
        self.revision = self._floor = revision
        self._kept.clear()
        self._wake()

    def add(self, revision: int, changes: Sequence[Change]) -> None:
        """Adds all changes of one revision. A known revision changes nothing."""
        if revision <= self.revision:
            return
        self.revision = revision
        if changes:
            self._kept.extend((revision, change) for change in changes)
            self._trim()
        self._wake()

    def _trim(self) -> None:
        while len(self._kept) > CHANGES_KEPT_MAX:
            self._floor = self._kept[0][0]
            while self._kept and self._kept[0][0] == self._floor:  # a revision is kept whole or not at all
                self._kept.popleft()

    def listen(self, told: Callable[[], None]) -> None:
        """`told` is called after each revision, until `unlisten`."""
        self._listeners.add(told)

    def unlisten(self, told: Callable[[], None]) -> None:
        self._listeners.discard(told)

    def _wake(self) -> None:
        for told in list(self._listeners):
            told()

    def has_reached(self, after: Moment | None) -> bool:
        """Whether this host has reached that moment of this era: before, it cannot tell what follows."""
        return after is None or after.era != self.era or after.revision <= self.revision

    def since(self, after: Moment | None) -> News:
        """Changes after a moment that it `has_reached`, about `CHANGES_PER_TURN_MAX`, in whole revisions. None: the
        reader has no copy."""
        if after is None:
            return News(self.now)
        if after.era != self.era or after.revision < self._floor:
            return News(self.now, is_reset=True)
        told: list[Change] = []
        upto = after.revision
        for revision, change in self._kept:
            if revision > after.revision:
                if len(told) >= CHANGES_PER_TURN_MAX and revision != upto:
                    break
                told.append(change)
                upto = revision
        return News(Moment(self.era, upto), told)
