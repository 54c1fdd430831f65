"""The client's public values: what is published, its result, and the events of a session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from push.client.errors import ApiError, Problem

AckMode = Literal["manual", "auto"]
TransportName = Literal["ws", "sse", "poll"]
Encoding = Literal["msgpack", "json"]
InOrder = bool | Literal["key"]
"""Which messages are handled one after the other: all, none, or those of one key."""

TRANSPORTS: dict[str, TransportName] = {"ws": "ws", "sse": "sse", "poll": "poll", "websocket": "ws", "longpoll": "poll"}
"""Every accepted name → the canonical one: the same in both clients and on the command line."""


def transport_named(name: str) -> TransportName:
    """The transport of that name. Raises `ValueError`, which lists the names."""
    if (found := TRANSPORTS.get(name)) is None:
        raise ValueError(f"unknown transport {name!r}; use one of {', '.join(dict.fromkeys(TRANSPORTS.values()))}")
    return found


From = Literal["earliest", "latest"] | Mapping[str, Any]
"""Where a stream's subscription begins: "earliest", "latest", `{"seq": n}`, `{"time": t}` or `{"cursor": c}`. A time is
a `datetime` with a zone, or RFC 3339 text."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message to publish, with the API's own fields. `body` is any JSON value, or bytes; see `bodies` for the rule.

    The server refuses a field that it cannot honour. `deliver_at` is a `datetime` with a zone, or RFC 3339 text.
    """

    body: Any
    id: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    content_type: str | None = None
    priority: int | None = None
    delay_ms: int | None = None
    deliver_at: datetime | str | None = None
    ttl_ms: int | None = None
    reply_to: str | None = None
    correlation_id: str | None = None


class TraceContext(NamedTuple):
    """The W3C Trace Context of a message."""

    traceparent: str
    tracestate: str | None


class Published(msgspec.Struct, frozen=True):
    """The server has stored the message, as durably as its queue demands. `seq` rises within (partition, priority),
    with gaps.

    `duplicate`: the message was stored before, and `id` and `seq` are those of the first one. For a duplicate that the
    server knew by its number alone it may have forgotten them: then `seq` is None, and `id` is empty unless the message
    has one.
    """

    id: str
    seq: int | None
    partition: int = 0
    duplicate: bool = False


class Ordering(msgspec.Struct, frozen=True):
    """How a sorted queue placed the message. `late`: it came after messages that follow it in order had been
    delivered."""

    timestamp: datetime | None
    late: bool


class DeadLetter(msgspec.Struct, frozen=True):
    """Why a message is in a dead-letter queue. `from_` is the queue it died in; `history` has its last attempts."""

    from_: str
    reason: str
    at: datetime | None
    attempts: int
    history: tuple[Mapping[str, Any], ...]


class Connected(msgspec.Struct, frozen=True):
    """A connection was established. `resumed`: the leases of the one before go on."""

    session: str
    resumed: bool


class Disconnected(msgspec.Struct, frozen=True):
    """The connection was lost, or could not be made; the next attempt follows in `retry_in_s`.

    `problem` is the server's answer, if it answers but takes no connection at the moment.
    """

    reason: str
    retry_in_s: float
    problem: Problem | None = None


class Postponed(msgspec.Struct, frozen=True):
    """The server refused a subscription temporarily: it is requested again in `retry_in_s`."""

    queue: str
    problem: Problem
    retry_in_s: float


class Stopped(msgspec.Struct, frozen=True):
    """The server ended the session for good: every waiter gets `error`."""

    error: ApiError


class Gap(msgspec.Struct, frozen=True):
    """The stream has trimmed the messages between the two positions; delivery goes on after them.

    `partition` is the partition of the positions, if the stream has several.
    """

    queue: str
    start: Any
    end: Any
    partition: int | None = None


class Reset(msgspec.Struct, frozen=True):
    """The stream could not go on from the last cursor and began at `cursor`; messages in between may be missing.

    `cursor` is None if a subscription from `latest` was cut before its first message: its position is not known.
    """

    queue: str
    cursor: str | None


class Lost(msgspec.Struct, frozen=True):
    """Leases ended before these messages were settled: they will be delivered again, perhaps to other consumers."""

    queue: str
    ids: tuple[str, ...]


class Unreadable(msgspec.Struct, frozen=True):
    """A message came that this client cannot decode: no reader got it. If it has a receipt it was given back with the
    reason, so that it becomes a dead letter in the end."""

    queue: str
    id: str
    reason: str


class HandlerFailed(msgspec.Struct, frozen=True):
    """A handler that `run` called raised `error`: the message goes back, unless the handler had settled it before."""

    queue: str
    id: str
    attempt: int
    error: BaseException


SessionEvent = Connected | Disconnected | Postponed | Stopped | Gap | Reset | Lost | Unreadable | HandlerFailed
