"""A bounded log in memory of changes to the metadata, with revisions, for readers that keep a copy.

A revision counts changes since the process started, and its era names that process. A reader that resumes from another
era, or from before the log's beginning, is told to reset its copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Literal

import msgspec

from backend_store.metadata.limits import CHANGES_KEPT_MAX, CHANGES_PER_TURN_MAX

Subject = Literal["queue", "key", "tenant", "placement"]


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A queue, key, tenant or placement was made, changed or deleted.

    `tenant` is a queue's; a placement's name is the uid of its queue.
    """

    subject: Subject
    name: str
    tenant: str = ""


class Moment(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A point in the history of one metadata process. Moments of two eras cannot be compared."""

    era: str
    revision: int


class News(msgspec.Struct, frozen=True, array_like=True):
    """The changes up to `now`. Empty news are a heartbeat: nothing else happened."""

    now: Moment
    changes: list[Change] = []
    is_reset: bool = False
    """The changes since the requested moment are not known: everything may be different."""


class ChangeLog:
    """The log of changes of one metadata process."""

    def __init__(self, era: str):
        self._era = era
        self._revision = 0
        self._kept: deque[Change] = deque(maxlen=CHANGES_KEPT_MAX)
        self._listeners: set[Callable[[], None]] = set()

    @property
    def now(self) -> Moment:
        return Moment(self._era, self._revision)

    def add(self, change: Change) -> None:
        """Records a change that is durable, and calls the listeners."""
        self._revision += 1
        self._kept.append(change)
        for told in list(self._listeners):
            told()

    def listen(self, told: Callable[[], None]) -> None:
        """`told` is called after each change, until `unlisten`."""
        self._listeners.add(told)

    def unlisten(self, told: Callable[[], None]) -> None:
        self._listeners.discard(told)

    def since(self, after: Moment | None) -> News:
        """The changes after a moment, at most `CHANGES_PER_TURN_MAX`. `after` None: the reader has no copy yet."""
        first = self._revision - len(self._kept)
        if after is None:
            return News(self.now)
        if after.era != self._era or not first <= after.revision <= self._revision:
            return News(self.now, is_reset=True)
        skipped = after.revision - first
        told = list(islice(self._kept, skipped, skipped + CHANGES_PER_TURN_MAX))
        return News(Moment(self._era, after.revision + len(told)), told)
