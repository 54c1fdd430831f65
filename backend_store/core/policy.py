"""What a queue's config means for its messages' attempts: how many, how far apart, and how a message ends."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from backend_store.core.limits import HISTORY_ROWS_MAX, IN_FLIGHT_PER_QUEUE_MAX
from backend_store.model import VISIBILITY_MS_MAX, QueueConfig


class Reason(StrEnum):
    """Why a message ended without an ack."""

    MAX_ATTEMPTS = "max_attempts"
    EXPIRED = "expired"
    OVERFLOW = "overflow"
    UNDELIVERABLE = "undeliverable"
    QUEUE_DELETED = "queue_deleted"
    CANCELLED = "cancelled"
    LATE = "late"
    """Its place was handed out already: it goes to the queue's late messages."""


class Outcome(StrEnum):
    """How an attempt ended without an ack."""

    NACKED = "nacked"
    TIMED_OUT = "timed_out"
    RETURNED = "returned"
    UNTRIED = "untried"
    """Given back by a consumer that had not begun with it: no attempt, so it stands in no history."""


class Policy(NamedTuple):
    """`max_attempts` None: without limit. `exclusive`: one consumer at a time, as a stream's offsets want it."""

    max_attempts: int | None = None
    backoff_ms: int = 0
    backoff_ms_max: int = VISIBILITY_MS_MAX
    settles_first: bool = False
    """At most once: what is handed out is settled before its bytes leave."""
    stores_leases: bool = False
    """A lease is on the disk before its bytes leave."""
    exclusive: bool = False
    in_flight_max: int = IN_FLIGHT_PER_QUEUE_MAX

    def backoff(self, attempt: int) -> int:
        """How long a message rests after an attempt: twice as long each time, up to the queue's most."""
        if not self.backoff_ms:
            return 0
        return min(self.backoff_ms << min(attempt - 1, 40), self.backoff_ms_max)


def policy_of(config: QueueConfig) -> Policy:
    return Policy(
        max_attempts=None if config.dead_letter_queue is None else config.max_attempts,
        backoff_ms=config.retry_backoff_ms,
        backoff_ms_max=config.retry_backoff_ms_max or VISIBILITY_MS_MAX,
        settles_first=config.delivery == "at_most_once",
        stores_leases=config.lease_mode == "replicated",
    )


def companion_policy(config: QueueConfig) -> Policy:
    """For dead letters and late messages: nobody gives up on those."""
    return Policy()


HistoryRow = tuple[int, int, str, str | None]
"""(attempt, at in ms, outcome, what the consumer said)."""


def noted(history: list[HistoryRow] | None, row: HistoryRow) -> list[HistoryRow]:
    """The history with one more row; the oldest go when there are too many."""
    return [*(history or []), row][-HISTORY_ROWS_MAX:]
