"""HTTP handlers for purges: jobs that drop all messages of a queue."""

from __future__ import annotations

import secrets

from backend_store.client import Purge
from backend_store.model import Conflict, NotFound
from gateway.api.http import Answer, Call, json_answer
from gateway.api.shapes.bodies import JobView, PurgeBody
from gateway.context import Gateway
from push.operations.checks import field as invalid_field


def view(purge: Purge) -> JobView:
    return JobView(id=purge.id, state=purge.state, done=purge.total, total=purge.total)


async def start(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "manage")
    wanted: PurgeBody = await call.fields(PurgeBody)
    if wanted.confirm != queue.name:
        raise invalid_field("/confirm", f"to purge queue {queue.name!r}, set `confirm` to its name")
    purge = await queue.purge(secrets.token_hex(8))
    location = f"/v1/queues/{queue.name}/purges/{purge.id}".encode()
    return json_answer(view(purge), 202, ((b"location", location),))


async def get(gateway: Gateway, call: Call) -> Answer:
    return json_answer(view(_find(gateway, call)))


async def cancel(gateway: Gateway, call: Call) -> Answer:
    purge = _find(gateway, call)
    raise Conflict(f"purge {purge.id} is {purge.state}: its messages are gone")


def _find(gateway: Gateway, call: Call) -> Purge:
    name, purge_id = call.params
    queue = gateway.desk.queue(call.principal, name, "manage")
    found = queue.purges.get(purge_id)
    if found is None:
        raise NotFound(f"queue {queue.name!r} has no purge {purge_id[:100]!r}, or it has expired")
    call.query()
    return found
