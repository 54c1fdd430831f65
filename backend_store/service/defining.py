"""Definitions of queues: requests to the shard that has the definitions, and what the other shards are told.

A shard of a further cluster accepts only what one home cluster defines: it must not lose queues to a gateway that was
configured with it by mistake, and a gateway that takes such a cluster for its home must not lose any either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from backend_store.client.embedded import EmbeddedStore, companion_view
from backend_store.core.host_lanes.single_lane import check_has_lanes
from backend_store.metadata.elsewhere import HERE, ClusterSize
from backend_store.metadata.embedded import Metadata
from backend_store.metadata.relocation import Spot, lies_in, places_of
from backend_store.model import Conflict, PushqError, QueueConfig, QueueDefinition, QueueNotFound
from backend_store.service.asked import Asked, OfTenant
from backend_store.service.left_behind import drop_left
from backend_store.service.limits import DROPPED_KNOWN_MAX


class CreateQueue(OfTenant, frozen=True):
    """`cluster`: the further cluster that the gateway chose, with its number of shards or lanes; "" for the home
    cluster."""

    name: str
    config: QueueConfig
    cluster: str = ""
    shards: int = 1
    lanes: int = 0
    among: tuple[int, ...] = ()
    """The shards to choose from; (): any."""
    is_asked: bool = False
    """Refuses the queue where a queue that it names, and must be placed with, is in none of `among`."""
    single_lane: bool = False
    """The queue takes one lane alone, whatever its config says."""

    @property
    def size(self) -> ClusterSize:
        return ClusterSize(self.cluster, self.shards, self.lanes, self.among)


class UpdateQueue(OfTenant, frozen=True):
    """`lanes`: of a queue that is in a further cluster, moves there or was there: the number of that cluster's lanes;
    the highest of several."""

    name: str
    config: QueueConfig
    version: int
    lanes: int = 0


class DeleteQueue(OfTenant, frozen=True):
    name: str


class MoveQueue(OfTenant, frozen=True):
    name: str
    target: str


class AdoptQueues(Asked, frozen=True):
    """To a shard: queues that it stores from now on, as the shard of the definitions has them."""

    definitions: list[QueueDefinition]
    definer: str = ""
    """To a shard of a further cluster: the identity of the metadata that define its queues. It accepts no other."""


class DropQueues(Asked, frozen=True):
    """To a shard: queues that were deleted at the shard of the definitions."""

    uids: list[int]
    definer: str = ""
    """As in `AdoptQueues`."""
    moved: tuple[tuple[int, int], ...] = ()
    """Queues that moved away, as uid and the version of the definition that says so. A queue is deleted where nothing
    of it is left, and no definition up to that version brings it back."""


class NameCluster(Asked, frozen=True):
    """To the shard of the definitions: names the further cluster whose first shard has metadata of that identity.
    `is_only_asked`: only checks that the cluster has this name or could get it."""

    name: str
    identity: str
    is_only_asked: bool = False


class GoneQueues(Asked, frozen=True):
    """To the shard of the definitions: which of these are not defined any more. A request without uids is a barrier:
    its answer comes after all news. `spot`: which of them are not at that place, because they are not defined or have
    moved away."""

    uids: list[int]
    spot: Spot | None = None


async def _create(store: EmbeddedStore, asked: CreateQueue) -> tuple[QueueDefinition, bool]:
    metadata = store.node.metadata
    _check_defines(metadata)
    return await metadata.create_queue(
        asked.tenant,
        asked.name,
        asked.config,
        store.node.clock_ms(),
        asked.size,
        is_asked=asked.is_asked,
        single_lane=asked.single_lane,
    )


def _check_defines(metadata: Metadata) -> None:
    """Raises `Conflict` in a shard whose queues are defined by another cluster."""
    if metadata.adopted_from is not None:
        raise Conflict(
            "the queues of this cluster are defined by another one: set store.backends to that one's backends, and "
            "list these in store.clusters"
        )


async def _update(store: EmbeddedStore, asked: UpdateQueue) -> QueueDefinition | None:
    metadata = store.node.metadata
    _check_defines(metadata)
    if (known := metadata.defined(asked.tenant, asked.name)) is not None:
        is_laned_here = metadata.lane is not None and any(place.cluster == HERE.cluster for place in places_of(known))
        if (asked.lanes or is_laned_here) and not known.single_lane:
            check_has_lanes(asked.name, asked.config)
    if (asked.tenant, asked.name) in metadata.elsewhere.by_name:
        updated = await metadata.update_queue(asked.tenant, asked.name, asked.config, asked.version, lanes=asked.lanes)
        if updated is not None and (own := metadata.queues.get((asked.tenant, asked.name))) is not None:
            store.configured(own)
        return updated
    changed = await store.update_queue(asked.tenant, asked.name, asked.config, asked.version)
    return changed.definition if changed is not None else None


async def _delete(store: EmbeddedStore, asked: DeleteQueue) -> None:
    metadata = store.node.metadata
    _check_defines(metadata)
    name = asked.tenant, asked.name
    if name not in metadata.queues and name not in metadata.elsewhere.by_name:
        raise QueueNotFound(f"there is no queue {asked.name!r}")
    while name in metadata.queues or name in metadata.elsewhere.by_name:
        with contextlib.suppress(QueueNotFound):  # it arrived in another place while this call waited
            if name in metadata.queues:
                await store.delete_queue(*name)  # one commit, also for other places: never half deleted
            else:
                await metadata.delete_elsewhere(*name)


async def _move(store: EmbeddedStore, asked: MoveQueue) -> None:
    await store.move_queue(asked.tenant, asked.name, asked.target)


async def _adopt(store: EmbeddedStore, asked: AdoptQueues) -> None:
    if asked.definer:
        await store.node.metadata.adopt_from(asked.definer)
    refused: PushqError | None = None
    for definition in asked.definitions:
        try:
            await _adopt_one(store, definition)
        except PushqError as error:  # for a queue that cannot be here yet; the others go on
            refused = error
    if refused is not None:
        raise refused


async def _adopt_one(store: EmbeddedStore, definition: QueueDefinition) -> None:
    metadata, name = store.node.metadata, (definition.tenant, definition.name)
    while (known := metadata.queues.get(name)) is not None and known.uid < definition.uid:
        with contextlib.suppress(QueueNotFound):  # another gateway was faster
            await store.delete_queue(*name)
    is_old = known is not None and known.uid > definition.uid
    is_dropped = definition.uid in metadata.moved or definition.version <= store.dropped.get(definition.uid, 0)
    if is_old or is_dropped or companion_view(definition.name) is not None:  # a companion is at the place of its queue
        return
    if known is not None and known.uid == definition.uid and known.floor < definition.floor:
        with contextlib.suppress(QueueNotFound):
            await drop_left(store, known)  # it came back before that was done
    if await metadata.adopt(definition) and known is not None:
        store.configured(definition)


async def _name(store: EmbeddedStore, asked: NameCluster) -> None:
    metadata = store.node.metadata
    _check_defines(metadata)
    await metadata.name_cluster(asked.name, asked.identity, is_only_asked=asked.is_only_asked)


async def _drop(store: EmbeddedStore, asked: DropQueues) -> None:
    if asked.definer:
        await store.node.metadata.adopt_from(asked.definer)
    store.dropped.update(dict.fromkeys(asked.uids, DELETED))
    store.dropped.update(asked.moved)
    while len(store.dropped) > DROPPED_KNOWN_MAX:
        del store.dropped[next(iter(store.dropped))]
    queues = store.node.metadata.queues
    for uid in asked.uids:
        if (own := queues.of(uid)) is not None:
            with contextlib.suppress(QueueNotFound):
                await store.delete_queue(own.tenant, own.name)
    refused: PushqError | None = None
    for uid, version in asked.moved:
        own = queues.of(uid)
        if own is not None and own.takes_none and own.version <= version:  # else it has come back
            try:
                await drop_left(store, own)
            except QueueNotFound:
                pass  # another gateway was faster
            except PushqError as error:  # of one that has something left; the others go on
                refused = error
    if refused is not None:
        raise refused


async def _gone(store: EmbeddedStore, asked: GoneQueues) -> list[int]:
    if not asked.uids:
        return []
    metadata = store.node.metadata
    _check_defines(metadata)

    def is_there(uid: int) -> bool:
        found = metadata.elsewhere.by_name.of(uid) or metadata.queues.of(uid)
        known = metadata.defined(found.tenant, found.name) if found is not None else None
        return known is not None and known.uid == uid and (asked.spot is None or lies_in(known, asked.spot))

    return [uid for uid in asked.uids if not is_there(uid)]


DELETED: Final = 1 << 62
"""As the version up to which no definition brings a queue back: no definition does."""

HANDLERS: Final[dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]]] = {
    CreateQueue: _create,
    UpdateQueue: _update,
    DeleteQueue: _delete,
    MoveQueue: _move,
    AdoptQueues: _adopt,
    DropQueues: _drop,
    GoneQueues: _gone,
    NameCluster: _name,
}
