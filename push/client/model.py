"""The values a user of the client meets: what is published, what came of it, and what happened to the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from push.client.errors import ApiError

AckMode = Literal["manual", "auto"]
TransportName = Literal["ws", "sse", "poll"]
Encoding = Literal["msgpack", "json"]
From = Literal["earliest", "latest"] | Mapping[str, Any]
"""Where a stream's subscription begins: a word, or `{"seq": n}`, `{"time": t}`, `{"cursor": c}`."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message to publish. `body` is any JSON value, or bytes; a field the server cannot honour is refused by it."""

    body: Any
    id: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    content_type: str | None = None
    priority: int | None = None
    delay_ms: int | None = None
    deliver_at: str | None = None
    ttl_ms: int | None = None
    reply_to: str | None = None
    correlation_id: str | None = None


class Published(msgspec.Struct, frozen=True):
    """The server has the message on disk. `seq` rises within (partition, priority), with gaps."""

    id: str
    seq: int
    partition: int = 0
    duplicate: bool = False


class Connected(msgspec.Struct, frozen=True):
    """A connection stands. `resumed` says that the leases of the one before go on."""

    session: str
    resumed: bool


class Disconnected(msgspec.Struct, frozen=True):
    """The connection went; the next attempt follows in `retry_in_s`."""

    reason: str
    retry_in_s: float


class Stopped(msgspec.Struct, frozen=True):
    """The server ended the session for good: every waiter gets `error`."""

    error: ApiError


class Gap(msgspec.Struct, frozen=True):
    """The stream no longer has what lay between the two positions; delivery goes on behind it."""

    queue: str
    start: Any
    end: Any


class Reset(msgspec.Struct, frozen=True):
    """The stream could not go on from the last cursor and began at `cursor`; what lies between is unknown.

    `cursor` is None when a subscription from `latest` was cut before its first message: nothing says where it stood.
    """

    queue: str
    cursor: str | None


class Lost(msgspec.Struct, frozen=True):
    """Leases ended before these messages were settled: they will be delivered again, perhaps to others."""

    queue: str
    ids: tuple[str, ...]


SessionEvent = Connected | Disconnected | Stopped | Gap | Reset | Lost
