"""Bodies of requests and answers: the types that the server decodes with and makes the OpenAPI document from."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from backend_store.model import VISIBILITY_MS_MAX, Quotas
from gateway.api.schemas import ack_publishes
from gateway.identity.authorization import SCOPE_PATTERN
from gateway.limits import (
    NAME_CHARS_MAX,
    RECEIVE_MESSAGES_DEFAULT,
    REDRIVE_IDS_MAX,
    REDRIVE_PER_SECOND_MAX,
    ROTATE_GRACE_MS_MAX,
    ROTATION_QUEUES_MAX,
    SCOPES_PER_KEY_MAX,
)
from push.connections import Transport
from push.delivery.start_position import FORMS, POSITIONS
from push.operations.checks import DELAY_MS_MAX
from push.protocol import RECEIPTS_PER_REQUEST_MAX, AckPublish, PlainMessage, PublishMessage
from push.transports import longpoll

# ---------------------------------------------------------------------------------------------------- requests


class PublishBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    messages: list[PublishMessage]


class PlainPublishBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The hot path: messages that have only bodies. Any other body is decoded again as `PublishBody`."""

    messages: list[PlainMessage]


def _schema(**constraints: Any) -> msgspec.Meta:
    """Constraints for the document only. Handlers check them, because they can give better errors."""
    return msgspec.Meta(extra_json_schema=constraints)


RECEIPTS = _schema(maxItems=RECEIPTS_PER_REQUEST_MAX)
VISIBILITY = _schema(minimum=0, maximum=VISIBILITY_MS_MAX)


class ReceiveBody(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int | None, _schema(minimum=1, maximum=longpoll.RECEIVE_MAX)] = RECEIVE_MESSAGES_DEFAULT
    wait_ms: Annotated[int | None, _schema(minimum=0, maximum=longpoll.WAIT_MS_MAX)] = 0
    visibility_timeout_ms: Annotated[int, VISIBILITY] | None = None
    group: Annotated[
        str | None, _schema(description="For a stream: the consumer group, created if it does not exist.")
    ] = None
    from_: Annotated[Any, _schema(description=f"For a stream: {FORMS}.")] = msgspec.field(default=None, name="from")


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an ack, as documented. `AckRequest` is what is decoded: it keeps bodies of messages raw."""

    receipts: Annotated[list[str], RECEIPTS]
    publish: Annotated[Any, _schema(**ack_publishes())] = None


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    receipts: list[str]
    publish: list[AckPublish] | None = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    receipts: Annotated[list[str], RECEIPTS]
    delay_ms: Annotated[int | None, _schema(minimum=0, maximum=DELAY_MS_MAX)] = None
    """0: at once. Left out: after the queue's backoff."""
    reason: str | None = None
    tried: bool = True
    """False: no consumer began to process the messages, so it was no attempt."""


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    receipts: Annotated[list[str], RECEIPTS]
    visibility_timeout_ms: Annotated[int, VISIBILITY]


class GroupBody(msgspec.Struct, forbid_unknown_fields=True):
    """Without a position, a new group begins at the end, and an existing one keeps its position."""

    position: Annotated[Any, _schema(description=f"The group's new position: {POSITIONS}.")] = None
    mode: Annotated[str | None, _schema(enum=["offsets", "leases", None])] = None


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    confirm: Annotated[str, _schema(description="The queue's name, as confirmation.")]


REASONS: Final = ("max_attempts", "expired", "overflow", "undeliverable", "queue_deleted")
"""Why a message is a dead letter."""


class RedriveFilter(msgspec.Struct, forbid_unknown_fields=True):
    """Selects the dead letters that match all given conditions."""

    reason: Annotated[str | None, _schema(enum=[*REASONS, None])] = None
    ids: Annotated[list[str] | None, _schema(maxItems=REDRIVE_IDS_MAX)] = None
    header: dict[str, str] | None = None
    """Headers that the message must have with exactly these values."""
    older_than: Annotated[str, _schema(format="date-time")] | None = None
    """It became a dead letter before this time."""


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True):
    to: Annotated[str | None, _schema(description="Default: the queue each message came from.")] = None
    filter: RedriveFilter | None = None
    rate_per_s: Annotated[float | None, _schema(exclusiveMinimum=0, maximum=REDRIVE_PER_SECOND_MAX)] = None
    dry_run: bool | None = False


class RedriveTotalView(msgspec.Struct):
    """The answer to a dry run."""

    total: int


Scope = Annotated[str, _schema(pattern=SCOPE_PATTERN)]
SCOPES = _schema(minItems=1, maxItems=SCOPES_PER_KEY_MAX)


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, _schema(minLength=1, maxLength=NAME_CHARS_MAX)]
    scopes: Annotated[list[Scope], SCOPES]
    tenant: str | None = None
    expires_at: Annotated[str, _schema(format="date-time")] | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    grace_ms: Annotated[int, _schema(minimum=0, maximum=ROTATE_GRACE_MS_MAX)] = 0


class TicketBody(msgspec.Struct, forbid_unknown_fields=True):
    queue: str | None = None
    scopes: Annotated[list[Scope], SCOPES] | None = None


class TenantBody(msgspec.Struct, forbid_unknown_fields=True):
    quotas: Quotas | None = None
    """Left out: quotas stay as they are. Given: these replace all."""


# ----------------------------------------------------------------------------------------------------- answers


class JobView(msgspec.Struct):
    """A background job: a purge, a redrive, a rotation of keys."""

    id: str
    state: str
    done: int
    total: int
    rate_per_s: float | None = None
    error: str | None = None


class JobPage(msgspec.Struct):
    items: list[JobView]
    next: str | None = None


class RotationBody(msgspec.Struct, forbid_unknown_fields=True):
    """What to rotate: at least one of these."""

    master_file: Annotated[
        str | None, _schema(description="A file on the server that contains the new master key.")
    ] = None
    queues: Annotated[
        list[str] | None, _schema(maxItems=ROTATION_QUEUES_MAX, description="Queues to create new data keys for.")
    ] = None
    all_queues: bool = False
    """Every queue of every tenant gets a new data key."""


class GroupLagView(msgspec.Struct):
    """A group's position in one partition. `position` and `end` are offsets; `lag` counts messages."""

    partition: int
    position: int
    end: int
    lag: int


class GroupView(msgspec.Struct):
    """A consumer group of a stream. Everything below `position` is done for this group."""

    name: str
    mode: Literal["offsets", "leases"]
    position: dict[str, int]
    lag: list[GroupLagView]


class GroupPage(msgspec.Struct):
    items: list[GroupView]
    next: str | None = None


class _KeyFacts(msgspec.Struct):
    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str | None = None


class KeyView(_KeyFacts):
    last_used_at: str | None = None
    """To the minute."""


class NewKeyView(_KeyFacts, kw_only=True):
    key: str
    """Shown only once."""


class KeyPage(msgspec.Struct):
    items: list[KeyView]
    next: str | None = None


class TicketView(msgspec.Struct):
    ticket: str
    expires_at: str


class TenantView(msgspec.Struct):
    name: str
    created_at: str
    quotas: Quotas


class TenantPage(msgspec.Struct):
    items: list[TenantView]
    next: str | None = None


class ReadingView(msgspec.Struct):
    """A subscription: its queue, and how many messages were sent to it."""

    queue: str
    group: str | None
    sent: int


class ConnectionView(msgspec.Struct, kw_only=True):
    id: str
    tenant: str
    principal: str
    name: str
    transport: Transport
    connected_at: str
    address: str
    subscriptions: list[ReadingView]
    sent: int
    """Messages sent to the present subscriptions."""
    outbox_bytes: int


class ConnectionPage(msgspec.Struct):
    items: list[ConnectionView]
    next: str | None = None


class DeletedView(msgspec.Struct):
    name: str
    discarded: int | None
    """Number of messages; null if the queue's cluster is away, so that they cannot be counted."""
    moved_to: str | None = None


class PlacedView(msgspec.Struct, kw_only=True):
    """The place of one published message; of a repeat, that of the first. `error` in place of `seq`: it was refused.

    If a repeat was recognized by its producer's number, the first message's place may be forgotten: then `seq` is null.
    """

    id: str | None
    seq: int | msgspec.UnsetType | None = msgspec.UNSET
    partition: int
    duplicate: bool
    error: ProblemView | msgspec.UnsetType = msgspec.UNSET


class DurabilityView(msgspec.Struct):
    fsynced: bool
    replicas: int


class PublishedView(msgspec.Struct):
    messages: list[PlacedView]
    durability: DurabilityView
    sequencing: Literal["arrival", "producer", "clock"]
    """What the queue orders by; tells a producer which fields its next messages need."""
    dedupe: Literal["none", "id", "content"]


class OrderingView(msgspec.Struct):
    """The position that the producer gave a message, and whether it arrived after that position was delivered."""

    timestamp: str | None
    late: bool


class AttemptView(msgspec.Struct):
    """How one attempt ended without an ack. `reason` is the consumer's own, from its nack."""

    attempt: int
    at: str
    outcome: str
    reason: str | None


class DeadLetterView(msgspec.Struct, kw_only=True):
    """Why a message became a dead letter, and its attempts."""

    from_: str | None = msgspec.field(name="from")
    reason: str
    at: str
    attempts: int
    history: list[AttemptView]


class MessageView(msgspec.Struct, kw_only=True):
    """A message. It has either `body` or `body_base64`."""

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
    expires_at: str | msgspec.UnsetType = msgspec.UNSET
    ordering: OrderingView | msgspec.UnsetType = msgspec.UNSET
    producer: str | msgspec.UnsetType = msgspec.UNSET
    producer_seq: int | msgspec.UnsetType = msgspec.UNSET
    reply_to: str | msgspec.UnsetType = msgspec.UNSET
    correlation_id: str | msgspec.UnsetType = msgspec.UNSET
    dead_letter: DeadLetterView | msgspec.UnsetType = msgspec.UNSET
    traceparent: str | msgspec.UnsetType = msgspec.UNSET
    tracestate: str | msgspec.UnsetType = msgspec.UNSET


class DeliveredMessage(MessageView, kw_only=True):
    attempt: int
    receipt: str | None


MessageState = Literal["ready", "in_flight", "delayed", "dead"]


class HolderView(msgspec.Struct):
    """The holder of a message's lease: a connection, or an answered receive, which has no connection any more."""

    principal: str
    name: str
    transport: Literal["ws", "sse", "poll"]
    address: str
    connection: str | None
    connected_at: str | None


class HeldView(msgspec.Struct):
    """A lease. `consumer` is null if the holder is another gateway's, a disconnected session, or the server itself, and
    for all but administrators. `expires_at` is null at a gateway with backends."""

    expires_at: str | None
    consumer: HolderView | None


class PeekedMessage(MessageView, kw_only=True):
    attempt: int
    """How often it was delivered so far."""
    state: MessageState
    due_at: str | msgspec.UnsetType = msgspec.UNSET
    """Of a delayed message: when it becomes ready."""
    history: list[AttemptView] | msgspec.UnsetType = msgspec.UNSET
    """Its latest attempts that ended without an ack; a dead letter has them below `dead_letter`."""
    lease: HeldView | msgspec.UnsetType = msgspec.UNSET
    """Of a message in flight that was asked for by its `id`: its lease."""


class ReceivedView(msgspec.Struct):
    messages: list[DeliveredMessage]
    cursor: str | msgspec.UnsetType = msgspec.UNSET
    """Of a stream: the cursor to continue from."""
    resume: str | msgspec.UnsetType = msgspec.UNSET


class PeekView(msgspec.Struct):
    items: list[PeekedMessage]
    next: str | None
    scanned: int


class PartitionOffsetsView(msgspec.Struct):
    """The offsets of one partition. Everything below `first` was removed; the next message gets `next` or a later
    offset."""

    partition: int
    first: int
    next: int
    epoch: int


class OffsetsView(msgspec.Struct):
    queue: str
    uid: str
    """A queue deleted and created again under this name has another uid."""
    kind: Literal["stream", "companion", "work"]
    partitions: list[PartitionOffsetsView]


class RangeView(msgspec.Struct):
    uid: str
    epoch: int
    first: int
    next: int
    """The offset to continue from."""
    messages: list[DeliveredMessage]


class ResultView(msgspec.Struct):
    receipt: str
    ok: bool
    error: str | msgspec.UnsetType = msgspec.UNSET


class ResultsView(msgspec.Struct):
    results: list[ResultView]


class OutputView(msgspec.Struct):
    """The result of one publish of an ack."""

    queue: str
    messages: list[PlacedView]


class AckedView(msgspec.Struct):
    results: list[ResultView]
    published: list[OutputView] | msgspec.UnsetType = msgspec.UNSET
    """Of an ack that published: one row per publish; empty if nothing was published now."""


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
