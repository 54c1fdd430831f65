"""Invalid combinations of queue settings, each with its reason and its remedy: one setting would break what the other
promises, or one of them would have no effect.

Rules apply to whole configs with all defaults filled in, so a default that is spelled out is never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from backend_store.model import FieldError, QueueConfig

_PLAIN: Final = QueueConfig()
_DEAD_LETTER: Final = ("dead_letter_oldest", "dead_letter_newest")


class Rule(NamedTuple):
    """One invalid combination. `settings` begins with the one that the others conflict with."""

    title: str
    settings: tuple[str, ...]
    breaks: Callable[[QueueConfig], bool]
    why: str
    instead: str

    def concerned(self, config: QueueConfig) -> list[str]:
        """The conflicting settings of a config that breaks the rule: the first, and the others not at default."""
        return [name for n, name in enumerate(self.settings) if n == 0 or not _is_plain(config, name)]

    def sentence(self, config: QueueConfig) -> str:
        facts = " and ".join(f"{name} {_shown(getattr(config, name))}" for name in self.concerned(config))
        return f"{facts}: {self.why}; {self.instead}"


def broken_rules(config: QueueConfig, named: Collection[str], known: QueueConfig | None = None) -> Iterator[FieldError]:
    """The errors of a config, reported at the settings that the caller `named`, or at all if it named none of them.

    `known`: the config before. A combination that existed before, as from a version without its rule, does not prevent
    changes to other settings.
    """
    for rule in RULES:
        if known is not None and rule.breaks(known) and not any(name in named for name in rule.settings):
            continue
        if rule.breaks(config):
            concerned = rule.concerned(config)
            for name in [name for name in concerned if name in named] or concerned:
                yield FieldError(f"/{name}", rule.sentence(config))


def _is_plain(config: QueueConfig, name: str) -> bool:
    return bool(getattr(config, name) == getattr(_PLAIN, name))


def _moved(config: QueueConfig, *names: str) -> bool:
    """Whether one of these settings is not at its default."""
    return not all(_is_plain(config, name) for name in names)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


RULES: Final[tuple[Rule, ...]] = (
    # ------------------------------------------------------------------------------------------------- streams
    Rule(
        "a stream with priorities above 1",
        ("kind", "priorities"),
        lambda c: c.kind == "stream" and c.priorities > 1,
        "a stream is read in log order",
        "keep priorities at 1, or use a work queue",
    ),
    Rule(
        "a stream with sequencing by producer or clock",
        ("kind", "sequencing"),
        lambda c: c.kind == "stream" and c.sequencing != "arrival",
        "a stream is read in log order, which is arrival order",
        'keep sequencing at "arrival", or use a work queue',
    ),
    Rule(
        "a stream with delay_ms",
        ("kind", "delay_ms"),
        lambda c: c.kind == "stream" and c.delay_ms > 0,
        "a stream is read in log order, so messages cannot be delayed",
        "keep delay_ms at 0, or use a work queue for delays",
    ),
    Rule(
        "a stream with delivery at_most_once or exactly_once",
        ("kind", "delivery"),
        lambda c: c.kind == "stream" and c.delivery != "at_least_once",
        "each reader of a stream has its own position; delivering or acking a message does not settle it",
        'keep delivery at "at_least_once"; use dedupe to store repeated publishes once',
    ),
    Rule(
        "a stream with fair_by: key",
        ("kind", "fair_by"),
        lambda c: c.kind == "stream" and c.fair_by == "key",
        "every reader of a stream gets all messages in order, so keys do not compete",
        'keep fair_by at "none"',
    ),
    Rule(
        "a stream with message_ttl_ms",
        ("kind", "message_ttl_ms"),
        lambda c: c.kind == "stream" and c.message_ttl_ms is not None,
        "a stream keeps messages for retention_ms",
        "set retention_ms",
    ),
    Rule(
        "a stream with overflow dead_letter_oldest or dead_letter_newest",
        ("kind", "overflow"),
        lambda c: c.kind == "stream" and c.overflow in _DEAD_LETTER,
        "a message of a stream belongs to all readers, so it cannot become a dead letter",
        'use overflow "reject" or "drop_oldest"',
    ),
    Rule(
        "a work queue with retention_ms or retention_bytes",
        ("kind", "retention_ms", "retention_bytes"),
        lambda c: c.kind == "work" and _moved(c, "retention_ms", "retention_bytes"),
        "a work queue keeps a message until it is settled",
        "use message_ttl_ms, max_messages or max_bytes, or use a stream",
    ),
    # ---------------------------------------------------------------------------------------------- partitions
    Rule(
        "sequencing: producer or clock with partitions above 1 or auto_expand",
        ("sequencing", "partitions", "auto_expand"),
        lambda c: c.sequencing != "arrival" and _moved(c, "partitions", "auto_expand"),
        "messages are sorted per partition, so several partitions would give several orders",
        'keep partitions at 1 without auto_expand, or use sequencing "arrival"',
    ),
    Rule(
        "auto_expand with max_partitions below partitions",
        ("auto_expand", "partitions"),
        lambda c: c.auto_expand is not None and c.auto_expand.max_partitions < c.partitions,
        "the queue would start with more partitions than its maximum",
        "set max_partitions to at least partitions",
    ),
    Rule(
        "auto_expand with shrink_percent from at_percent on",
        ("auto_expand",),
        lambda c: c.auto_expand is not None and c.auto_expand.shrink_percent >= c.auto_expand.at_percent,
        "the queue would grow and shrink repeatedly",
        "set shrink_percent below at_percent",
    ),
    # --------------------------------------------------------------------------------------------------- order
    Rule(
        "ordering: strict with priorities above 1",
        ("ordering", "priorities"),
        lambda c: c.ordering == "strict" and c.priorities > 1,
        "a message with a higher priority would overtake an earlier one with the same key",
        'keep priorities at 1, or use ordering "best_effort"',
    ),
    Rule(
        "ordering: strict with fair_by: key",
        ("ordering", "fair_by"),
        lambda c: c.ordering == "strict" and c.fair_by == "key",
        "with strict order, a key is with one consumer at a time, so no key can crowd out the others",
        'keep fair_by at "none"',
    ),
    Rule(
        "ordering: best_effort with key_run_max",
        ("ordering", "key_run_max"),
        lambda c: c.ordering == "best_effort" and _moved(c, "key_run_max"),
        "only strict order delivers messages by key",
        'remove key_run_max, or use ordering "strict"',
    ),
    Rule(
        "sequencing: producer or clock with priorities above 1",
        ("sequencing", "priorities"),
        lambda c: c.sequencing != "arrival" and c.priorities > 1,
        "priorities would undo the sorting",
        'keep priorities at 1, or use sequencing "arrival"',
    ),
    Rule(
        "sequencing: producer or clock with delay_ms",
        ("sequencing", "delay_ms"),
        lambda c: c.sequencing != "arrival" and c.delay_ms > 0,
        "a message cannot wait for both its position and a time",
        'keep delay_ms at 0, or use sequencing "arrival"; sort_window_ms delays messages too',
    ),
    Rule(
        "sequencing: producer or clock with fair_by: key",
        ("sequencing", "fair_by"),
        lambda c: c.sequencing != "arrival" and c.fair_by == "key",
        "fair delivery by key would undo the sorting",
        'keep fair_by at "none", or use sequencing "arrival"',
    ),
    Rule(
        "sequencing: arrival with sort_window_ms, late_messages or sort_held_messages_max",
        ("sequencing", "sort_window_ms", "late_messages", "sort_held_messages_max"),
        lambda c: c.sequencing == "arrival" and _moved(c, "sort_window_ms", "late_messages", "sort_held_messages_max"),
        "in arrival order, nothing is sorted and nothing is late",
        'remove them, or use sequencing "producer" or "clock"',
    ),
    Rule(
        "sequencing: clock with message_ttl_ms or retention_ms up to sort_window_ms",
        ("sort_window_ms", "sequencing", "message_ttl_ms", "retention_ms"),
        lambda c: (
            c.sequencing == "clock"
            and min(c.message_ttl_ms or c.sort_window_ms + 1, c.retention_ms or c.sort_window_ms + 1)
            <= c.sort_window_ms
        ),
        "every message would expire before its position in the order is known",
        "keep messages longer than sort_window_ms",
    ),
    # ------------------------------------------------------------------------------------------------ delivery
    Rule(
        "delivery: at_most_once with visibility_timeout_ms, max_attempts or a backoff",
        ("delivery", "visibility_timeout_ms", "max_attempts", "retry_backoff_ms", "retry_backoff_ms_max"),
        lambda c: (
            c.delivery == "at_most_once"
            and _moved(c, "visibility_timeout_ms", "max_attempts", "retry_backoff_ms", "retry_backoff_ms_max")
        ),
        "a message is settled before it is delivered, so it has no lease and no second attempt",
        'remove them, or use delivery "at_least_once"',
    ),
    Rule(
        "delivery: at_most_once with lease_mode: replicated",
        ("delivery", "lease_mode"),
        lambda c: c.delivery == "at_most_once" and c.lease_mode == "replicated",
        "a message is settled before it is delivered, so it has no lease",
        'keep lease_mode at "memory"',
    ),
    Rule(
        "delivery: at_most_once with ordering: strict",
        ("delivery", "ordering"),
        lambda c: c.delivery == "at_most_once" and c.ordering == "strict",
        "a message is settled before it is delivered, so the next one with its key could go to another consumer "
        "immediately",
        'keep ordering at "best_effort", which delivers messages in order, or use delivery "at_least_once"',
    ),
    Rule(
        "delivery: exactly_once with lease_mode: memory",
        ("lease_mode", "delivery"),
        lambda c: c.delivery == "exactly_once" and c.lease_mode == "memory" and c.durability == "fsync",
        "after a crash, a message could go to a second consumer while the first still holds it",
        'keep lease_mode at "replicated", or use delivery "at_least_once"',
    ),
    Rule(
        "delivery: exactly_once with dedupe: none",
        ("dedupe", "delivery"),
        lambda c: c.delivery == "exactly_once" and c.dedupe == "none",
        "a repeated publish would be stored twice",
        'remove dedupe, or set it to "id" or "content"',
    ),
    Rule(
        "delivery: exactly_once with durability: relaxed",
        ("delivery", "durability"),
        lambda c: c.delivery == "exactly_once" and c.durability == "relaxed",
        "a power failure could lose a confirmed message, and nobody would send it again",
        'keep durability at "fsync"',
    ),
    Rule(
        "delivery: exactly_once with overflow: drop_oldest",
        ("delivery", "overflow"),
        lambda c: c.delivery == "exactly_once" and c.overflow == "drop_oldest",
        "confirmed messages would be dropped unread",
        'use overflow "reject", "dead_letter_oldest" or "dead_letter_newest"',
    ),
    Rule(
        "durability: relaxed with lease_mode: replicated",
        ("durability", "lease_mode"),
        lambda c: c.durability == "relaxed" and c.lease_mode == "replicated",
        "the lease would wait for the disk although the message did not",
        'use durability "fsync", or lease_mode "memory"',
    ),
    # -------------------------------------------------------------------------------- attempts and dead letters
    Rule(
        "retry_backoff_ms: 0 with retry_backoff_ms_max",
        ("retry_backoff_ms", "retry_backoff_ms_max"),
        lambda c: c.retry_backoff_ms == 0 and c.retry_backoff_ms_max is not None,
        "without a backoff, the maximum has no effect",
        "set retry_backoff_ms, or remove retry_backoff_ms_max",
    ),
    Rule(
        "retry_backoff_ms_max below retry_backoff_ms",
        ("retry_backoff_ms", "retry_backoff_ms_max"),
        lambda c: c.retry_backoff_ms_max is not None and c.retry_backoff_ms_max < c.retry_backoff_ms,
        "the maximum backoff is shorter than the first",
        "set retry_backoff_ms_max to at least retry_backoff_ms",
    ),
    Rule(
        "dead_letter_queue: null with max_attempts",
        ("dead_letter_queue", "max_attempts"),
        lambda c: c.dead_letter_queue is None and _moved(c, "max_attempts"),
        "without a dead-letter queue attempts have no limit",
        f"set a dead-letter queue, or keep max_attempts at {_PLAIN.max_attempts}",
    ),
    Rule(
        "dead_letter_queue: null with overflow dead_letter_oldest or dead_letter_newest",
        ("dead_letter_queue", "overflow"),
        lambda c: c.dead_letter_queue is None and c.overflow in _DEAD_LETTER,
        "overflowing messages would have no target",
        'set a dead-letter queue, or use overflow "reject" or "drop_oldest"',
    ),
    # -------------------------------------------------------------------------------------------------- limits
    Rule(
        "overflow other than reject without max_messages and max_bytes",
        ("overflow", "max_messages", "max_bytes"),
        lambda c: c.overflow != "reject" and c.max_messages is None and c.max_bytes is None,
        "without a limit, nothing overflows",
        'set max_messages or max_bytes, or keep overflow at "reject"',
    ),
    Rule(
        "max_message_bytes above max_bytes",
        ("max_bytes", "max_message_bytes"),
        lambda c: c.max_bytes is not None and c.max_bytes < c.max_message_bytes and _moved(c, "max_message_bytes"),
        "a message of that size would never fit",
        "set max_bytes to at least max_message_bytes",
    ),
)
