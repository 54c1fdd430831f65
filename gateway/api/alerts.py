"""HTTP handlers for current alerts, their history, and a stream of both. A caller sees alerts about queues that it may
view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from backend_store.model import NotFound, PushqError
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.notifier import Listener
from gateway.alerts.views import AlertView, alert_view, history_view
from gateway.api.events import EVENT_STREAM
from gateway.api.http import Answer, Call, encode_json, json_answer
from gateway.api.paging import page_in_order, page_of
from gateway.api.shapes.alerts import AlertPage, HistoryPage
from gateway.api.validate import time_ms
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from push.operations.checks import field as invalid_field

STATES: Final = ("pending", "firing", "resolved")
HEARTBEAT_SECONDS: Final = 15
LOOK_SECONDS: Final = 0.5
"""How often a stream checks whether the server drains."""
_SEQ_MAX: Final = 1 << 62


async def list_alerts(gateway: Gateway, call: Call) -> Answer:
    query = call.query("state", "rule", "queue", "tenant", "limit", "cursor")
    tenant = _tenant(gateway, call, query.get("tenant"))
    state = query.get("state")
    if state is not None and state not in STATES:
        raise invalid_field("/query/state", f"state must be one of {', '.join(STATES)}, not {state[:50]!r}")
    alerts = gateway.watching.alerts
    pairs = [
        (rule, alert)
        for rule, alert in alerts.of_tenant(tenant)
        if query.get("rule") in (None, rule.id)
        and query.get("queue") in (None, alert.subject)
        and state in (None, alert.state)
        and may_see(call.principal, rule, alert)
    ]
    found, following, headers = page_of(query, pairs, _place, "/v1/alerts")
    return json_answer(AlertPage([alert_view(alerts, *pair) for pair in found], following), headers=headers)


def _place(pair: tuple[Rule, Alert]) -> str:
    """Sort key: firing alerts first, within a state the most severe first."""
    rule, alert = pair
    order = {"firing": 0, "pending": 1, "resolved": 2}[alert.state]
    severity = {"critical": 0, "warning": 1, "info": 2}[rule.severity]
    return f"{order}{severity}/{alert.id}"


async def history(gateway: Gateway, call: Call) -> Answer:
    query = call.query("rule", "queue", "since", "tenant", "limit", "cursor")
    tenant = _tenant(gateway, call, query.get("tenant"))
    since_ms = time_ms(query["since"], pointer="/query/since") if "since" in query else 0
    access = call.principal.access
    lines = (
        one
        for one in gateway.watching.alerts.record.history.newest_first(tenant, since_ms)
        if query.get("rule") in (None, one.rule)
        and query.get("queue") in (None, one.subject)
        and (not KINDS[one.kind].is_for_operators or access.is_operator)
        and (access.is_admin or (KINDS[one.kind].about == "queue" and access.may("view", one.subject)))
    )
    path = "/v1/alerts/history"
    found, following, headers = page_in_order(query, lines, lambda one: f"{_SEQ_MAX - one.seq:019d}", path)
    return json_answer(HistoryPage([history_view(one) for one in found], following), headers=headers)


async def events(gateway: Gateway, call: Call) -> Answer | ASGIApp:
    query = call.query("ticket")
    del query
    _tenant(gateway, call, None)
    if call.scope["method"] == "HEAD":
        return Answer(200, content_type=EVENT_STREAM)
    notifier = gateway.watching.notifier
    who, listener = call.account.who, notifier.listen(call.principal.tenant)
    try:
        gateway.throttle.enter("connections", who)
    except PushqError:
        notifier.unlisten(listener)
        raise
    stream = EventSourceResponse(
        _stream(gateway, listener, call.principal),
        headers={"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"},
        ping=HEARTBEAT_SECONDS,
        sep="\n",
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive"),
    )

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the stream, and unlistens even if the client had disconnected before it began."""
        try:
            await stream(scope, receive, send)
        finally:
            notifier.unlisten(listener)
            gateway.throttle.leave("connections", who)

    return counted


async def _stream(gateway: Gateway, listener: Listener, principal: Principal) -> AsyncGenerator[ServerSentEvent, None]:
    yield ServerSentEvent(comment="alerts as they change")
    while not gateway.hub.draining and gateway.keyring.still_valid(principal):
        try:
            view = await asyncio.wait_for(listener.waiting.get(), LOOK_SECONDS)
        except TimeoutError:
            continue
        if view is None:
            break
        if _may_see_view(principal, view):
            yield ServerSentEvent(encode_json(view).decode(), event="alert", id=view.id)
    yield ServerSentEvent("", event="bye")


def may_see(principal: Principal, rule: Rule, alert: Alert) -> bool:
    """Whether the caller may see an alert: those about the process and shards are for operators, those about keys for
    administrators, those about a queue for callers that may view it."""
    kind, access = KINDS[rule.kind], principal.access
    if kind.is_for_operators:
        return access.is_operator
    return access.is_admin or (kind.about == "queue" and access.may("view", alert.subject))


def _may_see_view(principal: Principal, view: AlertView) -> bool:
    access = principal.access
    if KINDS[view.kind].is_for_operators:
        return access.is_operator
    return access.is_admin or (view.queue is not None and access.may("view", view.queue))


def _tenant(gateway: Gateway, call: Call, named: str | None) -> str:
    """The tenant whose alerts are asked for; for all but operators, other tenants do not exist."""
    principal = call.principal
    if named is None or named == principal.tenant:
        return principal.tenant
    if not principal.access.is_operator or named not in gateway.store.metadata.tenants:
        raise NotFound(f"unknown tenant {named[:100]!r}")
    return named
