"""The columns of series: of a queue or all queues of a tenant, and of the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

QUEUE_LEVELS: Final = ("ready", "in_flight", "delayed", "dead", "oldest_age_ms", "consumers")
QUEUE_RATES: Final = ("published_per_s", "acked_per_s", "redelivered_per_s", "dead_per_s")
QUEUE_COLUMNS: Final = QUEUE_LEVELS + QUEUE_RATES
NODE_LEVELS: Final = ("loop_lag_ms", "memory_bytes", "disk_used_percent", "commit_ms", "connections")
NODE_RATES: Final = ("commits_per_s", "delivered_per_s")
NODE_COLUMNS: Final = NODE_LEVELS + NODE_RATES

OLDEST: Final = QUEUE_COLUMNS.index("oldest_age_ms")


def row_of(before: Sequence[int], after: Sequence[int], *, steady_ms: int, seconds: float) -> tuple[float, ...]:
    """A row of a queue's series from two pulses. A total that fell was reset: its rate is unknown, written as 0."""
    since = after[OLDEST]
    # The age is 0 only where there is no message: `quiet_row` depends on that.
    levels = (*after[:OLDEST], max(1, steady_ms - since) if since else 0, after[OLDEST + 1])
    if before is after or seconds <= 0:
        return (*levels, 0.0, 0.0, 0.0, 0.0)
    pairs = zip(before[len(levels) :], after[len(levels) :], strict=True)
    return (*levels, *(max(0, new - old) / seconds for old, new in pairs))
