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
        "a stream is read in the order of its log",
        "leave priorities at 1, or make a work queue",
    ),
    Rule(
        "a stream with sequencing by producer or clock",
        ("kind", "sequencing"),
        lambda c: c.kind == "stream" and c.sequencing != "arrival",
        "a stream is read in the order of its log, which is that of arrival",
        'leave sequencing at "arrival", or make a work queue',
    ),
    Rule(
        "a stream with delay_ms",
        ("kind", "delay_ms"),
        lambda c: c.kind == "stream" and c.delay_ms > 0,
        "a stream is read in the order of its log, so nothing in it waits for a time",
        "leave delay_ms at 0, or delay in a work queue",
    ),
    Rule(
        "a stream with delivery at_most_once or exactly_once",
        ("kind", "delivery"),
        lambda c: c.kind == "stream" and c.delivery != "at_least_once",
        "a stream's readers keep their own places, nothing is settled by handing it out or acking it",
        'leave delivery at "at_least_once"; dedupe stores repeated publishes once',
    ),
    Rule(
        "a stream with fair_by: key",
        ("kind", "fair_by"),
        lambda c: c.kind == "stream" and c.fair_by == "key",
        "every reader of a stream gets everything in order, so keys do not compete",
        'leave fair_by at "none"',
    ),
    Rule(
        "a stream with message_ttl_ms",
        ("kind", "message_ttl_ms"),
        lambda c: c.kind == "stream" and c.message_ttl_ms is not None,
        "a stream keeps its messages for retention_ms",
        "set retention_ms",
    ),
    Rule(
        "a stream with overflow dead_letter_oldest or dead_letter_newest",
        ("kind", "overflow"),
        lambda c: c.kind == "stream" and c.overflow in _DEAD_LETTER,
        "a message of a stream belongs to all its readers and is no single one's dead letter",
        'take overflow "reject" or "drop_oldest"',
    ),
    Rule(
        "a work queue with retention_ms or retention_bytes",
        ("kind", "retention_ms", "retention_bytes"),
        lambda c: c.kind == "work" and _moved(c, "retention_ms", "retention_bytes"),
        "a work queue keeps a message until it is settled",
        "set message_ttl_ms, max_messages or max_bytes, or make a stream",
    ),
    # ---------------------------------------------------------------------------------------------- partitions
    Rule(
        "sequencing: producer or clock with partitions above 1 or auto_expand",
        ("sequencing", "partitions", "auto_expand"),
        lambda c: c.sequencing != "arrival" and _moved(c, "partitions", "auto_expand"),
        "messages are sorted within a partition, so several would give several orders",
        'leave partitions at 1 and auto_expand out, or take sequencing "arrival"',
    ),
    Rule(
        "auto_expand with max_partitions below partitions",
        ("auto_expand", "partitions"),
        lambda c: c.auto_expand is not None and c.auto_expand.max_partitions < c.partitions,
        "the queue begins with more partitions than it may grow to",
        "give a max_partitions of at least partitions",
    ),
    Rule(
        "auto_expand with shrink_percent from at_percent on",
        ("auto_expand",),
        lambda c: c.auto_expand is not None and c.auto_expand.shrink_percent >= c.auto_expand.at_percent,
        "the queue would grow and shrink by turns",
        "give a shrink_percent below at_percent",
    ),
    # --------------------------------------------------------------------------------------------------- order
    Rule(
        "ordering: strict with priorities above 1",
        ("ordering", "priorities"),
        lambda c: c.ordering == "strict" and c.priorities > 1,
        "a message of a higher priority would overtake an earlier one of its key",
        'leave priorities at 1, or take ordering "best_effort"',
    ),
    Rule(
        "ordering: strict with fair_by: key",
        ("ordering", "fair_by"),
        lambda c: c.ordering == "strict" and c.fair_by == "key",
        "in strict order a key is with one consumer at a time, so none can crowd out the others",
        'leave fair_by at "none"',
    ),
    Rule(
        "ordering: strict with late_messages: head",
        ("ordering", "late_messages"),
        lambda c: c.ordering == "strict" and c.late_messages == "head",
        "a late message at the head would go to one consumer while another has messages of its key",
        'leave late_messages at "late_queue"',
    ),
    Rule(
        "ordering: best_effort with key_run_max",
        ("ordering", "key_run_max"),
        lambda c: c.ordering == "best_effort" and _moved(c, "key_run_max"),
        "only strict order hands out messages by key",
        'leave key_run_max out, or take ordering "strict"',
    ),
    Rule(
        "sequencing: producer or clock with priorities above 1",
        ("sequencing", "priorities"),
        lambda c: c.sequencing != "arrival" and c.priorities > 1,
        "priorities would undo the order that messages were sorted into",
        'leave priorities at 1, or take sequencing "arrival"',
    ),
    Rule(
        "sequencing: producer or clock with delay_ms",
        ("sequencing", "delay_ms"),
        lambda c: c.sequencing != "arrival" and c.delay_ms > 0,
        "a message cannot wait both for its place and for its time",
        'leave delay_ms at 0, or take sequencing "arrival"; sort_window_ms delays too',
    ),
    Rule(
        "sequencing: producer or clock with fair_by: key",
        ("sequencing", "fair_by"),
        lambda c: c.sequencing != "arrival" and c.fair_by == "key",
        "fair share by key would undo the order that messages were sorted into",
        'leave fair_by at "none", or take sequencing "arrival"',
    ),
    Rule(
        "sequencing: arrival with sort_window_ms, late_messages or sort_held_messages_max",
        ("sequencing", "sort_window_ms", "late_messages", "sort_held_messages_max"),
        lambda c: c.sequencing == "arrival" and _moved(c, "sort_window_ms", "late_messages", "sort_held_messages_max"),
        "in the order of arrival nothing is sorted and nothing is late",
        'leave them out, or take sequencing "producer" or "clock"',
    ),
    Rule(
        "sequencing: clock with message_ttl_ms or retention_ms up to sort_window_ms",
        ("sort_window_ms", "sequencing", "message_ttl_ms", "retention_ms"),
        lambda c: (
            c.sequencing == "clock"
            and min(c.message_ttl_ms or c.sort_window_ms + 1, c.retention_ms or c.sort_window_ms + 1)
            <= c.sort_window_ms
        ),
        "every message would be gone before its place in the order is known",
        "keep messages for longer than sort_window_ms",
    ),
    # ------------------------------------------------------------------------------------------------ delivery
    Rule(
        "delivery: at_most_once with visibility_timeout_ms, max_attempts or a back-off",
        ("delivery", "visibility_timeout_ms", "max_attempts", "retry_backoff_ms", "retry_backoff_ms_max"),
        lambda c: (
            c.delivery == "at_most_once"
            and _moved(c, "visibility_timeout_ms", "max_attempts", "retry_backoff_ms", "retry_backoff_ms_max")
        ),
        "a message is settled before it is handed out, so there is no lease and no second attempt",
        'leave them out, or take delivery "at_least_once"',
    ),
    Rule(
        "delivery: at_most_once with lease_mode: replicated",
        ("delivery", "lease_mode"),
        lambda c: c.delivery == "at_most_once" and c.lease_mode == "replicated",
        "a message is settled before it is handed out, so there is no lease to keep",
        'leave lease_mode at "memory"',
    ),
    Rule(
        "delivery: at_most_once with ordering: strict",
        ("delivery", "ordering"),
        lambda c: c.delivery == "at_most_once" and c.ordering == "strict",
        "a message is settled before it is handed out, so the next of its key goes to another consumer at once",
        'leave ordering at "best_effort", which hands them out in their order, or take delivery "at_least_once"',
    ),
    Rule(
        "delivery: exactly_once with lease_mode: memory",
        ("lease_mode", "delivery"),
        lambda c: c.delivery == "exactly_once" and c.lease_mode == "memory" and c.durability == "fsync",
        "after a crash a message would go to a second consumer while the first still holds it",
        'leave lease_mode at "replicated", or take delivery "at_least_once"',
    ),
    Rule(
        "delivery: exactly_once with dedupe: none",
        ("dedupe", "delivery"),
        lambda c: c.delivery == "exactly_once" and c.dedupe == "none",
        "a repeated publish would be stored twice",
        'leave dedupe out, or give "id" or "content"',
    ),
    Rule(
        "delivery: exactly_once with durability: relaxed",
        ("delivery", "durability"),
        lambda c: c.delivery == "exactly_once" and c.durability == "relaxed",
        "a confirmed message could be lost in a power failure, and nobody would send it again",
        'leave durability at "fsync"',
    ),
    Rule(
        "delivery: exactly_once with overflow: drop_oldest",
        ("delivery", "overflow"),
        lambda c: c.delivery == "exactly_once" and c.overflow == "drop_oldest",
        "a confirmed message would be thrown away unseen",
        'take overflow "reject" or one of dead_letter_oldest and dead_letter_newest',
    ),
    Rule(
        "durability: relaxed with lease_mode: replicated",
        ("durability", "lease_mode"),
        lambda c: c.durability == "relaxed" and c.lease_mode == "replicated",
        "a lease would wait for the disk that its message did not wait for",
        'take durability "fsync", or lease_mode "memory"',
    ),
    # -------------------------------------------------------------------------------- attempts and dead letters
    Rule(
        "retry_backoff_ms: 0 with retry_backoff_ms_max",
        ("retry_backoff_ms", "retry_backoff_ms_max"),
        lambda c: c.retry_backoff_ms == 0 and c.retry_backoff_ms_max is not None,
        "without a back-off there is nothing to grow up to it",
        "give retry_backoff_ms, or leave retry_backoff_ms_max out",
    ),
    Rule(
        "retry_backoff_ms_max below retry_backoff_ms",
        ("retry_backoff_ms", "retry_backoff_ms_max"),
        lambda c: c.retry_backoff_ms_max is not None and c.retry_backoff_ms_max < c.retry_backoff_ms,
        "the longest back-off is shorter than the first",
        "give a retry_backoff_ms_max of at least retry_backoff_ms",
    ),
    Rule(
        "dead_letter_queue: null with max_attempts",
        ("dead_letter_queue", "max_attempts"),
        lambda c: c.dead_letter_queue is None and _moved(c, "max_attempts"),
        "without a dead-letter queue attempts have no limit",
        f"name a dead-letter queue, or leave max_attempts at {_PLAIN.max_attempts}",
    ),
    Rule(
        "dead_letter_queue: null with overflow dead_letter_oldest or dead_letter_newest",
        ("dead_letter_queue", "overflow"),
        lambda c: c.dead_letter_queue is None and c.overflow in _DEAD_LETTER,
        "what overflows has nowhere to go",
        'name a dead-letter queue, or take overflow "reject" or "drop_oldest"',
    ),
    # -------------------------------------------------------------------------------------------------- limits
    Rule(
        "overflow other than reject without max_messages and max_bytes",
        ("overflow", "max_messages", "max_bytes"),
        lambda c: c.overflow != "reject" and c.max_messages is None and c.max_bytes is None,
        "without a limit nothing overflows",
        'give max_messages or max_bytes, or leave overflow at "reject"',
    ),
    Rule(
        "max_message_bytes above max_bytes",
        ("max_bytes", "max_message_bytes"),
        lambda c: c.max_bytes is not None and c.max_bytes < c.max_message_bytes and _moved(c, "max_message_bytes"),
        "a message of that size would never find room",
        "give a max_bytes of at least max_message_bytes",
    ),
)
