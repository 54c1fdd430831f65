"""Peek: looking at messages without touching them."""

from __future__ import annotations

from typing import Any, Final, get_args

from backend_store.client import PeekFilter, Queue, decode_cursor
from backend_store.model import Forbidden, InvalidRequest
from gateway.api.queues import link_to_next
from gateway.api.shapes import MessageState
from gateway.context import Gateway
from gateway.http import Answer, Call, integer, json_answer
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from push.checks import field as invalid_field
from push.checks import not_yet

SEQ_MAX: Final = (1 << 63) - 1
STATES: Final = get_args(MessageState)
LATER: Final = {
    "header": "peek by header",
    "contains": "peek by content",
    "since": "peek by time",
    "until": "peek by time",
    "partition": "queues of several partitions",
}
FILTERS: Final = ("state", "limit", "cursor", "from_seq", "id", "key")


async def peek(gateway: Gateway, call: Call) -> Answer:
    queue, with_bodies = _visible(gateway, call)
    query = call.query(*FILTERS, later=LATER)
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    page = await queue.peek(
        PeekFilter(
            state=_state(query.get("state", "ready")),
            limit=limit,
            cursor=_cursor(query.get("cursor")),
            from_seq=integer(query, "from_seq", None, low=0, high=SEQ_MAX),
            id=query.get("id"),
            key=query.get("key"),
        )
    )
    items = [_shown(item.message, item.state, with_bodies) for item in page.items]
    kept = {name: query[name] for name in ("state", "id", "key") if name in query}
    links = link_to_next(f"/v1/queues/{queue.name}/messages", limit, page.next, **kept)
    return json_answer({"items": items, "next": page.next, "scanned": page.scanned}, headers=links)


def _visible(gateway: Gateway, call: Call) -> tuple[Queue, bool]:
    """The queue, and whether the caller may see bodies: those are for whoever may consume it."""
    name, access = call.params[0], call.principal.access
    queue = gateway.store.queue(call.principal.tenant, name)
    with_bodies = access.may("consume", name)
    if not with_bodies and not access.may("view", name):
        raise Forbidden(f"the key {call.principal.name!r} has neither the scope view:{name} nor consume:{name}")
    return queue, with_bodies


def _cursor(text: str | None) -> str | None:
    if text is not None:
        try:
            decode_cursor(text)
        except InvalidRequest as error:
            raise invalid_field("/query/cursor", f"{error.detail}: send back `next` as it was given")
    return text


def _state(wanted: str) -> str:
    if wanted == "dead":
        raise not_yet("/query/state", "dead letters")
    if wanted not in STATES:
        raise invalid_field("/query/state", f"state is {wanted[:50]!r}; it is one of {', '.join(STATES)}")
    return wanted


def _shown(message: dict[str, Any], state: str, with_body: bool) -> dict[str, Any]:
    if not with_body:
        message = {name: value for name, value in message.items() if name not in ("body", "body_base64")}
    return {**message, "state": state}
