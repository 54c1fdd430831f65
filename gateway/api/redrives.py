"""HTTP handlers for redrives: jobs that move dead letters back to queues."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable

from backend_store.client import LetterFilter, Queue, Redrive
from backend_store.model import Forbidden, InvalidRequest, NotFound, PushqError, QueueNotFound
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import link_to_next
from gateway.api.shapes.bodies import REASONS, JobPage, JobView, RedriveBody, RedriveFilter, RedriveTotalView
from gateway.api.validate import time_ms
from gateway.context import Gateway
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, REDRIVE_IDS_MAX, REDRIVE_PER_SECOND_MAX
from push.operations.checks import field as invalid_field


def view(job: Redrive) -> JobView:
    return JobView(
        id=job.id, state=job.state, done=job.done, total=job.total, rate_per_s=job.rate_per_s, error=job.error
    )


async def start(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "manage")
    given: RedriveBody = await call.fields(RedriveBody)
    _check(given)
    find = _finder(gateway, call)
    if given.to is not None:
        _check_target(find, queue, given.to)
    wanted = matcher(given.filter or RedriveFilter())
    letters = queue.dead_letters(wanted, given.to, own=given.to != queue.name)
    counts = await queue.count_letters(letters)
    _check_origins(find, counts)
    total = counts.total()
    if not total and queue.config.kind == "stream" and not queue.is_companion and _is_named(gateway, queue):
        raise InvalidRequest(
            f"{queue.name!r} is a stream, so dead letters in it cannot be moved out; read them and publish them to "
            "their target"
        )
    if given.dry_run:
        return json_answer(RedriveTotalView(total=total))
    job = await queue.begin_redrive(secrets.token_hex(8), letters, total=total, rate_per_s=given.rate_per_s, find=find)
    gateway.begun.add(call.principal, job)
    location = f"/v1/queues/{queue.name}/redrives/{job.id}".encode()
    return json_answer(view(job), 202, ((b"location", location),))


def _check(given: RedriveBody) -> None:
    if given.rate_per_s is not None and not 0 < given.rate_per_s <= REDRIVE_PER_SECOND_MAX:
        detail = f"rate_per_s must be above 0 and at most {REDRIVE_PER_SECOND_MAX}, not {given.rate_per_s}"
        raise invalid_field("/rate_per_s", detail)
    wanted = given.filter
    if wanted is None:
        return
    if wanted.reason is not None and wanted.reason not in REASONS:
        raise invalid_field("/filter/reason", f"reason must be one of {', '.join(REASONS)}, not {wanted.reason[:50]!r}")
    if wanted.ids is not None and len(wanted.ids) > REDRIVE_IDS_MAX:
        raise invalid_field("/filter/ids", f"ids must have at most {REDRIVE_IDS_MAX} entries, not {len(wanted.ids)}")


def _is_named(gateway: Gateway, queue: Queue) -> bool:
    """Whether this queue is the dead-letter queue of others."""
    return any(
        definition.config.dead_letter_queue == queue.name
        for definition in gateway.store.metadata.of_tenant(queue.tenant)
    )


# ----------------------------------------------------------------------------------------------------- targets

Find = Callable[[str], Queue]


def _finder(gateway: Gateway, call: Call) -> Find:
    tenant, principal = call.principal.tenant, call.principal

    def find(name: str) -> Queue:
        """The queue that messages go to. Raises `QueueNotFound`, `Forbidden` if the caller may not publish there."""
        target = gateway.store.queue(tenant, name)
        if not principal.access.may("publish", name):
            raise Forbidden(f"the key {principal.name!r} lacks the scope publish:{name} for the target")
        if target.is_companion:
            raise QueueNotFound(f"{name!r} receives its messages automatically; they cannot be moved there")
        return target

    return find


def _check_target(find: Find, queue: Queue, name: str) -> None:
    try:
        find(name)
    except QueueNotFound as error:
        raise invalid_field("/to", f"messages of {queue.name!r} cannot be moved there: {error.detail}") from None


def _check_origins(find: Find, counts: Counter[str]) -> None:
    """Raises if no message could be moved: their queues are gone, or the caller may not publish to them.

    If some can be moved, they are, and the job reports why the others stay.
    """
    refusals: list[PushqError] = []
    for name in counts:
        try:
            find(name)
        except Forbidden as error:
            refusals.append(error)
        except QueueNotFound as error:
            refusals.append(
                invalid_field("/to", f"{error.detail}, where messages came from; set another target with `to`")
            )
    if counts and len(refusals) == len(counts):
        raise refusals[0]


# ------------------------------------------------------------------------------------------------------ filter


def matcher(given: RedriveFilter) -> LetterFilter:
    """The filter of dead letters that a request asks for. Raises `InvalidRequest`."""
    ids = frozenset(given.ids) if given.ids is not None else None
    before_ms = time_ms(given.older_than, pointer="/filter/older_than") if given.older_than is not None else None
    return LetterFilter(given.reason, ids, before_ms, given.header or {})


# -------------------------------------------------------------------------------------------------------- jobs


async def get(gateway: Gateway, call: Call) -> Answer:
    queue, redrive_id = _named(gateway, call)
    return json_answer(view(_known(await queue.redrives.find(redrive_id), queue, redrive_id)))


async def list_redrives(gateway: Gateway, call: Call) -> Answer:
    """The redrives that are still known, the oldest first."""
    queue = gateway.desk.queue(call.principal, call.params[0], "manage")
    query = call.query("limit", "cursor")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    start = integer(query, "cursor", 0, low=0, high=1 << 62) or 0
    jobs = await queue.redrives.list_since(start)
    following = str(jobs[limit][0]) if len(jobs) > limit else None
    page = JobPage([view(job) for _, job in jobs[:limit]], following)
    return json_answer(page, headers=link_to_next(f"/v1/queues/{queue.name}/redrives", limit, following))


async def cancel(gateway: Gateway, call: Call) -> Answer:
    """Cancels a redrive; what was moved stays moved. Does not look it up before: if a part of it is away, the other
    parts end."""
    queue, redrive_id = _named(gateway, call)
    return json_answer(view(_known(await queue.redrives.stop(redrive_id), queue, redrive_id)))


def _named(gateway: Gateway, call: Call) -> tuple[Queue, str]:
    name, redrive_id = call.params
    queue = gateway.desk.queue(call.principal, name, "manage")
    call.query()
    return queue, redrive_id


def _known(found: Redrive | None, queue: Queue, redrive_id: str) -> Redrive:
    if found is None:
        raise NotFound(f"queue {queue.name!r} has no redrive {redrive_id[:100]!r}, or it has expired")
    return found
