"""HTTP handlers for consumer groups of a stream: list, create, move, delete."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from backend_store.client import GroupInfo, Queue, delete_group, find_group, list_groups, put_group
from backend_store.model import NotFound, PushqError
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.bodies import GroupBody, GroupLagView, GroupPage, GroupView
from gateway.context import Gateway
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from push.delivery.start_position import checked_position, resolved
from push.operations.checks import check_has_groups, checked_group
from push.operations.checks import field as invalid_field

MODES: Final = ("offsets", "leases")


def view(group: GroupInfo) -> GroupView:
    lags = [GroupLagView(part.partition, part.position, part.end, part.lag) for part in group.lag]
    return GroupView(group.name, group.mode, {"seq": group.position}, lags)


async def list_of_queue(gateway: Gateway, call: Call) -> Answer:
    """A page of groups by name. A work queue has none: its consumers are its one group."""
    queue = gateway.desk.queue(call.principal, call.params[0], "view")
    query = call.query("limit", "cursor")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    after = decode_cursor(query.get("cursor"))
    found = [group for group in list_groups(queue) if group.name > after]
    following = encode_cursor(found[limit - 1].name) if len(found) > limit else None
    page = GroupPage([view(group) for group in found[:limit]], following)
    return json_answer(page, headers=link_to_next(f"/v1/queues/{queue.name}/groups", limit, following))


async def get(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "view")
    call.query()
    return json_answer(view(_found(queue, call.params[1])))


async def put(gateway: Gateway, call: Call) -> Answer:
    """Creates a group, or moves it: its consumers lose their leases, and continue from the new position."""
    queue, name = gateway.desk.queue(call.principal, call.params[0], "manage"), call.params[1]
    wanted: GroupBody = await call.fields(GroupBody)
    checked_group(name, pointer="/name")
    check_has_groups(queue, pointer="/queue")
    if wanted.mode not in (None, *MODES):
        raise invalid_field("/mode", f"mode must be one of {', '.join(MODES)}, not {wanted.mode[:50]!r}")
    position = checked_position(wanted.position)
    is_new = find_group(queue, name) is None
    mode: Any = wanted.mode
    group = await _decided(partial(put_group, queue, name, position, mode))
    return json_answer(view(group), 201 if is_new else 200)


async def delete(gateway: Gateway, call: Call) -> Answer:
    queue, name = gateway.desk.queue(call.principal, call.params[0], "manage"), call.params[1]
    call.query()
    _found(queue, name)
    for used in await _decided(partial(delete_group, queue, name)):
        gateway.hub.queue_deleted(used)
    return Answer(204, content_type=None)


def _found(queue: Queue, name: str) -> GroupInfo:
    found = find_group(queue, name)
    if found is None:
        raise NotFound(f"queue {queue.name!r} has no group {name[:200]!r}")
    return found


async def _decided(ask: Any) -> Any:
    """The result of a group's command, once it is durable. Raises the error that refuses it."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(partial(resolved, done))
    result = await done
    if isinstance(result, PushqError):
        raise result
    return result
