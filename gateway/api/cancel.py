"""HTTP handler to cancel one message by its id, as long as no consumer has a lease on it."""

from __future__ import annotations

from backend_store.client import Queue
from backend_store.model import Conflict, Forbidden, NotFound
from gateway.api.http import Answer, Call
from gateway.context import Gateway


async def cancel(gateway: Gateway, call: Call) -> Answer:
    queue = _cancellable(gateway, call)
    message_id = call.params[1]
    call.query()
    outcome = await queue.cancel(message_id)
    if outcome == "in_flight":
        raise Conflict(f"message {message_id[:100]!r} of queue {queue.name!r} is in flight and cannot be cancelled")
    if outcome == "unknown":
        raise NotFound(f"queue {queue.name!r} has no ready or scheduled message {message_id[:100]!r}")
    return Answer(204, content_type=None)


def _cancellable(gateway: Gateway, call: Call) -> Queue:
    name, access = call.params[0], call.principal.access
    queue = gateway.store.queue(call.principal.tenant, name)
    if not access.may("publish", name) and not access.may("manage", name):
        raise Forbidden(f"the key {call.principal.name!r} needs the scope publish:{name} or manage:{name}")
    return queue
