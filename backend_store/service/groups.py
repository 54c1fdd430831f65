"""Handles gateways' requests about the consumer groups of streams: list, make, move, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.groups import (
    GroupInfo,
    GroupLag,
    GroupQueue,
    add_gaps,
    carry_group,
    delete_group,
    find_group,
    groups_of,
    info_of,
    lag_of,
    open_group,
    put_group,
)
from backend_store.client.queue import EmbeddedQueue
from backend_store.client.streams import Gap
from backend_store.model import PushqError, Unavailable
from backend_store.node.publishing.moved_away import RETRY_MS
from backend_store.node.views.group import Mode
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.service.handing import counter_of
from backend_store.service.limits import GROUPS_PER_ASK_MAX


class Opened(NamedTuple):
    """A group opened for consumers, with the gaps to report to them."""

    mode: Mode
    gaps: list[Gap]


class OpenGroup(AtPlace, frozen=True):
    """See `client.groups.open_group`. `version`: see `_check_heard`."""

    name: str
    wanted: Any
    version: int = 0


class PutGroup(AtPlace, frozen=True):
    """See `client.groups.put_group`."""

    name: str
    wanted: Any
    mode: Mode | None
    version: int = 0


class DeleteGroup(AtPlace, frozen=True):
    name: str
    version: int = 0


class CarryGroup(AtPlace, frozen=True):
    """To a place to which a stream has moved: copy a group there; see `client.groups.carry_group`."""

    name: str
    mode: Mode
    version: int


class AddGaps(AtPlace, frozen=True):
    """To a place to which a stream has moved: see `client.groups.add_gaps`."""

    name: str
    gaps: list[Gap]
    version: int


class LookAtGroup(AtPlace, frozen=True):
    """Asks one of a stream's places about a group; answered by `Seen`."""

    name: str


class Seen(NamedTuple):
    """A group in one place. `mode` None: the group is not there; `lag` is what it would have if it came."""

    mode: Mode | None
    lag: list[GroupLag]


class ListGroups(AtPlace, frozen=True):
    """Lists groups by name, those after `after`, at most `GROUPS_PER_ASK_MAX`."""

    after: str


class FindGroup(AtPlace, frozen=True):
    name: str


async def opened(store: EmbeddedStore, asked: OpenGroup) -> Opened:
    stream = queue_at(store, asked.place)
    if find_group(stream, asked.name) is None:
        _check_heard(stream, asked.version)
    group: GroupQueue = await _decided(partial(open_group, stream, asked.name, asked.wanted))
    return Opened(group.mode, group.take_gaps())


async def put(store: EmbeddedStore, asked: PutGroup) -> GroupInfo:
    stream = queue_at(store, asked.place)
    _check_heard(stream, asked.version)
    found: GroupInfo = await _decided(partial(put_group, stream, asked.name, asked.wanted, asked.mode))
    return found


async def delete(store: EmbeddedStore, asked: DeleteGroup) -> None:
    stream = queue_at(store, asked.place)
    _check_heard(stream, asked.version)
    used: list[EmbeddedQueue] = await _decided(partial(delete_group, stream, asked.name))
    for group in used:
        counter_of(group).close()


async def carry(store: EmbeddedStore, asked: CarryGroup) -> None:
    stream = queue_at(store, asked.place)
    _check_heard(stream, asked.version)
    await _decided(partial(carry_group, stream, asked.name, asked.mode))


async def missed(store: EmbeddedStore, asked: AddGaps) -> None:
    stream = queue_at(store, asked.place)
    _check_heard(stream, asked.version)
    await _decided(partial(add_gaps, stream, asked.name, asked.gaps))


async def look(store: EmbeddedStore, asked: LookAtGroup) -> Seen:
    stream = queue_at(store, asked.place)
    group = groups_of(stream).find(asked.name)
    return Seen(group.mode if group is not None else None, lag_of(stream, asked.name))


def _check_heard(stream: EmbeddedQueue, version: int) -> None:
    """Raises `Unavailable` if the stream is leaving, or the gateway does not know all of its places, each of which has
    the groups that are to change. `version`: of the definition that the gateway has."""
    own = stream.definition
    if own.moving_to is not None and own.takes_none:
        detail = f"stream {own.name!r} is moving to another cluster, so its groups cannot be changed"
        raise Unavailable(detail, retry_after_ms=RETRY_MS)
    if version < own.version and (own.former or own.takes_none):
        detail = f"stream {own.name!r} has moved to another cluster, which this gateway does not know yet; retry"
        raise Unavailable(detail, retry_after_ms=RETRY_MS)


async def some(store: EmbeddedStore, asked: ListGroups) -> list[GroupInfo]:
    stream = queue_at(store, asked.place)
    later = [group for group in groups_of(stream).all() if group.name > asked.after]
    return [info_of(stream, group) for group in later[:GROUPS_PER_ASK_MAX]]


async def find(store: EmbeddedStore, asked: FindGroup) -> GroupInfo | None:
    return find_group(queue_at(store, asked.place), asked.name)


async def _decided(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """Returns a command's result once that is durable. Raises the command's `PushqError`."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def decided(result: Any) -> None:
        if not done.done():  # cancelled if the gateway is gone
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
    CarryGroup: carry,
    AddGaps: missed,
    LookAtGroup: look,
    ListGroups: some,
    FindGroup: find,
}
