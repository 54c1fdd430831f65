"""The words every part shares: ids, queue definitions, blocks of messages, and the errors that say whose turn it is.

A *block* is what one publish call adds to one partition: messages of one caller, encoded once by the gateway and stored
as they are. Everything here is a plain value; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NewType

import msgspec

Offset = NewType("Offset", int)
"""Position in a partition's log. Each message takes one; each decision record takes one."""

Epoch = NewType("Epoch", int)
"""Number of a leadership. Rises when a partition gets a new leader or comes back from a backup."""

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
"""As `dead_letter_queue`: the queue's own companion, `<queue>.dead`. No queue can have this name."""


# ---------------------------------------------------------------------------------------------------- errors


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong in a request: an RFC 6901 pointer to it and a sentence."""

    pointer: str
    detail: str


class PushqError(Exception):
    """What a caller is told: a stable code, a sentence with the facts, and when trying again helps.

    `code` is one of the codes of the public protocol; its HTTP status and title stand in `push.problems`.
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
    """The token was good once; a newer one of the same caller is."""


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
    """The idempotency key belongs to another payload; nothing of this one is accepted."""

    code = "idempotency-mismatch"


class RequestInProgress(PushqError):
    """The first request under an idempotency key is not answered yet."""

    code = "request-in-progress"


class Overloaded(PushqError):
    code = "overloaded"


class Unavailable(PushqError):
    code = "unavailable"


class ClusterAway(Unavailable):
    """A whole cluster has been away for some time, or has never been there. What lies in others goes on."""


class OnTheMove(Unavailable):
    """The queue takes no publishes where it was asked, because it moves to another cluster. Nothing was accepted; a
    gateway that hears it asks anew where the queue lies now. To its callers it is one that is unavailable."""


class NotDurable(PushqError):
    """Too few replicas are in sync. Nothing was accepted."""

    code = "not-durable"


class OutcomeUnknown(PushqError):
    code = "outcome-unknown"


# ------------------------------------------------------------------------------------------ queue definitions


class Replication(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a queue is copied. It hangs on the place of a queue: where one is made it says what the place must have, and
    None leaves that open; where one is shown it says what its place has, and None is what nobody here knows. None is
    not written down: processes of earlier versions read the rows, and to them each part has a value."""

    factor: int | None = None
    mode: Literal["sync", "async"] | None = None
    min_in_sync: int | None = None
    model: Literal["leader_follower", "independent_hosts"] | None = None

    def asked(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def fits(self, place: Replication) -> bool:
        """Whether a place has all that is asked for."""
        return all(getattr(place, part) == value for part, value in self.asked().items())

    def unlike(self, place: Replication) -> dict[str, Any]:
        """What is asked for and a place has otherwise, as far as that is known."""
        has = place.asked()
        return {part: value for part, value in self.asked().items() if has.get(part, value) != value}

    def check_at(self, place: Replication, queue: str) -> None:
        """Raises `InvalidRequest` with an error for each part that is asked for and that a place does not have."""
        has = place.asked()
        errors = tuple(
            FieldError(f"/replication/{part}", f"{part} is {value!r}, and where this queue lies it is {has[part]!r}")
            for part, value in self.unlike(place).items()
        )
        if errors:
            said = ", ".join(f"{part} {value!r}" for part, value in has.items())
            raise InvalidRequest(f"queue {queue!r} cannot be copied so: its place has {said}", errors=errors)


def placed(config: QueueConfig, place: Replication, queue: str) -> QueueConfig:
    """The config as it is stored. Raises `InvalidRequest` where the place has not what is asked of it."""
    config.replication.check_at(place, queue)
    return config.bare()


ONE_NODE = Replication(factor=1, mode="sync", min_in_sync=1, model="leader_follower")
"""Of a process that stores its queues itself."""


class AutoExpand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a queue gets more partitions, or fewer, by itself. `limit` messages or bytes are what one partition is for:
    at `at_percent` of that for all together the queue grows, below `shrink_percent` it shrinks.
    """

    of: Literal["partition_messages", "partition_bytes"]
    limit: int
    at_percent: int = 80
    shrink_percent: int = 30
    max_partitions: int = 64


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue's settings. A literal with one value is a setting whose other values are not built; they are refused.

    A default that hangs on another setting is put in by whoever takes the config from a caller, so that what is stored
    says what holds: `lease_mode`, `dedupe`, `fair_by`, `retention_ms`. `dead_letter_queue` is `COMPANION` for the
    queue's own companion, a queue's name, or None for attempts without limit.
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
        """As it is stored: how a queue is copied its place says. Processes of earlier versions say of each queue that
        it has one copy."""
        return msgspec.structs.replace(self, replication=Replication())

    def differing(self, other: QueueConfig) -> list[str]:
        """The settings in which two configs differ, in the order in which they are declared."""
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]


class Whereabouts(NamedTuple):
    """A shard of a cluster; "" is the home cluster. Of independent hosts a queue has a lane in each of them, unless
    it is one of a single lane."""

    cluster: str
    shard: int

    def __str__(self) -> str:
        return f"shard {self.shard} of cluster {self.cluster!r}" if self.cluster else f"shard {self.shard}"


class FormerPlace(msgspec.Struct, frozen=True):
    """Where a queue lay before it moved on. It takes no publishes there; what it has is delivered from there, and the
    ids that it knows are asked for there."""

    cluster: str
    shard: int
    floor: int
    """The first `seq` that was given out there; that of the next place is above all of them."""
    left_at_ms: int
    """When publishes began to go to the next place; of several times the last."""
    is_settled: bool = False
    """Nothing is left to deliver there but what died. In strict order messages wait for that in the next place."""
    slots: bytes = b""
    """Of a queue that is split: those that were given away there, as bits; b"": it lay there whole."""
    settling: bytes = b""
    """Those of them that were given away last, which `is_settled` is about."""

    @property
    def place(self) -> Whereabouts:
        return Whereabouts(self.cluster, self.shard)


class OpenPlace(msgspec.Struct, frozen=True):
    """One of several places that take publishes of a queue: those of its slots."""

    cluster: str
    shard: int
    floor: int
    """The first `seq` that is given out there. Other places' numbers are 2^44 away."""
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
    """Where its messages lie, in a cluster of several shards; it counts within `cluster`."""
    was_plain: bool | None = None
    """Whether `encrypted` was ever false, so that messages may lie there in the clear. None: from a build that did not
    write it down, which made version 1 by the config it still has."""
    cluster: str = ""
    """Where its messages lie, of several clusters; "" is the home cluster, which has the definitions."""
    floor: int = 0
    """The first `seq` that is given out where it lies now."""
    moving_to: Whereabouts | None = None
    """Where it goes: publishes end where it lies now, and this may still be given up."""
    moving_since_ms: int = 0
    former: tuple[FormerPlace, ...] = ()
    """Where it still has messages, or ids that may be repeated; the latest first."""
    takes_none: bool = False
    """To a shard alone: it takes no publishes of this queue here."""
    beside: tuple[OpenPlace, ...] = ()
    """Further places that take publishes, of a queue that is split; what none of them takes goes to the first."""
    moving_from: Whereabouts | None = None
    """Which of its places gives something away, while `moving_to` is set; None: the first."""
    moving_slots: bytes = b""
    """What is given, as bits; b"": all that the place has."""
    goal: tuple[Whereabouts, ...] = ()
    """Over which places it is being spread evenly; (): it stays as it is."""
    top: int = 0
    """The highest floor that a place of it ever had beside others; numbers above it are free."""
    since: int = 0
    """The version with which slots went to another place last, while one remembers ids of some; 0: none does. What is
    published under an id by whoever knows only an older one is refused, for a later place may know the id."""
    takes: bytes = b""
    """To a shard alone: the slots that it takes here, as bits; b"": all, or none."""
    holds: bytes = b""
    """To a shard alone: slots whose messages are not delivered yet, as older ones are at another place."""
    single_lane: bool = False
    """At independent hosts it lies in one lane, that of its `shard`, and not in one at each host."""

    @property
    def place(self) -> Whereabouts:
        """Where it lies; of several places the first."""
        return Whereabouts(self.cluster, self.shard)

    @property
    def is_on_its_way(self) -> bool:
        """It has, or shall have, something in more than one place."""
        return self.moving_to is not None or bool(self.former or self.beside or self.goal)

    @property
    def is_shared(self) -> bool:
        """Several places take its publishes, and that is to stay so."""
        return bool(self.beside) and self.moving_to is None and not self.goal

    @property
    def is_always_sealed(self) -> bool:
        """Nothing was ever published to it that was not encrypted."""
        was_plain = self.version > 1 if self.was_plain is None else self.was_plain
        return self.config.encrypted and not was_plain

    def changed(self, config: QueueConfig) -> QueueDefinition:
        """Its next version."""
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
    """What the leader must know of a block's messages: a column each, None where no message of the block has it."""

    ids: Sequence[bytes | None] | None = None
    """16-byte hashes by which a message is known again: of its id, or of its content."""
    keys: Sequence[str | None] | None = None
    expires: Sequence[int] | None = None
    """Milliseconds since 1970; 0 for a message that does not expire."""
    stamps: Sequence[Stamp | None] | None = None


class Stamp(NamedTuple):
    """Where a producer says that its message belongs: a hybrid-clock time in microseconds, and its own number."""

    time_us: int = 0
    producer: str = ""
    number: int = 0


class Claim(NamedTuple):
    """An idempotency key, and the payload it is bound to from its first use on; a hash of 16 bytes each."""

    key: bytes
    payload: bytes


# A Struct where each publish makes one: it is made in a tenth of the time of a frozen dataclass.


class Block(msgspec.Struct, frozen=True):
    """Messages of one publish call, encoded: at most 64 messages and 16 KiB, or one bigger message.

    All of them have one priority and one due time. `due_ms` 0: at once. `slots` has the slots of its messages, as bits,
    where whoever encoded it grouped them by partition; 0 where nobody asked.
    """

    data: bytes
    count: int
    priority: int = 0
    due_ms: int = 0
    traits: Traits | None = None
    slots: int = 0


class Published(msgspec.Struct, frozen=True):
    """Where a publish call's messages stand.

    They have the `count` offsets from `base` on in one partition, unless `bases` says where each block begins, or
    `places` where each message stands. `others` has the exceptions by the message's number in the call: the message it
    repeats, or the error that kept it out. `is_repeat`: all of them were there before, and stand from `base` on in the
    order of the call, whatever the order of the blocks.
    """

    partition: int
    base: Offset
    count: int
    fsynced: bool = True
    replicas: int = 1
    bases: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    """How many messages each block has, where they were cut anew on their way."""
    others: Mapping[int, Original | PushqError] | None = None
    places: Sequence[tuple[int, int]] | None = None
    """Where a call's messages went to several partitions: (partition, offset) of each."""
    is_repeat: bool = False


class Original(NamedTuple):
    """The message that a repeated one repeats. The offset is -1 where only its number is still known.

    `partition` is None for the partition that answered.
    """

    offset: int
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one receipt: ok, or why not."""

    ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a partition's log that a stream reader may resume from."""

    epoch: Epoch
    offset: Offset


@dataclass(frozen=True, slots=True)
class Peeked:
    """One message as peek shows it: never leased, never counted."""

    message: dict[str, Any]
    state: Literal["ready", "in_flight", "delayed", "dead"]


@dataclass(frozen=True, slots=True)
class PeekPage:
    items: list[Peeked] = field(default_factory=list)
    next: str | None = None
    scanned: int = 0


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a tenant may use of the server; None is no bound beside the server's own."""

    requests_per_s: int | None = None
    publish_messages_per_s: int | None = None
    publish_bytes_per_s: int | None = None
    connections: int | None = None
    """WebSockets, event streams and waiting receives."""
    subscriptions: int | None = None
    queues: int | None = None
    stored_bytes: int | None = None
    """What its queues may hold on the disk, all together."""


OPERATOR = "operator"
"""The scope for all tenants. The metadata see to it that somebody has it."""


class ApiKey(msgspec.Struct, frozen=True):
    """A stored API key: the secret's SHA-256 only."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    secret_sha256: bytes
    created_at_ms: int
    expires_at_ms: int | None = None
    previous_sha256: bytes | None = None
    previous_until_ms: int | None = None
