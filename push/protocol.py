"""The frames of `pushq.v1.json` and `pushq.v1.msgpack`: one set of types decodes both.

A message's body stays raw: the producer's bytes are stored and handed on without being decoded.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SUBPROTOCOL_JSON = "pushq.v1.json"
SUBPROTOCOL_MSGPACK = "pushq.v1.msgpack"

FRAME_BYTES_MAX = 4 * 1024 * 1024
REQUESTS_IN_PROGRESS_MAX = 4096
"""Requests of one socket that wait for an answer; above it the socket is not read until some are answered."""
CONNECT_SECONDS_MAX = 5.0
PING_MS = 25_000
PONG_MS_MAX = 10_000
REQUEST_ID_CHARS_MAX = 64
RECEIPTS_PER_REQUEST_MAX = 10_000

RequestId = int | str | None


class PublishMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One message as a producer gives it. None: the field was left out."""

    body: msgspec.Raw = msgspec.Raw()
    body_base64: str | None = None
    content_type: str | None = None
    id: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    priority: int | None = None
    delay_ms: int | None = None
    deliver_at: str | None = None
    ttl_ms: int | None = None
    producer: str | None = None
    producer_seq: int | None = None
    timestamp: str | None = None


class EventMessage(PublishMessage, forbid_unknown_fields=True, gc=False):
    """A CloudEvent. Its `id` is unique among those of its `source`, not among all messages."""

    source: str = ""


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message that is only a body: decoded without any other field."""

    body: msgspec.Raw


class Resume(msgspec.Struct, forbid_unknown_fields=True):
    session: str


class _Frame(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag=str.lower, gc=False):
    pass


class Connect(_Frame):
    id: RequestId = None
    token: str | None = None
    ticket: str | None = None
    resume: Resume | None = None


class Subscribe(_Frame):
    queue: str
    id: RequestId = None
    credit: int | None = None
    ack: Literal["manual", "auto"] | None = "manual"
    group: str | None = None
    from_: Any = msgspec.field(default=None, name="from")
    visibility_timeout_ms: int | None = None
    attempts: Literal["delivered", "begun"] = "delivered"
    """What counts as an attempt when a consumer leaves: that a message was delivered, or that the client sent `begin`.
    """


class Begin(_Frame):
    """A handler begins with these messages: from now on they count as attempted."""

    sub: int
    receipts: list[str]
    id: RequestId = None


class Unsubscribe(_Frame):
    sub: int
    id: RequestId = None


class Credit(_Frame):
    sub: int
    n: int
    id: RequestId = None


class Publish(_Frame):
    queue: str
    messages: list[PublishMessage]
    id: RequestId = None
    idempotency_key: str | None = None
    timeout_ms: int | None = None
    """How long the sender waits."""
    traceparent: str | None = None
    """W3C Trace Context of the frame's messages."""
    tracestate: str | None = None


class AckPublish(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that are published in the same transaction as an ack."""

    queue: str
    messages: list[PublishMessage]


class Ack(_Frame):
    queue: str
    receipts: list[str]
    id: RequestId = None
    sub: int | None = None
    publish: list[AckPublish] | None = None


class Nack(_Frame):
    queue: str
    receipts: list[str]
    id: RequestId = None
    sub: int | None = None
    delay_ms: int | None = None
    """0: at once, whatever the queue's backoff is."""
    reason: str | None = None
    tried: bool = True
    """False: no handler began with the messages, so it was no attempt."""


class Extend(_Frame):
    queue: str
    receipts: list[str]
    visibility_timeout_ms: int
    id: RequestId = None
    sub: int | None = None


class Refresh(_Frame):
    token: str
    id: RequestId = None


class Ping(_Frame):
    id: RequestId = None


class Pong(_Frame):
    id: RequestId = None


ClientFrame = Connect | Subscribe | Begin | Unsubscribe | Credit | Publish | Ack | Nack | Extend | Refresh | Ping | Pong


class PlainPublish(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="publish", gc=False):
    """The hot frame: a publish of messages that are only bodies. Any other publish is decoded again as
    `ClientFrame`."""

    queue: str
    messages: list[PlainMessage]
    id: RequestId = None
    timeout_ms: int | None = None
    idempotency_key: str | None = None


class PublishHead(msgspec.Struct, tag_field="type", tag="publish", gc=False):
    """The fields of a publish that decide whether it can be taken at all; the decoder skips its messages."""

    queue: str
    id: RequestId = None


class FrameId(msgspec.Struct, gc=False):
    """The id of any frame."""

    id: RequestId = None


class PlainBytesMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    body: bytes


class PlainBytesPublish(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="publish", gc=False):
    """The hot frame in MessagePack: bodies that are bytes."""

    queue: str
    messages: list[PlainBytesMessage]
    id: RequestId = None
    timeout_ms: int | None = None
    idempotency_key: str | None = None
