"""The types that all parts share: ids, queue definitions, blocks of messages, and errors that say whose turn it is.

A *block* is what one publish call adds to one partition: messages of one caller, encoded once by the gateway and stored
unchanged. Everything here is a plain value; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NewType

import msgspec

Offset = NewType("Offset", int)
"""Position in a partition's log. Each message takes one; each decision record takes one."""

Epoch = NewType("Epoch", int)
"""Number of a leadership. Rises when a partition gets a new leader or is restored from a backup."""

TENANT_DEFAULT = "default"

BLOCK_MESSAGES_MAX = 64
BLOCK_BYTES_MAX = 16 * 1024
CHUNK_MESSAGES_MAX = 256
CHUNK_BYTES_MAX = 64 * 1024
MESSAGE_BYTES_LIMIT = 1024 * 1024
MESSAGES_PER_REQUEST_MAX = 1000
VISIBILITY_MS_MAX = 12 * 3600 * 1000
PRIORITIES_MAX = 10
PARTITIONS_MAX = 64
COMPANION = ".dead"
"""Value of `dead_letter_queue`: the queue's own dead-letter queue, `<queue>.dead`. No queue can have this name."""


# ---------------------------------------------------------------------------------------------------- errors


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault in a request: an RFC 6901 pointer to it and a sentence."""

    pointer: str
    detail: str


class PushqError(Exception):
    """An error as the caller receives it: a stable code, a sentence with the facts, and when trying again helps.

    `code` is one of the codes of the public protocol; its HTTP status and title are in `push.problems`.
    """

    code = "internal"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: tuple[FieldError, ...] = (),
        retry_after_ms: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.errors = errors
        self.retry_after_ms = retry_after_ms
        self.headers = headers


class InvalidRequest(PushqError):
    code = "invalid-request"


class Unauthenticated(PushqError):
    code = "unauthenticated"


class TokenExpired(Unauthenticated):
    """The token was valid once; the caller needs a newer one."""


class Forbidden(PushqError):
    code = "forbidden"


class NotFound(PushqError):
    code = "not-found"


class QueueNotFound(PushqError):
    code = "queue-not-found"


class Conflict(PushqError):
    code = "conflict"


class QueueFull(PushqError):
    """The queue holds as much as its config allows; consume, purge, or raise the limit."""

    code = "queue-full"


class DedupeFull(PushqError):
    """The window holds as many ids as a partition keeps; the window is never shortened instead."""

    code = "dedupe-full"


class MessageTooLarge(PushqError):
    code = "message-too-large"


class StorageFull(PushqError):
    code = "storage-full"


class IdempotencyMismatch(PushqError):
    """The idempotency key belongs to another payload; nothing of this request is accepted."""

    code = "idempotency-mismatch"


class RequestInProgress(PushqError):
    """The first request under an idempotency key is not answered yet."""

    code = "request-in-progress"


class Overloaded(PushqError):
    code = "overloaded"


class Unavailable(PushqError):
    code = "unavailable"


class ClusterAway(Unavailable):
    """A whole cluster has been unreachable for some time, or never existed. Queues in other clusters are not
    affected."""


class OnTheMove(Unavailable):
    """The queue takes no publishes at this place, because it is moving to another cluster. Nothing was accepted. A
    gateway that receives this error looks up the queue's place again; its own callers see `unavailable`."""


class NotDurable(PushqError):
    """Too few replicas are in sync. Nothing was accepted."""

    code = "not-durable"


class OutcomeUnknown(PushqError):
    code = "outcome-unknown"


# ------------------------------------------------------------------------------------------ queue definitions


class Replication(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a queue is replicated, which depends on the queue's place. When a queue is created, a part states what the
    place must have, and None accepts any value; when a queue is shown, a part states what its place has, and None means
    that it is not known here. None is not serialized: processes of earlier versions read the rows and expect a value in
    each part."""

    factor: int | None = None
    mode: Literal["sync", "async"] | None = None
    min_in_sync: int | None = None
    model: Literal["leader_follower", "independent_hosts"] | None = None

    def asked(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def fits(self, place: Replication) -> bool:
        """Whether a place has everything that is asked for."""
        return all(getattr(place, part) == value for part, value in self.asked().items())

    def unlike(self, place: Replication) -> dict[str, Any]:
        """The parts that are asked for and that the place is known to have otherwise."""
        has = place.asked()
        return {part: value for part, value in self.asked().items() if has.get(part, value) != value}

    def check_at(self, place: Replication, queue: str) -> None:
        """Raises `InvalidRequest` with an error for each part that is asked for and that a place does not have."""
        has = place.asked()
        errors = tuple(
            FieldError(
                f"/replication/{part}", f"{part} is {value!r}, but where this queue is placed it is {has[part]!r}"
            )
            for part, value in self.unlike(place).items()
        )
        if errors:
            said = ", ".join(f"{part} {value!r}" for part, value in has.items())
            raise InvalidRequest(f"queue {queue!r} cannot be replicated like this: its place has {said}", errors=errors)


def placed(config: QueueConfig, place: Replication, queue: str) -> QueueConfig:
    """Returns the config as it is stored. Raises `InvalidRequest` where the place does not have what the config asks
    for."""
    config.replication.check_at(place, queue)
    return config.bare()


ONE_NODE = Replication(factor=1, mode="sync", min_in_sync=1, model="leader_follower")
"""Of a process that stores its queues itself."""


class AutoExpand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the number of a queue's partitions changes automatically. `limit` is the number of messages or bytes meant
    for one partition: at `at_percent` of the limit of all partitions together the queue grows, below `shrink_percent`
    it shrinks.
    """

    of: Literal["partition_messages", "partition_bytes"]
    limit: int
    at_percent: int = 80
    shrink_percent: int = 30
    max_partitions: int = 64


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue's settings. A literal with one value is a setting whose other values are not built; they are refused.

    Defaults that depend on another setting (`lease_mode`, `dedupe`, `fair_by`, `retention_ms`) are filled in by the
    code that accepts the config from a caller, so that the stored config is complete. `dead_letter_queue` is
    `COMPANION` for the queue's own dead-letter queue, a queue's name, or None for unlimited attempts.
    """

    kind: Literal["work", "stream"] = "work"
    partitions: int = 1
    delivery: Literal["at_least_once", "at_most_once", "exactly_once"] = "at_least_once"
    ordering: Literal["best_effort", "strict"] = "best_effort"
    sequencing: Literal["arrival", "producer", "clock"] = "arrival"
    sort_window_ms: int = 1000
    late_messages: Literal["late_queue", "head"] = "late_queue"
    sort_held_messages_max: int = 100_000
    visibility_timeout_ms: int = 30_000
    max_attempts: int = 10
    retry_backoff_ms: int = 0
    retry_backoff_ms_max: int | None = None
    dead_letter_queue: str | None = COMPANION
    message_ttl_ms: int | None = None
    delay_ms: int = 0
    retention_ms: int | None = None
    retention_bytes: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    overflow: Literal["reject", "dead_letter_oldest", "dead_letter_newest", "drop_oldest"] = "reject"
    max_message_bytes: int = 262_144
    priorities: int = 1
    dedupe: Literal["none", "id", "content"] = "none"
    dedupe_window_ms: int = 300_000
    durability: Literal["fsync", "relaxed"] = "fsync"
    replication: Replication = Replication()
    lease_mode: Literal["memory", "replicated"] = "memory"
    encrypted: bool = True
    fair_by: Literal["key", "none"] = "none"
    key_run_max: int = 32
    auto_expand: AutoExpand | None = None
    colocate_with: str | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict)

    def bare(self) -> QueueConfig:
        """The config as it is stored: without `replication`, which the queue's place determines. Processes of earlier
        versions report one copy for each queue."""
        return msgspec.structs.replace(self, replication=Replication())

    def differing(self, other: QueueConfig) -> list[str]:
        """The names of the settings in which two configs differ, in the order of declaration."""
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]


class Whereabouts(NamedTuple):
    """A shard of a cluster; "" is the home cluster. With independent hosts a queue has a lane in each shard, unless it
    is a queue of a single lane."""

    cluster: str
    shard: int

    def __str__(self) -> str:
        return f"shard {self.shard} of cluster {self.cluster!r}" if self.cluster else f"shard {self.shard}"


class FormerPlace(msgspec.Struct, frozen=True):
    """A place that a queue has moved away from. The place takes no publishes of the queue; it still delivers the
    messages that it has and answers whether it knows an id."""

    cluster: str
    shard: int
    floor: int
    """The first `seq` that was assigned there; the next place's floor is above every `seq` of this one."""
    left_at_ms: int
    """When publishes began to go to the next place; of several times the last."""
    is_settled: bool = False
    """Nothing is left to deliver there except dead letters. With strict order, messages in the next place wait for
    this."""
    slots: bytes = b""
    """Of a queue that is split: the slots that this place gave away, as bits; b"": the whole queue was there."""
    settling: bytes = b""
    """The slots that were given away last, which `is_settled` refers to."""

    @property
    def place(self) -> Whereabouts:
        return Whereabouts(self.cluster, self.shard)


class OpenPlace(msgspec.Struct, frozen=True):
    """One of several places that take publishes of a queue: those of its slots."""

    cluster: str
    shard: int
    floor: int
    """The first `seq` that is assigned there. Other places' numbers are 2^44 away."""
    slots: bytes
    """As bits."""

    @property
    def place(self) -> Whereabouts:
        return Whereabouts(self.cluster, self.shard)


class QueueDefinition(msgspec.Struct, frozen=True):
    """A queue as the metadata service stores it. `uid` is never used twice; `version` makes the ETag."""

    uid: int
    tenant: str
    name: str
    config: QueueConfig
    created_at_ms: int
    version: int
    shard: int = 0
    """The shard that stores its messages, in a cluster of several shards; the number counts within `cluster`."""
    was_plain: bool | None = None
    """Whether `encrypted` was ever false, so that stored messages may be in the clear. None: the definition is from a
    build that did not record it, and version 1 had the config that it still has."""
    cluster: str = ""
    """The cluster that stores its messages, of several clusters; "" is the home cluster, which has the definitions."""
    floor: int = 0
    """The first `seq` that is assigned at the current place."""
    moving_to: Whereabouts | None = None
    """Where the queue is moving to: the current place takes no more publishes, and the move may still be given up."""
    moving_since_ms: int = 0
    former: tuple[FormerPlace, ...] = ()
    """Places that still have messages, or ids that may be repeated; the latest first."""
    takes_none: bool = False
    """Set only in the copy that a shard gets: the shard takes no publishes of this queue."""
    beside: tuple[OpenPlace, ...] = ()
    """Further places that take publishes, of a queue that is split; what none of them takes goes to the first place."""
    moving_from: Whereabouts | None = None
    """Which of its places gives slots away, while `moving_to` is set; None: the first."""
    moving_slots: bytes = b""
    """The slots that are given away, as bits; b"": all that the place has."""
    goal: tuple[Whereabouts, ...] = ()
    """The places over which the queue is being spread evenly; (): it stays as it is."""
    top: int = 0
    """The highest floor that any of its places had while there were several; numbers above it are free."""
    since: int = 0
    """The version in which slots went to another place last, while some place remembers ids of slots that it gave away;
    0: none does. A publish with an id is refused when its caller knows only an older version, for a later place may
    know the id."""
    takes: bytes = b""
    """Set only in the copy that a shard gets: the slots that the shard takes, as bits; b"": all, or none."""
    holds: bytes = b""
    """Set only in the copy that a shard gets: slots whose messages are not delivered yet, because another place still
    has older ones."""
    single_lane: bool = False
    """With independent hosts it is in one lane, that of its `shard`, and not in one lane at each host."""

    @property
    def place(self) -> Whereabouts:
        """The current place; of several places the first."""
        return Whereabouts(self.cluster, self.shard)

    @property
    def is_on_its_way(self) -> bool:
        """The queue has, or will have, data in more than one place."""
        return self.moving_to is not None or bool(self.former or self.beside or self.goal)

    @property
    def is_shared(self) -> bool:
        """Several places take its publishes, and the definition keeps it so."""
        return bool(self.beside) and self.moving_to is None and not self.goal

    @property
    def is_always_sealed(self) -> bool:
        """Nothing was ever published to it unencrypted."""
        was_plain = self.version > 1 if self.was_plain is None else self.was_plain
        return self.config.encrypted and not was_plain

    def changed(self, config: QueueConfig) -> QueueDefinition:
        """Returns the next version."""
        was_plain = not (self.is_always_sealed and config.encrypted)
        return msgspec.structs.replace(self, config=config, version=self.version + 1, was_plain=was_plain)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Exact numbers of one queue. `bytes` are stored bytes of live messages, as `max_bytes` counts them."""

    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    oldest_age_ms: int = 0
    consumers: int = 0
    bytes: int = 0
    published_total: int = 0
    acked_total: int = 0


# ---------------------------------------------------------------------------------------------------- messages


class Traits(NamedTuple):
    """What the leader needs to know of a block's messages: one column each, None where no message of the block has a
    value."""

    ids: Sequence[bytes | None] | None = None
    """16-byte hashes that identify repeated messages: a hash of the id, or of the content."""
    keys: Sequence[str | None] | None = None
    expires: Sequence[int] | None = None
    """Milliseconds since 1970; 0 for a message that does not expire."""
    stamps: Sequence[Stamp | None] | None = None


class Stamp(NamedTuple):
    """A message's position in its producer's order: a hybrid-clock time in microseconds, and the producer's own
    number."""

    time_us: int = 0
    producer: str = ""
    number: int = 0


class Claim(NamedTuple):
    """An idempotency key, and the payload that its first use binds it to; each is a 16-byte hash."""

    key: bytes
    payload: bytes


# A Struct, because each publish makes one: creating it takes a tenth of the time of a frozen dataclass.


class Block(msgspec.Struct, frozen=True):
    """Messages of one publish call, encoded: at most 64 messages and 16 KiB, or one bigger message.

    All of them have one priority and one due time. `due_ms` 0: at once. `slots` has the slots of its messages, as bits,
    where the encoder grouped them by partition; else 0.
    """

    data: bytes
    count: int
    priority: int = 0
    due_ms: int = 0
    traits: Traits | None = None
    slots: int = 0


class Published(msgspec.Struct, frozen=True):
    """Where the messages of a publish call are stored.

    They have the `count` offsets from `base` on in one partition, unless `bases` gives the start of each block, or
    `places` the position of each message. `others` has the exceptions by the message's number in the call: the message
    that it repeats, or the error that refused it. `is_repeat`: all of them were stored before, from `base` on in the
    order of the call, whatever the order of the blocks.
    """

    partition: int
    base: Offset
    count: int
    fsynced: bool = True
    replicas: int = 1
    bases: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    """How many messages each block has, where blocks were cut differently on their way."""
    others: Mapping[int, Original | PushqError] | None = None
    places: Sequence[tuple[int, int]] | None = None
    """Where a call's messages went to several partitions: (partition, offset) of each."""
    is_repeat: bool = False


class Original(NamedTuple):
    """The message that a repeated one repeats. The offset is -1 where it is not known any more, only the producer's
    number.

    `partition` is None for the partition that answered.
    """

    offset: int
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one receipt: `ok`, or the reason why not."""

    ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a partition's log that a stream reader may resume from."""

    epoch: Epoch
    offset: Offset


@dataclass(frozen=True, slots=True)
class Peeked:
    """One message as peek returns it: never leased, and the attempt is not counted."""

    message: dict[str, Any]
    state: Literal["ready", "in_flight", "delayed", "dead"]


@dataclass(frozen=True, slots=True)
class PeekPage:
    items: list[Peeked] = field(default_factory=list)
    next: str | None = None
    scanned: int = 0


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a tenant may use of the server; None sets no limit beside the server's own."""

    requests_per_s: int | None = None
    publish_messages_per_s: int | None = None
    publish_bytes_per_s: int | None = None
    connections: int | None = None
    """WebSockets, event streams and waiting receives."""
    subscriptions: int | None = None
    queues: int | None = None
    stored_bytes: int | None = None
    """Total bytes that its queues may store on the disk."""


OPERATOR = "operator"
"""The scope for all tenants. The metadata service makes sure that at least one key has it."""


class ApiKey(msgspec.Struct, frozen=True):
    """A stored API key, with the secret's SHA-256 only."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    secret_sha256: bytes
    created_at_ms: int
    expires_at_ms: int | None = None
    previous_sha256: bytes | None = None
    previous_until_ms: int | None = None
