"""Consumer groups of streams, as gateways ask for them: list, make, move, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.groups import (
    GroupInfo,
    GroupQueue,
    delete_group,
    find_group,
    groups_of,
    info_of,
    open_group,
    put_group,
)
from backend_store.client.queue import EmbeddedQueue
from backend_store.client.streams import Gap
from backend_store.model import PushqError
from backend_store.node.group import Mode
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.service.handing import counter_of
from backend_store.service.limits import GROUPS_PER_ASK_MAX


class Opened(NamedTuple):
    """A group for consumers, who are to be told of the gaps."""

    mode: Mode
    gaps: list[Gap]


class OpenGroup(AtPlace, frozen=True):
    """See `client.groups.open_group`."""

    name: str
    wanted: Any


class PutGroup(AtPlace, frozen=True):
    """See `client.groups.put_group`."""

    name: str
    wanted: Any
    mode: Mode | None


class DeleteGroup(AtPlace, frozen=True):
    name: str


class ListGroups(AtPlace, frozen=True):
    """By name, those behind `after`, `GROUPS_PER_ASK_MAX` at most."""

    after: str


class FindGroup(AtPlace, frozen=True):
    name: str


async def opened(store: EmbeddedStore, asked: OpenGroup) -> Opened:
    stream = queue_at(store, asked.place)
    group: GroupQueue = await _decided(partial(open_group, stream, asked.name, asked.wanted))
    return Opened(group.mode, group.take_gaps())


async def put(store: EmbeddedStore, asked: PutGroup) -> GroupInfo:
    stream = queue_at(store, asked.place)
    found: GroupInfo = await _decided(partial(put_group, stream, asked.name, asked.wanted, asked.mode))
    return found


async def delete(store: EmbeddedStore, asked: DeleteGroup) -> None:
    used: list[EmbeddedQueue] = await _decided(partial(delete_group, queue_at(store, asked.place), asked.name))
    for group in used:
        counter_of(group).close()


async def some(store: EmbeddedStore, asked: ListGroups) -> list[GroupInfo]:
    stream = queue_at(store, asked.place)
    later = [group for group in groups_of(stream).all() if group.name > asked.after]
    return [info_of(stream, group) for group in later[:GROUPS_PER_ASK_MAX]]


async def find(store: EmbeddedStore, asked: FindGroup) -> GroupInfo | None:
    return find_group(queue_at(store, asked.place), asked.name)


async def _decided(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """What a command came to, once that is durable. Raises what kept it from that."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def decided(result: Any) -> None:
        if not done.done():  # or its gateway is gone
            done.set_result(result)

    ask(decided)
    result = await done
    if isinstance(result, PushqError):
        raise result
    return result


HANDLERS: dict[type[Asked], Any] = {
    OpenGroup: opened,
    PutGroup: put,
    DeleteGroup: delete,
    ListGroups: some,
    FindGroup: find,
}
