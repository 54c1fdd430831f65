"""Tracks the progress of a running streaming query: Spark keeps only its last hundred steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS: Final = 1
"""Polling interval; a query makes fewer than a hundred steps in that time."""


class Progress(NamedTuple):
    rows: int
    steps: int


def awaited(
    query: StreamingQuery, others: Sequence[StreamingQuery] = (), on_poll: Callable[[], None] = lambda: None
) -> Progress:
    """Waits for the end of a query and of the others beside it. Returns the progress of the first one. Calls `on_poll`
    at each poll. Raises Spark's `StreamingQueryException` as soon as one has failed."""
    rows = steps = 0
    last: tuple[int, str] | None = None
    has_ended = False
    while not has_ended:
        has_ended = bool(query.awaitTermination(LOOK_SECONDS))
        at_work = [other for other in others if not _is_over(other)]
        has_ended = has_ended and not at_work
        on_poll()
        for step in _steps_since(last, query):
            last = (step[0], step[1])
            rows += step[2]
            steps += 1
    return Progress(rows, steps)


def _is_over(query: StreamingQuery) -> bool:
    return not query.isActive and bool(query.awaitTermination(LOOK_SECONDS))  # raises the query's error


def _steps_since(last: tuple[int, str] | None, query: StreamingQuery) -> list[tuple[int, str, int]]:
    """(batch, start time, rows) of each step after `last`."""
    seen = [(int(one["batchId"]), str(one["timestamp"]), int(one["numInputRows"])) for one in query.recentProgress]
    at = next((number for number, step in enumerate(seen) if step[:2] == last), -1)
    return seen[at + 1 :]
