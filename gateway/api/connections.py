"""HTTP handlers for open connections of this gateway: list, and close one. An administrator sees its own tenant's."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from backend_store.client import timestamp
from backend_store.model import Forbidden, NotFound
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.bodies import ConnectionPage, ConnectionView, ReadingView
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from gateway.identity.authorization import may_administer
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from push.connections import Connection
from push.limits import SUBSCRIPTIONS_SHOWN_MAX
from push.session.subscriptions import StreamSubscription, WorkSubscription


async def list_connections(gateway: Gateway, call: Call) -> Answer:
    _require_admin(call)
    query = call.query("limit", "cursor")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    after = decode_cursor(query.get("cursor"))
    visible = (each for each in gateway.hub.open if each.id > after and _reaches(call, each))
    found = heapq.nsmallest(limit + 1, visible, key=lambda each: each.id)
    views, has_more = [_view(each) for each in found], False
    if gateway.siblings is not None:
        elsewhere, has_more = await gateway.siblings.connections(call.headers, limit, query.get("cursor"))
        views = heapq.nsmallest(limit + 1, [*views, *elsewhere], key=lambda each: each.id)
    following = encode_cursor(views[limit - 1].id) if has_more or len(views) > limit else None
    page = ConnectionPage(views[:limit], following)
    return json_answer(page, headers=link_to_next("/v1/connections", limit, following))


async def kick(gateway: Gateway, call: Call) -> Answer:
    """Closes a connection: its leases end at once, and its session cannot be resumed. A client with a valid key may
    connect again."""
    _require_admin(call)
    found = gateway.hub.open.find(call.params[0])
    if found is None and gateway.siblings is not None and await gateway.siblings.kick(call.headers, call.params[0]):
        return Answer(204, content_type=None)
    if found is None or not _reaches(call, found):
        raise NotFound(f"unknown connection {call.params[0][:100]!r}")
    call.query()
    gateway.hub.open.kick(found)
    return Answer(204, content_type=None)


def _require_admin(call: Call) -> None:
    if not may_administer(call.principal.access, "connections"):
        raise Forbidden(f"connections need the scope admin, which the key {call.principal.name!r} lacks")


def _reaches(call: Call, connection: Connection) -> bool:
    principal = connection.holder.principal
    return principal is not None and may_administer(
        call.principal.access, "connections", is_own_tenant=principal.tenant == call.principal.tenant
    )


def _view(connection: Connection) -> ConnectionView:
    holder = connection.holder
    principal = holder.principal
    assert isinstance(principal, Principal)
    reading = list(_reading(connection))
    return ConnectionView(
        id=connection.id,
        tenant=principal.tenant,
        principal=principal.id,
        name=principal.name,
        transport=connection.transport,
        connected_at=timestamp(connection.connected_at_ms),
        address=holder.remote,
        subscriptions=reading[:SUBSCRIPTIONS_SHOWN_MAX],
        sent=sum(each.sent for each in reading),
        outbox_bytes=holder.outbox_bytes,
    )


def _reading(connection: Connection) -> Iterable[ReadingView]:
    for each in connection.holder.reading():
        if isinstance(each, WorkSubscription | StreamSubscription):
            yield ReadingView(each.queue.name, each.queue.group, each.messages_sent)
        else:
            yield ReadingView(each.name, each.group, 0)
