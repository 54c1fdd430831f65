"""Frames between a gateway and a backend: batches of publishes, leases and receipts, as MessagePack.

A frame has what one turn of the loop collected, over all queues. Blocks and chunks are sent as their stored bytes. Bit
sets of messages are bytes, the lowest first. A place names a queue as its consumers see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from backend_store.model import (
    Block,
    Conflict,
    DedupeFull,
    FieldError,
    Forbidden,
    IdempotencyMismatch,
    InvalidRequest,
    MessageTooLarge,
    NotDurable,
    NotFound,
    Offset,
    OnTheMove,
    Original,
    OutcomeUnknown,
    Overloaded,
    Published,
    PushqError,
    QueueFull,
    QueueNotFound,
    RequestInProgress,
    StorageFull,
    Traits,
    Unavailable,
)

STORE_VERSION = 1
"""Changes when frames change so that the version before would not understand them: see `wire.versions`."""
STORE_PROTOCOL = "the protocol of gateways and backends"
STORE_SUBPROTOCOL = "pushq.store.v1"
"""The same in all versions."""
STORE_FRAME_BYTES_MAX = 64 * 1024 * 1024
DOOR = 0xFFFF
"""In place of a shard's number: a host's door, which takes publishes into any lane. See `hosts.door`."""
NOT_LEADER = "not-leader"
"""The code of a refusal by a backend that does not lead the shard: nothing was done, ask its leader."""

ON_THE_MOVE = "on-the-move"
"""The code of a refusal by a place that a queue leaves: see `OnTheMove`."""

Bits = bytes
Grouped = dict[str, Bits]
"""Token → bits."""


def to_bits(data: Bits) -> int:
    return int.from_bytes(data, "little")


def of_bits(bits: int) -> Bits:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


class Place(NamedTuple):
    """A queue, a companion, or a consumer group of a stream."""

    tenant: str
    name: str
    uid: int
    group: str | None = None


class Wrong(NamedTuple):
    """An error on the wire."""

    code: str
    detail: str
    retry_after_ms: int | None = None
    errors: tuple[tuple[str, str], ...] = ()


class SentBlock(NamedTuple):
    """A `Block` on the wire."""

    data: bytes
    messages: int
    priority: int
    due_ms: int
    traits: Traits | None
    slots: Bits


class Publish(NamedTuple):
    """One publish call. `budget_ms`: a call that has not begun by then is never begun."""

    number: int
    budget_ms: int
    tenant: str
    name: str
    uid: int
    blocks: list[SentBlock]
    claim: tuple[bytes, bytes] | None = None
    version: int = 0
    """Version of the definition that the sender routed by; 0 where that does not matter. Sent only where it matters,
    because backends of earlier versions do not know the field."""


class Settle(NamedTuple):
    """Receipts of one place. `verb`: ack, nack, extend, return, unsent, undeliverable, detach, take or keep.

    "detach": the messages were the answer to a request, and stay leased if this gateway ends. "take": a session has
    come to this gateway from another one, with these leases. "keep", without receipts: this gateway is about to stop,
    and its leases wait for `milliseconds` for others to take them.
    """

    number: int
    place: Place
    verb: str
    grouped: Grouped
    milliseconds: int | None = None
    """For a nack the delay, for an extension the new time. For an ack the time that it may wait for another commit: no
    consumer waits for the answer."""
    reason: str | None = None
    tried: bool = True


class Want(NamedTuple):
    """Credit: the total number of messages of a place that may be sent on this connection; a lower number takes credit
    back. `most` 0 ends the want and resets the count, at a backend that `ends_wants`.

    Messages of a stream itself are never sent: a number above 0 says that the gateway reads it, and wants its `Tails`.
    """

    place: Place
    visibility_ms: int
    granted: int
    most: int
    """The most messages that one lease may have."""


class Placed(NamedTuple):
    """A `Published` on the wire; `others` has positions and `wrong` has errors, by the message's number."""

    partition: int
    base: int
    messages: int
    fsynced: bool
    replicas: int
    bases: tuple[int, ...] | None
    counts: tuple[int, ...] | None
    others: dict[int, tuple[int, int | None]] | None
    wrong: dict[int, Wrong] | None
    places: list[tuple[int, int]] | None
    is_repeat: bool


class Handed(NamedTuple):
    """A lease, and the chunk with its messages."""

    place: Place
    visibility_ms: int
    token: str
    bits: Bits
    attempts: dict[int, int]
    chunk: bytes
    seed: int
    partition: int
    has_receipts: bool


class PartNow(NamedTuple):
    """The present state of a stream's partition. `barriers`: see `slot_history.Barrier`. `epochs`: the last ones, each
    with the offset from which on the log was written in it.
    """

    number: int
    epoch: int
    floor: int
    end: int
    is_empty: bool
    barriers: list[tuple[int, int, int]]
    epochs: Sequence[tuple[int, int]] = ()


class Idle(NamedTuple):
    """No more messages are ready now for this grant. `granted`: the credit that this answers."""

    place: Place
    visibility_ms: int
    granted: int


class _Frame(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """The first element is the frame's name."""


# ------------------------------------------------------------------------------------------------- by a gateway


class Known(NamedTuple):
    """The definitions that a gateway knows: the era of the shard's metadata, and the version of each kind of rows.
    Another leader has another era."""

    era: str
    versions: dict[str, int]


class Greeting(_Frame, frozen=True, tag="greeting"):
    """The first frame of a gateway: its name, the shard, and the leases that it still holds: place, token, bits."""

    version: int
    gateway: str
    shard: int
    held: list[tuple[Place, str, Bits]]
    waits_ms: int = 0
    """How long the backend may keep it waiting until it leads the shard: the shard's last leader referred it here."""
    known: Known | None = None
    """What an earlier connection told it. None: a gateway of an earlier version, which takes the first definitions for
    all."""
    hears_backends: bool = False
    """Whether it wants `Backends` frames; gateways of earlier versions do not know them."""
    gives_sessions: bool = False
    """Whether it answers `Sought` frames; gateways of earlier versions do not know them."""


class Operating(_Frame, frozen=True, tag="operating"):
    """In place of a greeting: a gateway that acts for an operator, about the backend itself and no shard. Only `Asks`
    follow, with the operations in `service.recovering`."""

    version: int
    gateway: str


Traces = dict[int, str]
"""The number of a call → the trace that it belongs to. An older backend ignores them."""


class Publishes(_Frame, frozen=True, tag="publishes"):
    calls: list[Publish]
    traces: Traces | None = None


class Settles(_Frame, frozen=True, tag="settles"):
    calls: list[Settle]
    traces: Traces | None = None


class Wants(_Frame, frozen=True, tag="wants"):
    """An empty one answers a `Turned`: nothing more comes by this connection."""

    wants: list[Want]


class Asks(_Frame, frozen=True, tag="ask"):
    """A request with one of the operations in `service.operations`."""

    number: int
    budget_ms: int
    what: msgspec.Raw
    trace: str | None = None
    whose: str | None = None
    """The tenant whose room it takes; "": a caller that is not authenticated yet. None: the gateway's own."""


# ------------------------------------------------------------------------------------------------- by a backend


class Copies(NamedTuple):
    """How a shard is replicated: "sync" or "async", the number of copies, and how many must have what is confirmed. ""
    and zeros while it is not placed."""

    mode: str = ""
    factor: int = 0
    min_in_sync: int = 0


class Greeted(_Frame, frozen=True, tag="greeted"):
    """The answer to a greeting. `unknown`: held leases that this backend does not know; their receipts may still
    ack."""

    version: int
    backend: str
    time_ms: int
    unknown: list[tuple[Place, str]]
    key_ids: tuple[int, int]
    """Ids of data keys that this gateway may give out: from, below."""
    shards: int = 1
    """The number of shards."""
    lanes: int = 0
    """In a cluster of independent hosts the number of lanes of every queue, one in each shard; 0 in any other
    cluster."""
    metadata: str = ""
    """The identity of the shard's metadata; "" from a backend that does not know queues of other clusters."""
    zone: str = ""
    """The zone of an independent host's door; "" where it has none."""
    ends_wants: bool = False
    """Whether the backend resets its count where a `Want` ends; backends of earlier versions count on."""
    copies: list[Copies] = []
    """Of each shard by its number, also where shards are lanes; [] from a backend of an earlier version."""
    mode: str = "sync"
    """The mode of a queue that does not ask for one."""


class BackendAt(msgspec.Struct, frozen=True, array_like=True):
    """A live backend, and the address where it serves gateways, `HOST:PORT`."""

    name: str
    address: str
    has_lane: bool = False
    """Of an independent host: whether it has a lane of its own, and owns it."""


class Backends(_Frame, frozen=True, tag="backends"):
    """The live backends of the cluster, as far as this one knows: sent before the answer to a greeting, and when they
    have changed. `copies`: see `Greeted`."""

    there: list[BackendAt]
    copies: list[Copies] = []


class Turned(_Frame, frozen=True, tag="turned"):
    """Refuses a gateway: `leader` is the backend to ask, if known.

    To a gateway that is connected already: the shard is about to be led there. What was begun is answered before the
    connection ends, and nothing more is begun."""

    wrong: Wrong
    leader: str | None = None


class Results(_Frame, frozen=True, tag="results"):
    """The answers to publishes and to receipts."""

    placed: list[tuple[int, Placed | None, Wrong | None]]
    judged: list[tuple[int, Grouped | None, Wrong | None]]


class Leases(_Frame, frozen=True, tag="leases"):
    handed: list[Handed]
    idle: list[Idle]


class Ended(_Frame, frozen=True, tag="ended"):
    """Leases that the gateway did not end: `lost` expired, `gone` were settled elsewhere."""

    lost: list[tuple[str, Bits]]
    gone: list[tuple[str, Bits]]


class GroupNews(_Frame, frozen=True, tag="groups"):
    """News of consumer groups of which this gateway has consumers: the messages that the stream dropped before the
    group read them, as (first, last, partition), and the groups that are deleted.
    """

    missed: Sequence[tuple[Place, Sequence[tuple[int, int, int | None]]]]
    gone: list[Place]


class Tails(_Frame, frozen=True, tag="tails"):
    """The present state of all partitions of streams that this gateway reads."""

    tails: list[tuple[Place, list[PartNow]]]


class Defined(_Frame, frozen=True, tag="defined"):
    """The definitions that changed: see `service.definitions`. On a new connection they are all definitions, unless
    `goes_on`. `is_whole` has no meaning; backends of earlier versions sent it, too."""

    is_whole: bool
    data: msgspec.Raw
    is_last: bool = True
    """Whether this part is the last one. Otherwise more definitions follow: those not in it may be gone, or not."""
    goes_on: bool = False
    """On a new connection: only the changes since what the gateway's greeting said that it knows."""
    known: Known | None = None
    """What the gateway knows with this, for its next greeting."""


class Sought(_Frame, frozen=True, tag="sought"):
    """Another gateway was asked to resume this session. The answer is a request, `service.sessions.GiveSession`."""

    session: str
    principal_id: str


class Answered(_Frame, frozen=True, tag="answered"):
    number: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    wrong: Wrong | None = None


FromGateway = Greeting | Operating | Publishes | Settles | Wants | Asks
FromBackend = Greeted | Backends | Turned | Results | Leases | Ended | GroupNews | Tails | Defined | Sought | Answered

pack = msgspec.msgpack.Encoder().encode
_from_gateway: msgspec.msgpack.Decoder[FromGateway] = msgspec.msgpack.Decoder(FromGateway)
_from_backend: msgspec.msgpack.Decoder[FromBackend] = msgspec.msgpack.Decoder(FromBackend)


def from_gateway(data: str | bytes) -> FromGateway:
    """Raises `InvalidRequest`."""
    try:
        return _from_gateway.decode(data if isinstance(data, bytes) else data.encode())
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is no frame of a gateway: {error}") from None


def from_backend(data: str | bytes) -> FromBackend:
    """Raises `InvalidRequest`."""
    try:
        return _from_backend.decode(data if isinstance(data, bytes) else data.encode())
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is no frame of a backend: {error}") from None


# --------------------------------------------------------------------------------------------------- conversions

_KINDS: dict[str, type[PushqError]] = {
    kind.code: kind
    for kind in (
        Conflict,
        DedupeFull,
        Forbidden,
        IdempotencyMismatch,
        InvalidRequest,
        MessageTooLarge,
        NotDurable,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        QueueFull,
        QueueNotFound,
        RequestInProgress,
        StorageFull,
        Unavailable,
    )
}


def wrong(error: PushqError) -> Wrong:
    errors = tuple((one.pointer, one.detail) for one in error.errors)
    code = ON_THE_MOVE if isinstance(error, OnTheMove) else error.code
    return Wrong(code, error.detail, error.retry_after_ms, errors)


def error_of(found: Wrong) -> PushqError:
    """The error that the other side raised, as the type that callers here catch."""
    if found.code == ON_THE_MOVE:
        return OnTheMove(found.detail, retry_after_ms=found.retry_after_ms)
    errors = tuple(FieldError(*one) for one in found.errors)
    kind = _KINDS.get(found.code, PushqError)
    return kind(found.detail, code=found.code, retry_after_ms=found.retry_after_ms, errors=errors)


def sent_publish(call: Publish, budget_ms: int) -> Publish:
    """The frame to send. Leaves out version 0: earlier backends take no array of that length."""
    sent = call._replace(budget_ms=budget_ms)
    return sent if call.version else cast(Publish, sent[:-1])


def sent_blocks(blocks: Sequence[Block]) -> list[SentBlock]:
    return [SentBlock(b.data, b.count, b.priority, b.due_ms, b.traits, of_bits(b.slots)) for b in blocks]


def blocks_of_sent(sent: Sequence[SentBlock]) -> list[Block]:
    return [Block(b.data, b.messages, b.priority, b.due_ms, b.traits, to_bits(b.slots)) for b in sent]


def placed(result: Published, copies: int) -> Placed:
    """`copies`: how many disks have it."""
    others: dict[int, tuple[int, int | None]] = {}
    errors: dict[int, Wrong] = {}
    for number, other in (result.others or {}).items():
        if isinstance(other, PushqError):
            errors[number] = wrong(other)
        else:
            others[number] = (other.offset, other.partition)
    return Placed(
        result.partition,
        result.base,
        result.count,
        result.fsynced,
        copies,
        result.bases,
        result.counts,
        others or None,
        errors or None,
        list(result.places) if result.places is not None else None,
        result.is_repeat,
    )


def published(found: Placed) -> Published:
    others: dict[int, Original | PushqError] = {n: Original(*one) for n, one in (found.others or {}).items()}
    others.update({n: error_of(one) for n, one in (found.wrong or {}).items()})
    known: Mapping[int, Original | PushqError] | None = others or None
    return Published(
        found.partition,
        Offset(found.base),
        found.messages,
        found.fsynced,
        found.replicas,
        found.bases,
        found.counts,
        known,
        found.places,
        found.is_repeat,
    )


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(pack(value))
