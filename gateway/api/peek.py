"""HTTP handler for peek and search: reads messages without leasing or changing them."""

from __future__ import annotations

from typing import Any, Final, get_args

from backend_store.client import PeekFilter, Queue, check_cursor
from backend_store.model import Forbidden
from gateway.api.holders import held
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import link_to_next
from gateway.api.shapes.bodies import MessageState
from gateway.api.validate import time_ms
from gateway.context import Gateway
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from push.operations.checks import field as invalid_field

SEQ_MAX: Final = (1 << 63) - 1
STATES: Final = get_args(MessageState)
FILTERS: Final = (
    "state",
    "partition",
    "id",
    "key",
    "contains",
    "since",
    "until",
    "from_seq",
    "limit",
    "cursor",
)
HEADER: Final = "header."
"""`header.NAME=value`: the message has this header, with just this value."""


async def peek(gateway: Gateway, call: Call) -> Answer:
    queue, with_bodies = _visible(gateway, call)
    query = call.query(*FILTERS, prefix=HEADER)
    wanted = _filter(query)
    if wanted.contains is not None and not with_bodies:
        # By asking what a body contains, a caller can find out all of it.
        raise Forbidden(f"`contains` searches bodies and needs the scope consume:{queue.name}")
    page = await queue.peek(wanted)
    items = [_shown(item.message, item.state, with_bodies) for item in page.items]
    if wanted.id is not None:
        for item in items:
            if item["state"] == "in_flight":
                item["lease"] = held(gateway, call.principal, queue, item["partition"], item["seq"])
    kept = {name: value for name, value in query.items() if name not in ("limit", "cursor")}
    links = link_to_next(f"/v1/queues/{queue.name}/messages", wanted.limit, page.next, **kept)
    return json_answer({"items": items, "next": page.next, "scanned": page.scanned}, headers=links)


def _visible(gateway: Gateway, call: Call) -> tuple[Queue, bool]:
    """The queue, and whether the caller may see bodies, which needs the scope consume."""
    name, access = call.params[0], call.principal.access
    queue = gateway.store.queue(call.principal.tenant, name)
    with_bodies = access.may("consume", name)
    if not with_bodies and not access.may("view", name):
        raise Forbidden(f"the key {call.principal.name!r} needs the scope view:{name} or consume:{name}")
    return queue, with_bodies


def _filter(query: dict[str, str]) -> PeekFilter:
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    return PeekFilter(
        state=_state(query.get("state", "ready")),
        limit=limit,
        cursor=_cursor(query.get("cursor")),
        partition=integer(query, "partition", None, low=0, high=(1 << 16) - 1),
        from_seq=integer(query, "from_seq", None, low=0, high=SEQ_MAX),
        id=query.get("id"),
        key=query.get("key"),
        headers={name.removeprefix(HEADER): value for name, value in query.items() if name.startswith(HEADER)},
        contains=query.get("contains"),
        since_ms=_time(query, "since"),
        until_ms=_time(query, "until"),
    )


def _cursor(text: str | None) -> str | None:
    if text is not None:
        check_cursor(text)
    return text


def _time(query: dict[str, str], name: str) -> int | None:
    return time_ms(query[name], pointer=f"/query/{name}") if name in query else None


def _state(wanted: str) -> str:
    if wanted not in STATES:
        raise invalid_field("/query/state", f"state must be one of {', '.join(STATES)}, not {wanted[:50]!r}")
    return wanted


def _shown(message: dict[str, Any], state: str, with_body: bool) -> dict[str, Any]:
    if not with_body:
        message = {name: value for name, value in message.items() if name not in ("body", "body_base64")}
    return {**message, "state": state}
