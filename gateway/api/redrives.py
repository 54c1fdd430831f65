"""Redrives: moving dead letters back, as a job with an address of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from backend_store.client import Chunk, Queue, Redrive, headers_of, message_id_of
from backend_store.model import Forbidden, NotFound, QueueNotFound
from gateway.api.shapes import JobView, RedriveBody, RedriveFilter, RedriveTotalView
from gateway.context import Gateway
from gateway.http import Answer, Call, json_answer
from gateway.validate import time_ms
from push.checks import field as invalid_field

RATE_MAX: Final = 100_000.0
IDS_MAX: Final = 10_000
REASONS: Final = ("max_attempts", "expired", "overflow", "undeliverable", "queue_deleted")

Wanted = Callable[[Chunk, int, dict[str, Any]], bool]


def view(job: Redrive) -> JobView:
    return JobView(
        id=job.id, state=job.state, done=job.done, total=job.total, rate_per_s=job.rate_per_s, error=job.error
    )


async def start(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "manage")
    given: RedriveBody = await call.fields(RedriveBody)
    _check(given)
    if given.to is not None:
        _target(gateway, call, queue, given.to)
    elif queue.is_companion:
        _target(gateway, call, queue, queue.owner)
    wanted = matcher(given.filter or RedriveFilter())
    if given.dry_run:
        return json_answer(RedriveTotalView(total=await queue.count_redrive(wanted, given.to)))

    def find(name: str) -> Queue | None:
        """The queue a message goes to, if it exists and the caller may publish there."""
        try:
            target = gateway.store.queue(call.principal.tenant, name)
        except QueueNotFound:
            return None
        return target if call.principal.access.may("publish", name) and not target.is_companion else None

    job = await queue.redrive(secrets.token_hex(8), wanted, given.to, given.rate_per_s, find)
    location = f"/v1/queues/{queue.name}/redrives/{job.id}".encode()
    return json_answer(view(job), 202, ((b"location", location),))


def _check(given: RedriveBody) -> None:
    if given.rate_per_s is not None and not 0 < given.rate_per_s <= RATE_MAX:
        raise invalid_field("/rate_per_s", f"rate_per_s is {given.rate_per_s}; it goes to {RATE_MAX:.0f} from above 0")
    wanted = given.filter
    if wanted is None:
        return
    if wanted.reason is not None and wanted.reason not in REASONS:
        raise invalid_field("/filter/reason", f"reason is {wanted.reason[:50]!r}; it is one of {', '.join(REASONS)}")
    if wanted.ids is not None and len(wanted.ids) > IDS_MAX:
        raise invalid_field("/filter/ids", f"{len(wanted.ids)} ids; a filter takes {IDS_MAX}")


def _target(gateway: Gateway, call: Call, queue: Queue, name: str) -> None:
    try:
        target = gateway.store.queue(call.principal.tenant, name)
    except QueueNotFound:
        raise invalid_field("/to", f"there is no queue {name!r} to move messages to") from None
    if not call.principal.access.may("publish", name):
        raise Forbidden(f"the key {call.principal.name!r} has no scope publish:{name}, where the messages go")
    if target is queue or target.is_companion:
        raise invalid_field("/to", f"messages of {queue.name!r} cannot go to {name!r}; name another queue")


def matcher(given: RedriveFilter) -> Wanted:
    """Whether a dead letter is among those asked for."""
    ids = set(given.ids) if given.ids is not None else None
    before_ms = time_ms(given.older_than, pointer="/filter/older_than") if given.older_than is not None else None

    def wanted(chunk: Chunk, index: int, end: dict[str, Any]) -> bool:
        if given.reason is not None and end.get("reason") != given.reason:
            return False
        if before_ms is not None and int(end.get("at", 0)) >= before_ms:
            return False
        if ids is not None and message_id_of(chunk, index) not in ids:
            return False
        if given.header:
            headers = headers_of(chunk, index)
            return all(headers.get(name) == value for name, value in given.header.items())
        return True

    return wanted


async def get(gateway: Gateway, call: Call) -> Answer:
    return json_answer(view(_find(gateway, call)))


async def list_redrives(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "manage")
    call.query()
    return json_answer({"items": [view(job) for job in queue.redrives.values()], "next": None})


async def cancel(gateway: Gateway, call: Call) -> Answer:
    """What was moved stays moved."""
    job = _find(gateway, call)
    job.cancel()
    return json_answer(view(job))


def _find(gateway: Gateway, call: Call) -> Redrive:
    name, redrive_id = call.params
    queue = gateway.desk.queue(call.principal, name, "manage")
    found = queue.redrives.get(redrive_id)
    if found is None:
        raise NotFound(f"queue {queue.name!r} has no redrive {redrive_id[:100]!r}, or it is long over")
    call.query()
    return found
