"""Bodies of requests and answers. The server decodes with these types, and the OpenAPI document is made from them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from backend_store.model import QueueConfig
from gateway.limits import RECEIVE_MESSAGES_DEFAULT
from push.protocol import PlainMessage, PublishMessage

# ---------------------------------------------------------------------------------------------------- requests


class PublishBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    messages: list[PublishMessage]


class PlainPublishBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The hot one: messages that are only bodies. What is not one is decoded again as `PublishBody`."""

    messages: list[PlainMessage]


class ReceiveBody(msgspec.Struct, forbid_unknown_fields=True):
    max: int = RECEIVE_MESSAGES_DEFAULT
    wait_ms: int = 0
    visibility_timeout_ms: int | None = None
    group: str | None = None
    from_: Any = msgspec.field(default=None, name="from")


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    receipts: list[str]
    publish: Any = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    receipts: list[str]
    delay_ms: int = 0
    reason: str | None = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    receipts: list[str]
    visibility_timeout_ms: int


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    confirm: str


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    scopes: list[str]
    tenant: str | None = None
    expires_at: str | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    grace_ms: int = 0


class TicketBody(msgspec.Struct, forbid_unknown_fields=True):
    queue: str | None = None
    scopes: list[str] | None = None


class TenantBody(msgspec.Struct, forbid_unknown_fields=True):
    quotas: dict[str, Any] | None = None


# ----------------------------------------------------------------------------------------------------- answers


class QueueStatsView(msgspec.Struct):
    ready: int
    in_flight: int
    delayed: int
    dead: int
    oldest_age_ms: int
    consumers: int
    bytes: int
    published_total: int
    acked_total: int


class QueueView(msgspec.Struct):
    name: str
    config: QueueConfig
    created_at: str
    owner: str
    stats: QueueStatsView


class QueuePage(msgspec.Struct):
    items: list[QueueView]
    next: str | None = None


class JobView(msgspec.Struct):
    """Long work: a purge."""

    id: str
    state: str
    done: int
    total: int
    rate_per_s: float | None = None
    error: str | None = None


class KeyView(msgspec.Struct):
    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str | None = None


class NewKeyView(KeyView, kw_only=True):
    key: str
    """Shown this once."""


class KeyPage(msgspec.Struct):
    items: list[KeyView]
    next: str | None = None


class TicketView(msgspec.Struct):
    ticket: str
    expires_at: str


class TenantView(msgspec.Struct):
    name: str
    created_at: str


class TenantPage(msgspec.Struct):
    items: list[TenantView]
    next: str | None = None



class DeletedView(msgspec.Struct):
    name: str
    discarded: int
    moved_to: str | None = None


class PlacedView(msgspec.Struct):
    """Where one message of a publish stands."""

    id: str
    seq: int
    partition: int
    duplicate: bool


class DurabilityView(msgspec.Struct):
    fsynced: bool
    replicas: int


class PublishedView(msgspec.Struct):
    messages: list[PlacedView]
    durability: DurabilityView


class MessageView(msgspec.Struct, kw_only=True):
    """A message. It has `body`, or `body_base64` in its place."""

    id: str
    seq: int
    partition: int
    body: Any = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    content_type: str
    headers: dict[str, str]
    key: str | None
    priority: int
    published_at: str
    reply_to: str | msgspec.UnsetType = msgspec.UNSET
    correlation_id: str | msgspec.UnsetType = msgspec.UNSET


class DeliveredMessage(MessageView, kw_only=True):
    attempt: int
    receipt: str | None


class PeekedMessage(MessageView, kw_only=True):
    state: Literal["ready", "in_flight", "delayed"]


MessageState = Literal["ready", "in_flight", "delayed"]


class ReceivedView(msgspec.Struct):
    messages: list[DeliveredMessage]
    cursor: str | msgspec.UnsetType = msgspec.UNSET
    """Of a stream: where to go on."""
    resume: str | msgspec.UnsetType = msgspec.UNSET


class PeekView(msgspec.Struct):
    items: list[PeekedMessage]
    next: str | None
    scanned: int


class ResultView(msgspec.Struct):
    receipt: str
    ok: bool
    error: str | msgspec.UnsetType = msgspec.UNSET


class ResultsView(msgspec.Struct):
    results: list[ResultView]


class FieldErrorView(msgspec.Struct):
    pointer: str
    detail: str


class ProblemView(msgspec.Struct):
    """RFC 9457: what went wrong, with a stable `code`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldErrorView] | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET
    trace_id: str | msgspec.UnsetType = msgspec.UNSET
