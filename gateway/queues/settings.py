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


_NEW_MESSAGES = "for messages published afterwards"
_NEW_DELIVERIES = "for deliveries that begin afterwards"

SETTINGS: Final[dict[str, Setting]] = {
    "kind": Setting(
        "work: each message goes to one consumer and is deleted once acknowledged; stream: messages are kept and every "
        "reader or group gets every one.",
        cost="A stream keeps what was read, on the disk.",
        fixed="messages of a work queue are leased and deleted, those of a stream are kept",
    ),
    "partitions": Setting(
        "How many logs the queue is made of. Messages of one key are in one of them, so order by key and deduplication "
        "hold across changes; between keys there is no order.",
        cost="A producer's messages without a key are in order only within a call. A subscription takes from all in "
        "turn.",
        low=1,
        high=PARTITIONS_MAX,
        change="in the background, slot by slot; what is there stays where it is",
    ),
    "delivery": Setting(
        "at_least_once: leased until acknowledged; at_most_once: settled before it is handed out; exactly_once: "
        "repeated publishes are dropped and one ack wins.",
        cost="at_most_once loses what a consumer did not finish. exactly_once keeps 16 bytes an id for the window.",
        fixed="messages that are out were handed out under another promise",
    ),
    "ordering": Setting(
        "best_effort: arrival order as far as redeliveries and several consumers allow; strict: messages of one key in "
        "order, to one consumer at a time. Without keys strict is one order for the queue.",
        cost="strict reads keys, and a message waits for the acks of those before it with its key.",
        fixed="messages that are out may already have overtaken each other",
    ),
    "sequencing": Setting(
        "Where the order comes from. arrival: as messages came; producer: by each producer's own numbers, gaps are "
        "waited for and repeats dropped; clock: by the messages' timestamps, sorted within a window.",
        cost="producer and clock hold messages back for up to sort_window_ms.",
        fixed="messages that are stored have no place in the new order",
    ),
    "sort_window_ms": Setting(
        "With sequencing producer or clock: how long a message waits for earlier ones.",
        cost="As much latency: always with clock, only behind a gap with producer.",
        low=0,
        high=SORT_WINDOW_MS_MAX,
    ),
    "late_messages": Setting(
        "Where a message goes that comes after its place was handed out. late_queue: to <queue>.late; head: it is the "
        "next to be handed out, flagged late.",
        cost="late_queue: somebody has to look into it. head: consumers have to bear with it.",
        change=_NEW_MESSAGES,
    ),
    "sort_held_messages_max": Setting(
        "How many messages may wait for their place; above it publishes are refused with overloaded.",
        cost="Memory for each that waits.",
        low=1,
        high=SORT_HELD_MESSAGES_LIMIT,
    ),
    "visibility_timeout_ms": Setting(
        "How long a delivered message waits for its ack before it is delivered again; of work queues and leased groups "
        "of streams. A subscriber may ask for another time.",
        cost="A long one delays what a dead consumer held, a short one repeats what a slow one holds.",
        low=0,
        high=VISIBILITY_MS_MAX,
        change=_NEW_DELIVERIES + ", to consumers that subscribe afterwards",
    ),
    "max_attempts": Setting(
        "After so many failed attempts a message is a dead letter.",
        cost="A row for each message that failed, until it is settled.",
        low=1,
        high=ATTEMPTS_MAX,
        change="for attempts that fail afterwards; a message that had as many already gets one more",
    ),
    "retry_backoff_ms": Setting(
        "How long a message rests after its first failed attempt, and twice as long after each further one. A nack may "
        "name a delay itself.",
        cost="A strict queue holds the rest of the key back meanwhile.",
        low=0,
        high=VISIBILITY_MS_MAX,
        change="for attempts that fail afterwards",
    ),
    "retry_backoff_ms_max": Setting(
        f"The longest such rest; null is {VISIBILITY_MS_MAX // 3_600_000} h.",
        low=1,
        high=VISIBILITY_MS_MAX,
        change="for attempts that fail afterwards",
    ),
    "dead_letter_queue": Setting(
        "Where dead letters go: <queue>.dead, its own companion, or a queue that exists. null: attempts have no limit, "
        "and there are no dead letters.",
        cost="The companion: none, a message changes its state where it lies. Another queue: one more publish.",
        default="<queue>.dead",
        change="for messages that die afterwards",
    ),
    "message_ttl_ms": Setting(
        "How long a message lives, from its publish, or from its time if it is delayed; null: for ever. One that names "
        "a time itself lives no longer than this. Expired ones go to a dead-letter queue only where one is named, else "
        "they are dropped and counted.",
        cost="A sweep over what has expired.",
        low=1,
        high=HORIZON_MS_MAX,
        change=_NEW_MESSAGES,
    ),
    "delay_ms": Setting(
        "How long a new message stays out of sight, where it says nothing itself.",
        cost="An entry in the schedule, on the disk.",
        low=0,
        high=HORIZON_MS_MAX,
        change=_NEW_MESSAGES,
    ),
    "retention_ms": Setting(
        "How long a stream keeps messages; null: as long as retention_bytes allows.",
        cost="Room on the disk.",
        low=1,
        high=HORIZON_MS_MAX,
        default="7 days for streams, null for work queues",
    ),
    "retention_bytes": Setting(
        "How much a stream keeps; the oldest go first. null: all.",
        cost="Room on the disk.",
        low=1,
        high=QUEUE_BYTES_LIMIT,
    ),
    "max_messages": Setting(
        "How many messages a queue holds, those in flight and delayed too; null: no limit but the disk.",
        low=1,
        high=QUEUE_MESSAGES_LIMIT,
    ),
    "max_bytes": Setting("How many bytes a queue holds; null: no limit but the disk.", low=1, high=QUEUE_BYTES_LIMIT),
    "overflow": Setting(
        "What happens to a publish above max_messages or max_bytes. reject: it is refused with queue-full; "
        "dead_letter_oldest and dead_letter_newest: one message becomes a dead letter; drop_oldest: the oldest are "
        "dropped and counted.",
        cost="drop_oldest loses messages that were confirmed.",
        change="for publishes afterwards",
    ),
    "max_message_bytes": Setting(
        "The largest message: its body, decoded, and its headers together.",
        cost="A message beyond 16 KiB is stored by itself.",
        low=1,
        high=MESSAGE_BYTES_LIMIT,
        change=_NEW_MESSAGES,
    ),
    "priorities": Setting(
        "How many priorities there are: a message's goes from 0 to one less, higher ones first. Lower ones keep at "
        "least 5 % of the deliveries.",
        cost="A publish with several priorities is stored in as many pieces.",
        low=1,
        high=PRIORITIES_MAX,
        change="it may only grow",
    ),
    "dedupe": Setting(
        "Which repeated messages are dropped: none, those with the same id, or those with the same content.",
        cost="16 bytes a message on the disk for the window, and a look-up for those that may be repeats.",
        default="id for exactly_once, else none",
        change=_NEW_MESSAGES,
    ),
    "dedupe_window_ms": Setting(
        "How long a message is remembered, and in any queue an idempotency key. A full memory refuses publishes with "
        "dedupe-full; it never shortens the window.",
        cost="As for dedupe.",
        low=DEDUPE_WINDOW_MS_MIN,
        high=DEDUPE_WINDOW_MS_MAX,
        change="at once; what a shorter window forgot does not come back",
    ),
    "durability": Setting(
        "When a publish is confirmed. fsync: when it is on the disk; relaxed: once it is queued for the writer, with "
        "fsynced false in the answer.",
        cost="relaxed loses the last moments' confirmed messages when the process is killed or the power fails.",
        change="for publishes afterwards",
    ),
    "replication": Setting(
        "How the queue is copied: an object with factor, mode, min_in_sync and model. What is given chooses where the "
        "queue lies, and is refused where no place has it; what is left out is as the place has it.",
        cost="sync waits for the disks of other machines; async may lose the last moments when a machine is lost.",
        default="as its backends have it; without any one copy, in sync with itself",
        fixed="a queue lies where it was made",
    ),
    "lease_mode": Setting(
        "Where leases are kept. memory: in memory, and in the data folder over a clean stop; replicated: on the disk "
        "before a message's bytes leave, so that no crash hands it out twice at a time.",
        cost="replicated: a commit before each delivery.",
        default="replicated for strict and exactly_once, else memory; memory for at_most_once and relaxed",
        fixed="leases that are out are kept in the one place or the other",
    ),
    "encrypted": Setting(
        "Whether body, headers, content type, `reply_to` and `correlation_id` are encrypted on the disk; `id`, `key`, "
        "priority and times stay readable.",
        cost="Two passes of AES over each block of messages.",
        change=_NEW_MESSAGES,
    ),
    "fair_by": Setting(
        "key: a key with many waiting messages does not hold up the others; none: arrival order for all.",
        cost="key reads the keys of messages that have one.",
        default="key for best_effort work queues in arrival order, else none",
        fixed="waiting messages are lined up in the one way or the other",
    ),
    "key_run_max": Setting(
        "How many messages of one key a consumer of a strict queue may get in one batch.",
        cost="A long run lets one consumer hold a key for longer.",
        low=1,
        high=KEY_RUN_LIMIT,
        change=_NEW_DELIVERIES,
    ),
    "auto_expand": Setting(
        "Gives the queue more partitions as it fills up, and takes them away when it is nearly empty: an object with "
        "of (partition_messages or partition_bytes), limit, at_percent, shrink_percent and max_partitions. null: it "
        "has as many as partitions says.",
        cost="A look at the queue's numbers every second.",
        change="at once, as a whole; null leads back to partitions",
    ),
    "colocate_with": Setting(
        "A queue of the tenant whose messages lie beside this one's, so that an ack here and a publish there, or the "
        "other way round, can be one atomic step."
    ),
    "tags": Setting(f"Yours: names and values, up to {TAGS_MAX} of them and {TAG_BYTES_MAX // 1024} KiB."),
}

AUTO_EXPAND: Final[dict[str, Setting]] = {
    "of": Setting("What is measured of all that lies in the queue: its messages, or the bytes of its chunks."),
    "limit": Setting("How many messages or bytes one partition is for.", low=1, high=QUEUE_BYTES_LIMIT),
    "at_percent": Setting(
        "From this part of the limit on, for all open partitions together, the queue gets as many more as bring it "
        "below.",
        low=2,
        high=100,
    ),
    "shrink_percent": Setting(
        "Below this part of the limit for a minute, it gives one up; not where that would make it grow again.",
        low=1,
        high=99,
    ),
    "max_partitions": Setting(
        "How many partitions it grows to at most. It never has fewer than the setting partitions.",
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
    "factor": Setting("How many copies there are, on so many machines.", low=1, high=16),
    "mode": Setting(
        "sync: confirmed when it is on the disks of min_in_sync machines; async: when it is on the leader's, which the "
        "others follow."
    ),
    "min_in_sync": Setting(
        "How many copies must have a message before it is confirmed, with mode sync.", low=1, high=16
    ),
    "model": Setting(
        "leader_follower: the queue has one leader; independent_hosts: it has a lane at each of several hosts. At "
        "independent hosts leader_follower is a queue of one lane."
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
