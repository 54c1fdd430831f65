"""Shelves, the sublogs of a partition: in which of them a chunk is stored, and which view reads it.

A partition is one sequence of offsets on several *shelves*: the plain log, a lane for each higher priority, scheduled
messages, dead letters, late messages, and messages on their way to another queue. Each shelf is read in the order of
its offsets, so a reader need not skip messages of other shelves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAIN: Final = 0
"""The log itself, and priority 0. Priorities 1 to 9 have the shelves 1 to 9."""
SCHEDULED: Final = 16
"""SCHEDULED + priority: messages that were published for later."""
DEAD: Final = 32
LATE: Final = 33
OUTBOX: Final = 34
"""Messages on their way to another queue's log; they are removed when that log has confirmed them."""
SORTING: Final = 48
"""Messages of a queue that sorts: delivered in the order of their release, not of their offsets."""

VIEW_MAIN: Final = 0
VIEW_DEAD: Final = 1
VIEW_LATE: Final = 2
VIEW_OUTBOX: Final = 3
VIEW_GROUPS: Final = 16
"""Consumer groups of a stream have the view numbers from here on."""

VIEW_OF_SHELF: Final = {DEAD: VIEW_DEAD, LATE: VIEW_LATE, OUTBOX: VIEW_OUTBOX}
SHELF_OF_VIEW: Final = {view: shelf for shelf, view in VIEW_OF_SHELF.items()}


MAIN_SHELVES: Final = (*range(1, 10), *range(SCHEDULED, SCHEDULED + 10), SORTING)
"""The shelves that the main view reads beside the log."""


def priority_of(shelf: int) -> int:
    return shelf & 15 if shelf < DEAD else 0


def own_priority(shelf: int, end: Mapping[str, Any] | None) -> int:
    """Returns the priority with which a message was published. `end` is the `dead` column of a message that has died
    once, which keeps the priority; other messages have that of their shelf.
    """
    return int(end.get("priority", 0)) if end else priority_of(shelf)


def shelf_of(priority: int, *, is_scheduled: bool) -> int:
    return SCHEDULED + priority if is_scheduled else priority


def view_of(shelf: int) -> int:
    return VIEW_OF_SHELF.get(shelf, VIEW_MAIN)


def is_read(shelf: int) -> bool:
    """Whether a view reads the shelf in the order of its offsets, as chunks are appended."""
    return not is_scheduled(shelf) and shelf != SORTING


def is_prompt(shelf: int) -> bool:
    """Whether messages of the shelf may be delivered as soon as they are stored, or as their queue has sorted them."""
    return shelf < SCHEDULED or shelf == SORTING


def is_scheduled(shelf: int) -> bool:
    return SCHEDULED <= shelf < DEAD
