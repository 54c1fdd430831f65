"""The settings of a queue: each one's meaning, range and cost, and whether it can be changed on an existing queue.

One table for all users: the checks of `config`, the API's document, the help of `pushq queue create` and the
reference page.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from backend_store.model import MESSAGE_BYTES_LIMIT, PARTITIONS_MAX, PRIORITIES_MAX, VISIBILITY_MS_MAX
from gateway.limits import (
    ATTEMPTS_MAX,
    DEDUPE_WINDOW_MS_MAX,
    DEDUPE_WINDOW_MS_MIN,
    HORIZON_MS_MAX,
    KEY_RUN_LIMIT,
    QUEUE_BYTES_LIMIT,
    QUEUE_MESSAGES_LIMIT,
    SORT_HELD_MESSAGES_LIMIT,
    SORT_WINDOW_MS_MAX,
    TAG_BYTES_MAX,
    TAGS_MAX,
)


class Setting(NamedTuple):
    """One setting. `default`: the default in words; `fixed`: why it cannot change; `change`: when a change applies."""

    means: str
    cost: str = ""
    low: int | None = None
    high: int | None = None
    default: str = ""
    fixed: str = ""
    change: str = "at once"


_NEW_MESSAGES = "for later publishes"
_NEW_DELIVERIES = "for later deliveries"

SETTINGS: Final[dict[str, Setting]] = {
    "kind": Setting(
        "work: each message goes to one consumer and is deleted once acknowledged; stream: messages are retained, "
        "and every reader or group gets all of them.",
        cost="A stream keeps consumed messages on disk.",
        fixed="messages of a work queue are leased and deleted, those of a stream are retained",
    ),
    "partitions": Setting(
        "Number of partitions. All messages with the same key are in one partition, so ordering by key and "
        "deduplication survive changes; there is no order between keys.",
        cost="Messages without a key are in order only within one publish call. A subscription takes from all "
        "partitions in turn.",
        low=1,
        high=PARTITIONS_MAX,
        change="in the background, slot by slot; stored messages stay where they are",
    ),
    "delivery": Setting(
        "at_least_once: leased until acknowledged; at_most_once: settled before delivery; exactly_once: repeated "
        "publishes are dropped and only one ack succeeds.",
        cost="at_most_once loses messages that a consumer does not finish. exactly_once stores 16 bytes per id "
        "for the window.",
        fixed="messages in flight were delivered under another guarantee",
    ),
    "ordering": Setting(
        "best_effort: arrival order, except for redeliveries and parallel consumers; strict: messages with the same "
        "key are delivered in order, to one consumer at a time. Without keys, strict is one order for the whole "
        "queue.",
        cost="strict reads keys, and a message waits until earlier ones with its key are acked.",
        fixed="messages in flight may already be out of order",
    ),
    "sequencing": Setting(
        "The source of the order. arrival: as messages arrive; producer: by each producer's sequence numbers, "
        "waiting for gaps and dropping repeats; clock: by message timestamps, sorted within a window.",
        cost="producer and clock delay messages by up to sort_window_ms.",
        fixed="stored messages have no position in the new order",
    ),
    "sort_window_ms": Setting(
        "With sequencing producer or clock: how long a message waits for earlier ones.",
        cost="Adds that much latency: always with clock, only after a gap with producer.",
        low=0,
        high=SORT_WINDOW_MS_MAX,
    ),
    "late_messages": Setting(
        "What happens to a message that arrives after its position was delivered. late_queue: it goes to "
        "<queue>.late; head: it is delivered next (with strict order: of its key), flagged late.",
        cost="late_queue: someone must process that queue. head: consumers must handle late messages.",
        change=_NEW_MESSAGES,
    ),
    "sort_held_messages_max": Setting(
        "Maximum messages waiting for their position; beyond it, publishes are refused with overloaded.",
        cost="Memory for each waiting message.",
        low=1,
        high=SORT_HELD_MESSAGES_LIMIT,
    ),
    "visibility_timeout_ms": Setting(
        "How long a delivered message waits for its ack before it is redelivered; applies to work queues and leased "
        "groups of streams. A subscriber can override it.",
        cost="A long timeout delays messages of a dead consumer; a short one redelivers messages of a slow consumer.",
        low=0,
        high=VISIBILITY_MS_MAX,
        change=_NEW_DELIVERIES + ", to later subscriptions",
    ),
    "max_attempts": Setting(
        "Number of failed attempts after which a message is dead-lettered.",
        cost="A row for each failed message, until it is settled.",
        low=1,
        high=ATTEMPTS_MAX,
        change="for later failures; a message that already has as many attempts gets one more",
    ),
    "retry_backoff_ms": Setting(
        "Delay after the first failed attempt, doubled after each further one. A nack can set its own delay.",
        cost="A strict queue holds back the rest of the key meanwhile.",
        low=0,
        high=VISIBILITY_MS_MAX,
        change="for later failures",
    ),
    "retry_backoff_ms_max": Setting(
        f"The maximum delay; null is {VISIBILITY_MS_MAX // 3_600_000} h.",
        low=1,
        high=VISIBILITY_MS_MAX,
        change="for later failures",
    ),
    "dead_letter_queue": Setting(
        "Where dead letters go: <queue>.dead, its own companion, or an existing queue. null: unlimited attempts and "
        "no dead letters.",
        cost="The companion: none, a message changes state in place. Another queue: one more publish.",
        default="<queue>.dead",
        change="for messages dead-lettered later",
    ),
    "message_ttl_ms": Setting(
        "How long a message lives, from its publish, or from its due time if it is delayed; null: forever. A "
        "message can set a shorter TTL. Expired messages go to a dead-letter queue only if one is named; otherwise "
        "they are dropped and counted.",
        cost="A scan for expired messages.",
        low=1,
        high=HORIZON_MS_MAX,
        change=_NEW_MESSAGES,
    ),
    "delay_ms": Setting(
        "Delay of new messages, unless they set their own.",
        cost="An entry in the schedule, on disk.",
        low=0,
        high=HORIZON_MS_MAX,
        change=_NEW_MESSAGES,
    ),
    "retention_ms": Setting(
        "How long a stream retains messages; null: as long as retention_bytes allows.",
        cost="Disk space.",
        low=1,
        high=HORIZON_MS_MAX,
        default="7 days for streams, null for work queues",
    ),
    "retention_bytes": Setting(
        "How much a stream retains; the oldest messages are dropped first. null: unlimited.",
        cost="Disk space.",
        low=1,
        high=QUEUE_BYTES_LIMIT,
    ),
    "max_messages": Setting(
        "Maximum number of messages in the queue, including those in flight and delayed; null: limited only by "
        "the disk.",
        low=1,
        high=QUEUE_MESSAGES_LIMIT,
    ),
    "max_bytes": Setting(
        "Maximum number of bytes in the queue; null: limited only by the disk.", low=1, high=QUEUE_BYTES_LIMIT
    ),
    "overflow": Setting(
        "What happens to a publish beyond max_messages or max_bytes. reject: it is refused with queue-full; "
        "dead_letter_oldest and dead_letter_newest: one message is dead-lettered; drop_oldest: the oldest messages "
        "are dropped and counted.",
        cost="drop_oldest loses confirmed messages.",
        change="for later publishes",
    ),
    "max_message_bytes": Setting(
        "Maximum size of a message: its decoded body plus its headers.",
        cost="A message larger than 16 KiB is stored on its own.",
        low=1,
        high=MESSAGE_BYTES_LIMIT,
        change=_NEW_MESSAGES,
    ),
    "priorities": Setting(
        "Number of priorities: a message's priority is between 0 and one less, higher first. Lower priorities keep "
        "at least 5 % of the deliveries.",
        cost="A publish with several priorities is stored as that many chunks.",
        low=1,
        high=PRIORITIES_MAX,
        change="it may only grow",
    ),
    "dedupe": Setting(
        "Which repeated messages are dropped: none, those with the same id, or those with the same content.",
        cost="16 bytes per message on disk for the window, and a lookup for possible repeats.",
        default="id for exactly_once, else none",
        change=_NEW_MESSAGES,
    ),
    "dedupe_window_ms": Setting(
        "How long ids are remembered, and idempotency keys in any queue. When the memory is full, publishes are "
        "refused with dedupe-full; the window is never shortened.",
        cost="As for dedupe.",
        low=DEDUPE_WINDOW_MS_MIN,
        high=DEDUPE_WINDOW_MS_MAX,
        change="immediately; ids already dropped by a shorter window stay forgotten",
    ),
    "durability": Setting(
        "When a publish is confirmed. fsync: once it is on disk; relaxed: once it is queued for the writer, with "
        "fsynced false in the response.",
        cost="relaxed can lose the latest confirmed messages when the process is killed or the power fails.",
        change="for later publishes",
    ),
    "replication": Setting(
        "How the queue is replicated: an object with factor, mode, min_in_sync and model. The given values select "
        "where the queue is placed and are refused if no place matches; omitted values come from the place.",
        cost="sync waits for the disks of other machines; async can lose the latest messages when a machine is lost.",
        default="as set on its backends; without backends, a single copy",
        fixed="a queue stays where it was created",
    ),
    "lease_mode": Setting(
        "Where leases are stored. memory: in memory, and in the data folder across a clean stop; replicated: on "
        "disk before a message is sent, so that no crash delivers it twice at the same time.",
        cost="replicated: one commit before each delivery.",
        default="replicated for strict and exactly_once, else memory; memory for at_most_once and relaxed",
        fixed="existing leases are stored one way or the other",
    ),
    "encrypted": Setting(
        "Whether body, headers, content type, `reply_to` and `correlation_id` are encrypted on disk; `id`, `key`, "
        "priority and times stay readable.",
        cost="Two AES passes over each block of messages.",
        change=_NEW_MESSAGES,
    ),
    "fair_by": Setting(
        "key: a key with many waiting messages does not hold up the others; none: arrival order for all.",
        cost="key reads the keys of messages that have one.",
        default="key for best_effort work queues in arrival order, else none",
        fixed="waiting messages are queued one way or the other",
    ),
    "key_run_max": Setting(
        "Maximum messages with the same key that a consumer of a strict queue gets in one batch.",
        cost="With a large value, one consumer holds a key for longer.",
        low=1,
        high=KEY_RUN_LIMIT,
        change=_NEW_DELIVERIES,
    ),
    "auto_expand": Setting(
        "Adds partitions as the queue fills up, and removes them when it is nearly empty: an object with of "
        "(partition_messages or partition_bytes), limit, at_percent, shrink_percent and max_partitions. null: the "
        "number is fixed by partitions.",
        cost="A check of the queue's numbers every second.",
        change="immediately, as a whole; null returns to partitions",
    ),
    "colocate_with": Setting(
        "A queue of the same tenant to store messages next to, so that an ack in one and a publish in the other can "
        "be one atomic step."
    ),
    "tags": Setting(f"Your own names and values, at most {TAGS_MAX} and {TAG_BYTES_MAX // 1024} KiB."),
}

AUTO_EXPAND: Final[dict[str, Setting]] = {
    "of": Setting("What is measured across the queue: its messages, or the bytes of its chunks."),
    "limit": Setting("Target number of messages or bytes per partition.", low=1, high=QUEUE_BYTES_LIMIT),
    "at_percent": Setting(
        "Above this percentage of the limit, over all open partitions, the queue adds enough partitions to fall "
        "below it.",
        low=2,
        high=100,
    ),
    "shrink_percent": Setting(
        "Below this percentage of the limit for a minute, the queue removes a partition, unless it would then "
        "grow again.",
        low=1,
        high=99,
    ),
    "max_partitions": Setting(
        "Maximum number of partitions. The queue never has fewer than the setting partitions.",
        low=2,
        high=PARTITIONS_MAX,
    ),
}
"""The parts of `auto_expand`."""


def _ranges(settings: dict[str, Setting]) -> dict[str, tuple[int, int]]:
    return {
        name: (setting.low, setting.high)
        for name, setting in settings.items()
        if setting.low is not None and setting.high is not None
    }


RANGES: Final = _ranges(SETTINGS)
REPLICATION: Final[dict[str, Setting]] = {
    "factor": Setting("Number of copies, each on a different machine.", low=1, high=16),
    "mode": Setting(
        "sync: confirmed when it is on the disks of min_in_sync machines; async: when it is on the leader's disk, "
        "with the others following."
    ),
    "min_in_sync": Setting(
        "Number of copies that must have a message before it is confirmed, with mode sync.", low=1, high=16
    ),
    "model": Setting(
        "leader_follower: the queue has one leader; independent_hosts: it has a lane on each of several hosts. On "
        "independent hosts, leader_follower is a queue with one lane."
    ),
}
"""The parts of `replication`."""
PART_RANGES: Final = _ranges(AUTO_EXPAND)
"""Of the parts of `auto_expand`."""
REPLICATION_RANGES: Final = _ranges(REPLICATION)
"""Of the parts of `replication`."""
FIXED: Final[dict[str, str]] = {name: setting.fixed for name, setting in SETTINGS.items() if setting.fixed}
"""Settings that a living queue keeps, and why."""

LATER_SETTINGS: Final[frozenset[str]] = frozenset()
"""Settings of the protocol that this version does not have."""
