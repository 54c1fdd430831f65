"""The retry policy that follows from a queue's config: how many attempts, their back-off, and how a message ends."""

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
    """Its place in the order was released already: it goes to the queue's late messages."""


class Outcome(StrEnum):
    """How an attempt ended without an ack."""

    NACKED = "nacked"
    TIMED_OUT = "timed_out"
    RETURNED = "returned"
    UNTRIED = "untried"
    """Given back by a consumer that had not begun with it: no attempt, so not in the history."""


class Policy(NamedTuple):
    """The policy of one view. `max_attempts` None: no limit. `exclusive`: one consumer at a time, as a stream's offsets
    need it.
    """

    max_attempts: int | None = None
    backoff_ms: int = 0
    backoff_ms_max: int = VISIBILITY_MS_MAX
    settles_first: bool = False
    """At most once: messages are settled before they are sent."""
    stores_leases: bool = False
    """A lease is on disk before its messages are sent."""
    exclusive: bool = False
    in_flight_max: int = IN_FLIGHT_PER_QUEUE_MAX

    def backoff(self, attempt: int) -> int:
        """Returns the delay in ms after an attempt: doubled with each attempt, up to the queue's maximum."""
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
    """Returns the policy for dead letters and late messages: they have no limit of attempts."""
    return Policy()


HistoryRow = tuple[int, int, str, str | None]
"""(attempt, at in ms, outcome, the consumer's reason)."""


def noted(history: list[HistoryRow] | None, row: HistoryRow) -> list[HistoryRow]:
    """Returns the history with one more row; the oldest rows are dropped when there are too many."""
    return [*(history or []), row][-HISTORY_ROWS_MAX:]
