"""Every operation of the HTTP API: what answers a path, and what the OpenAPI document says about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp

from backend_store.model import QueueConfig
from gateway.api import (
    audit,
    cancel,
    connections,
    events,
    groups,
    keys,
    messages,
    peek,
    purges,
    queues,
    redrives,
    rotations,
    tenants,
    tickets,
    usage,
)
from gateway.api import shapes as s
from gateway.api.queue_shapes import QueuePage, QueueView
from gateway.api.usage_shapes import AuditPage, UsagePage
from gateway.context import Gateway
from gateway.http import Answer, Call
from throttling import rules

Handler = Callable[[Gateway, Call], Awaitable[Answer | ASGIApp]]


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    handler: Handler
    summary: str
    scope: str
    """What the caller's key must have, in words."""
    answers: dict[int, Any]
    """Status → type of the body; None for an answer without one."""
    request: Any = None
    query: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    """Those of `query` that must be given."""
    refusals: tuple[int, ...] = field(default=(400, 401, 403, 404))
    takes_ticket: bool = False
    takes_key: bool = False
    """Whether it may carry an `Idempotency-Key`."""
    takes_timeout: bool = False
    """Whether it may say how long it waits."""
    name: str = field(init=False)
    """What it is called among the rows of usage and audit: `publish`, `queues.patch`, …"""
    has_queue: bool = field(init=False)
    """Whether the first variable part of its path is a queue's name."""

    def __post_init__(self) -> None:
        module = self.handler.__module__.rpartition(".")[2]
        name = self.handler.__name__
        object.__setattr__(self, "name", name if module in ("messages", name) else f"{module}.{name}")
        object.__setattr__(self, "has_queue", self.path.startswith("/v1/queues/{queue}"))


_PAGING = ("limit", "cursor")

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "PUT",
        "/v1/queues/{queue}",
        queues.put,
        "Create a queue, or find it there with the same config",
        "manage",
        {200: QueueView, 201: QueueView},
        request=QueueConfig,
        refusals=(400, 401, 403, 409, 413, 415),
    ),
    Operation(
        "GET",
        "/v1/queues",
        queues.list_queues,
        "Queues that the key may view",
        "view",
        {200: QueuePage},
        query=_PAGING,
        refusals=(400, 401),
    ),
    Operation("GET", "/v1/queues/{queue}", queues.get, "A queue's config and exact numbers", "view", {200: QueueView}),
    Operation(
        "PATCH",
        "/v1/queues/{queue}",
        queues.patch,
        "Change a queue's config; `If-Match` is required",
        "manage",
        {200: QueueView},
        request=QueueConfig,
        refusals=(400, 401, 403, 404, 412, 413, 415, 428),
    ),
    Operation(
        "DELETE",
        "/v1/queues/{queue}",
        queues.delete,
        "Delete a queue; its messages are discarded or moved to another queue",
        "admin",
        {200: s.DeletedView},
        query=("confirm", "discard", "move_to"),
        required=("confirm",),
        refusals=(400, 401, 403, 404, 409),
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/messages",
        messages.publish,
        "Publish messages",
        "publish",
        {201: s.PublishedView},
        request=s.PublishBody,
        refusals=(400, 401, 403, 404, 409, 413, 415, 422, 503, 504, 507),
        takes_key=True,
        takes_timeout=True,
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/messages",
        peek.peek,
        "Look at messages without touching them; `header.NAME=` filters by a header",
        "view or consume",
        {200: s.PeekView},
        query=peek.FILTERS,
    ),
    Operation(
        "DELETE",
        "/v1/queues/{queue}/messages/{message}",
        cancel.cancel,
        "Cancel a message that is scheduled or ready",
        "publish or manage",
        {204: None},
        refusals=(400, 401, 403, 404, 409),
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/receive",
        messages.receive,
        "Lease messages, waiting for them if wanted",
        "consume",
        {200: s.ReceivedView},
        request=s.ReceiveBody,
        refusals=(400, 401, 403, 404, 413, 415, 503),
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/ack",
        messages.ack,
        "Settle messages",
        "consume",
        {200: s.AckedView},
        request=s.AckBody,
        refusals=(400, 401, 403, 404, 413, 415, 503, 507),
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/nack",
        messages.nack,
        "Give messages back",
        "consume",
        {200: s.ResultsView},
        request=s.NackBody,
        refusals=(400, 401, 403, 404, 413, 415),
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/extend",
        messages.extend,
        "Hold messages for longer",
        "consume",
        {200: s.ResultsView},
        request=s.ExtendBody,
        refusals=(400, 401, 403, 404, 413, 415),
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/events",
        events.events,
        "Messages as server-sent events",
        "consume",
        {200: "text/event-stream"},
        query=("credit", "ack", "group", "from", "last_event_id", "ticket"),
        refusals=(400, 401, 403, 404, 503),
        takes_ticket=True,
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/purge",
        purges.start,
        "Drop every message of a queue",
        "manage",
        {202: s.JobView},
        request=s.PurgeBody,
        refusals=(400, 401, 403, 404, 413, 415),
    ),
    Operation("GET", "/v1/queues/{queue}/purges/{purge}", purges.get, "How far a purge is", "manage", {200: s.JobView}),
    Operation(
        "DELETE",
        "/v1/queues/{queue}/purges/{purge}",
        purges.cancel,
        "Stop a purge",
        "manage",
        {},
        refusals=(400, 401, 403, 404, 409),
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/redrives",
        redrives.start,
        "Move dead letters back to where they came from, or elsewhere",
        "manage, and publish on the target",
        {200: s.RedriveTotalView, 202: s.JobView},
        request=s.RedriveBody,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/redrives",
        redrives.list_redrives,
        "Redrives of a queue",
        "manage",
        {200: s.JobPage},
        query=_PAGING,
    ),
    Operation(
        "GET", "/v1/queues/{queue}/redrives/{redrive}", redrives.get, "How far a redrive is", "manage", {200: s.JobView}
    ),
    Operation(
        "DELETE",
        "/v1/queues/{queue}/redrives/{redrive}",
        redrives.cancel,
        "Stop a redrive; what was moved stays moved",
        "manage",
        {200: s.JobView},
    ),
    Operation(
        "POST",
        "/v1/rotations",
        rotations.start,
        "Replace the master key, or data keys of queues",
        "operator",
        {202: s.JobView},
        request=s.RotationBody,
        refusals=(400, 401, 403, 409, 413, 415),
    ),
    Operation(
        "GET", "/v1/rotations/{rotation}", rotations.get, "How far a rotation of keys is", "operator", {200: s.JobView}
    ),
    Operation(
        "DELETE",
        "/v1/rotations/{rotation}",
        rotations.cancel,
        "Stop a rotation of keys; what was done stays",
        "operator",
        {200: s.JobView},
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/groups",
        groups.list_of_queue,
        "Consumer groups of a stream, and how far they are behind",
        "view",
        {200: s.GroupPage},
        query=_PAGING,
    ),
    Operation("GET", "/v1/queues/{queue}/groups/{group}", groups.get, "One consumer group", "view", {200: s.GroupView}),
    Operation(
        "PUT",
        "/v1/queues/{queue}/groups/{group}",
        groups.put,
        "Make a consumer group, or move it",
        "manage",
        {200: s.GroupView, 201: s.GroupView},
        request=s.GroupBody,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    ),
    Operation(
        "DELETE",
        "/v1/queues/{queue}/groups/{group}",
        groups.delete,
        "Forget a consumer group; the stream keeps its messages",
        "manage",
        {204: None},
    ),
    Operation(
        "POST",
        "/v1/keys",
        keys.create,
        "Make an API key; its token is in this answer only",
        "admin",
        {201: s.NewKeyView},
        request=s.KeyBody,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    ),
    Operation(
        "GET",
        "/v1/keys",
        keys.list_keys,
        "API keys, without their secrets",
        "admin",
        {200: s.KeyPage},
        query=_PAGING,
        refusals=(400, 401, 403),
    ),
    Operation("GET", "/v1/keys/{key}", keys.get, "One API key", "admin", {200: s.KeyView}),
    Operation(
        "POST",
        "/v1/keys/{key}/rotate",
        keys.rotate,
        "A new secret for a key; the old one ends after a grace",
        "admin",
        {200: s.NewKeyView},
        request=s.RotateBody,
        refusals=(400, 401, 403, 404, 413, 415),
    ),
    Operation(
        "DELETE",
        "/v1/keys/{key}",
        keys.revoke,
        "Revoke a key",
        "admin",
        {204: None},
        refusals=(400, 401, 403, 404, 409),
    ),
    Operation(
        "POST",
        "/v1/tickets",
        tickets.issue,
        "Trade the key for a one-use ticket",
        "any",
        {201: s.TicketView},
        request=s.TicketBody,
        refusals=(400, 401, 403, 404, 413, 415, 503),
    ),
    Operation(
        "GET",
        "/v1/connections",
        connections.list_connections,
        "Open connections of this gateway",
        "admin; operator for all tenants",
        {200: s.ConnectionPage},
        query=_PAGING,
        refusals=(400, 401, 403),
    ),
    Operation(
        "DELETE",
        "/v1/connections/{connection}",
        connections.kick,
        "End a connection; what it holds returns at once",
        "admin; operator for all tenants",
        {204: None},
    ),
    Operation(
        "PUT",
        "/v1/tenants/{tenant}",
        tenants.put,
        "Make a tenant, or change its quotas",
        "operator",
        {200: s.TenantView, 201: s.TenantView},
        request=s.TenantBody,
        refusals=(400, 401, 403, 409, 413, 415),
    ),
    Operation(
        "GET",
        "/v1/tenants",
        tenants.list_tenants,
        "Tenants",
        "operator",
        {200: s.TenantPage},
        query=_PAGING,
        refusals=(400, 401, 403),
    ),
    Operation(
        "GET",
        "/v1/usage",
        usage.totals,
        "Billable counts by queue; `from` and `to` are days, `tenant` is for operators",
        "admin",
        {200: UsagePage},
        query=usage.FILTERS,
        refusals=(400, 401, 403, 404),
    ),
    Operation(
        "GET",
        "/v1/audit",
        audit.acts,
        "What administrators did, the newest first",
        "admin",
        {200: AuditPage},
        query=audit.FILTERS,
        refusals=(400, 401, 403, 404),
    ),
    Operation("GET", "/v1/tenants/{tenant}", tenants.get, "One tenant", "operator", {200: s.TenantView}),
    Operation(
        "DELETE",
        "/v1/tenants/{tenant}",
        tenants.delete,
        "Remove a tenant that has no queues left",
        "operator",
        {204: None},
        refusals=(400, 401, 403, 404, 409),
    ),
)

LATER: Final[tuple[tuple[str, str], ...]] = (
    ("/v1/alert-rules", "alert rules"),
    ("/v1/alerts", "alerts"),
    ("/v1/silences", "silences"),
    ("/v1/cluster", "clusters"),
)
"""Paths of the protocol that this version does not have: answered 404, with that reason."""


_KINDS: Final[dict[tuple[str, str], rules.Operation]] = {
    ("POST", "/v1/queues/{queue}/messages"): "publish",
    ("POST", "/v1/queues/{queue}/receive"): "receive",
    ("GET", "/v1/queues/{queue}/events"): "receive",
    ("POST", "/v1/queues/{queue}/ack"): "ack",
    ("POST", "/v1/queues/{queue}/nack"): "ack",
    ("POST", "/v1/queues/{queue}/extend"): "ack",
}


def kind_of(method: str, path: str) -> rules.Operation:
    """How rules of rates name an operation. To look at messages is an administrator's, to publish some a client's."""
    return _KINDS.get((method, path), "admin")
