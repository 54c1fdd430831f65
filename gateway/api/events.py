"""HTTP handler for server-sent events: delivers a queue's messages as an event stream that any browser can read."""

from __future__ import annotations

from typing import Final

from sse_starlette.sse import EventSourceResponse

from backend_store.model import VISIBILITY_MS_MAX
from gateway.api.http import Answer, Call, integer
from gateway.context import Gateway
from push.delivery.start_position import group_queue, parse_query
from push.limits import CREDIT_MAX
from push.operations.checks import field as invalid_field
from push.transports import sse

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"


async def events(gateway: Gateway, call: Call) -> Answer | EventSourceResponse:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    query = call.query("credit", "ack", "group", "from", "ticket", "last_event_id", "attempts", "visibility_timeout_ms")
    ack = query.get("ack", "manual")
    if ack not in ("manual", "auto"):
        raise invalid_field("/query/ack", f"ack must be manual or auto, not {ack[:50]!r}")
    attempts = query.get("attempts", "delivered")
    if attempts not in ("delivered", "begun"):
        raise invalid_field("/query/attempts", f"attempts must be delivered or begun, not {attempts[:50]!r}")
    if call.scope["method"] == "HEAD":
        return Answer(200, content_type=EVENT_STREAM)  # a stream that is not read must not lease messages
    credit = integer(query, "credit", None, low=1, high=CREDIT_MAX)
    visibility_ms = integer(query, "visibility_timeout_ms", None, low=0, high=VISIBILITY_MS_MAX)
    start = parse_query(query.get("from"))
    if "group" in query:
        queue, start = await group_queue(queue, query["group"], start), None
    return sse.response(
        gateway.hub,
        call.principal,
        queue,
        remote=call.address,
        credit=credit,
        ack=ack,
        tells_begun=attempts == "begun",
        visibility_ms=visibility_ms,
        from_=start,
        last_event_id=call.header(b"last-event-id") or query.get("last_event_id"),
    )
