"""Handles gateways' requests for the steps of a queue's move to another cluster: see `metadata.relocation`.

The shard of the definitions changes the definition; the shards of the old and new place learn of that as of any change,
and report their progress on request. A gateway may crash between two steps: another gateway repeats the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.host_lanes.single_lane import check_has_lanes
from backend_store.core.partitions.slots import unpacked
from backend_store.metadata import relocation
from backend_store.metadata.elsewhere import ClusterSize
from backend_store.metadata.embedded import ChangedMeanwhile, Metadata
from backend_store.metadata.sharing import check_numbers, go_on, next_give, open_places, spread, why_waits
from backend_store.model import Conflict, InvalidRequest, QueueDefinition, QueueNotFound, Unavailable, Whereabouts
from backend_store.node.publishing.moved_away import RETRY_MS
from backend_store.service.asked import Asked
from backend_store.service.left_behind import Left, drop_left, left_of, left_of_slots

Handler = Callable[[EmbeddedStore, Any], Awaitable[Any]]


class BeginRelocation(Asked, frozen=True):
    """To the shard of the definitions. `cluster`: the target, with its number of shards or lanes; "" for the home
    cluster."""

    tenant: str
    name: str
    cluster: str
    shards: int = 1
    lanes: int = 0
    among: tuple[int, ...] = ()
    """Shards, or lanes, one of which takes the queue; (): any."""

    @property
    def size(self) -> ClusterSize:
        return ClusterSize(self.cluster, self.shards, self.lanes, self.among)


class SpreadQueue(Asked, frozen=True):
    """To the shard of the definitions: spread the queue evenly over exactly these clusters."""

    tenant: str
    name: str
    clusters: tuple[ClusterSize, ...]


class GoOnSpreading(Asked, frozen=True):
    """To the shard of the definitions: begin the next step of a spread, as the last one is done."""

    tenant: str
    name: str
    version: int


class GiveUpRelocation(Asked, frozen=True):
    tenant: str
    name: str


class Arrive(Asked, frozen=True):
    """To the shard of the definitions: the old place takes no more publishes of what moves, and has assigned no offset
    from `end` on. `version`: of the definition on which the old place said so."""

    tenant: str
    name: str
    version: int
    end: int


class NoteSettled(Asked, frozen=True):
    """To the shard of the definitions: a former place has no more messages to deliver."""

    tenant: str
    name: str
    version: int
    place: Whereabouts


class ForgetPlace(Asked, frozen=True):
    """To the shard of the definitions: a former place has nothing left of the queue."""

    tenant: str
    name: str
    version: int
    place: Whereabouts


class FindEnd(Asked, frozen=True):
    """To a shard of the old place, which takes no publishes of what moves since `version`: returns a number above every
    offset that it assigned."""

    tenant: str
    name: str
    uid: int
    version: int


class FindLeft(Asked, frozen=True):
    """To a shard of a former place: counts what is left there. `slots`: only of these, packed bits, if the place still
    has others; then dead letters and messages bound for other queues are not counted."""

    tenant: str
    name: str
    uid: int
    slots: bytes = b""


async def _begin(store: EmbeddedStore, asked: BeginRelocation) -> QueueDefinition:
    metadata = store.node.metadata
    _check_defines(store)
    known = _known(store, asked.tenant, asked.name)
    if known.beside or known.goal or _has_slots_to_settle(known):
        return await _spread(store, SpreadQueue(asked.tenant, asked.name, (asked.size,)))
    if known.moving_to is not None and known.moving_to.cluster == asked.cluster:
        return known
    if known.cluster == asked.cluster:
        if known.former:
            return known  # a repeated request: the queue has arrived meanwhile
        raise Conflict(f"queue {asked.name!r} is already there")
    to = _chosen(metadata, known, asked.size)
    relocation.check_movable(known, _others(store, known), to)
    check_numbers(known, is_alone=True)
    if (asked.lanes if asked.cluster else metadata.lane is not None) and not known.single_lane:
        check_has_lanes(asked.name, known.config)
    return await _relocate(store, known, relocation.begin(to, store.node.steady_ms()))


async def _spread(store: EmbeddedStore, asked: SpreadQueue) -> QueueDefinition:
    _check_defines(store)
    known, metadata = _known(store, asked.tenant, asked.name), store.node.metadata
    if known.config.kind == "stream":
        if len(asked.clusters) > 1:
            raise InvalidRequest(
                f"queue {asked.name!r} is a stream, which this version cannot split over clusters; it can move to "
                "another one"
            )
        return await _begin(store, BeginRelocation(asked.tenant, asked.name, *asked.clusters[0]))
    goal = tuple(_place_in(store, known, one) for one in asked.clusters)
    if set(goal) == set(known.goal):
        return known
    wanted = replace(known, goal=goal)
    if not known.is_on_its_way and goal == (known.place,):
        raise Conflict(f"queue {asked.name!r} is already there")
    if known.moving_to is not None:
        raise Conflict(f"queue {asked.name!r} is already moving to {known.moving_to}; wait for it, or cancel the move")
    if next_give(wanted) is None:
        return known if not known.goal else await _relocate(store, known, spread(goal, store.node.steady_ms()))
    relocation.check_able(known, _others(store, known))
    open_now = {one.place for one in open_places(known)}
    check_numbers(known, sum(place not in open_now for place in goal), is_alone=len(open_now) == len(goal) == 1)
    for place, size in zip(goal, asked.clusters, strict=True):
        relocation.check_free(known, place)
        if (size.lanes if size.cluster else metadata.lane is not None) and not known.single_lane:
            check_has_lanes(asked.name, known.config)
    return await _relocate(store, known, spread(goal, store.node.steady_ms()))


def _has_slots_to_settle(known: QueueDefinition) -> bool:
    """Whether, in strict order, a former place has older messages of some slots, which cannot move again before."""
    return why_waits(known) is not None and any(one.slots and not one.is_settled for one in known.former)


def _place_in(store: EmbeddedStore, known: QueueDefinition, size: ClusterSize) -> Whereabouts:
    """The queue's place in a cluster: where it lies, where its goal puts it, or a newly chosen place."""
    metadata = store.node.metadata
    there = next((one.place for one in open_places(known) if one.cluster == size.cluster), None)
    there = there or next((place for place in known.goal if place.cluster == size.cluster), None)
    if there is not None:
        return there
    return _chosen(metadata, known, size)


def _chosen(metadata: Metadata, known: QueueDefinition, size: ClusterSize) -> Whereabouts:
    return metadata.elsewhere.choose(
        known.name,
        (),
        size,
        here=len(metadata.queues),
        single_lane=known.single_lane,
        turn=known.uid,
    )


async def _go_on(store: EmbeddedStore, asked: GoOnSpreading) -> QueueDefinition:
    known = _known(store, asked.tenant, asked.name)
    return await _relocate(store, known, go_on(store.node.steady_ms()), version=asked.version)


async def _give_up(store: EmbeddedStore, asked: GiveUpRelocation) -> QueueDefinition:
    _check_defines(store)
    return await _relocate(store, _known(store, asked.tenant, asked.name), relocation.give_up)


async def _arrive(store: EmbeddedStore, asked: Arrive) -> QueueDefinition:
    known = _known(store, asked.tenant, asked.name)
    if known.moving_to is not None and store.node.metadata.is_here(known, known.moving_to):
        await _clear(store, known)
    return await _relocate(store, known, relocation.arrive(asked.end, store.node.steady_ms()), version=asked.version)


async def _settled(store: EmbeddedStore, asked: NoteSettled) -> QueueDefinition:
    known = _known(store, asked.tenant, asked.name)
    return await _relocate(store, known, relocation.settle(asked.place), version=asked.version)


async def _forget(store: EmbeddedStore, asked: ForgetPlace) -> QueueDefinition:
    known, metadata = _known(store, asked.tenant, asked.name), store.node.metadata
    is_open = any(metadata.is_here(known, one.place) for one in open_places(known))
    if known.version == asked.version and metadata.is_here(known, asked.place) and not is_open:
        await _clear(store, known)  # before the definition changes: a repeated request finds nothing here and goes on
    return await _relocate(store, known, relocation.forget(asked.place), version=asked.version)


async def _clear(store: EmbeddedStore, known: QueueDefinition) -> None:
    """Drops what this shard has of a queue that lies elsewhere. Raises `Conflict` if messages are left here."""
    own = store.node.metadata.queues.get((known.tenant, known.name))
    if own is not None and own.uid == known.uid and own.takes_none:
        await drop_left(store, own)


async def _relocate(
    store: EmbeddedStore, known: QueueDefinition, change: relocation.Change, *, version: int | None = None
) -> QueueDefinition:
    metadata = store.node.metadata
    changed = await metadata.relocate(known.tenant, known.name, version or known.version, change)
    if (own := metadata.queues.get((known.tenant, known.name))) is not None:
        store.configured(own)
    return changed


async def _end(store: EmbeddedStore, asked: FindEnd) -> int:
    own = _here(store, asked.tenant, asked.name, asked.uid)
    if own.version < asked.version or not (own.takes_none or own.takes):
        raise Unavailable(f"queue {asked.name!r} takes publishes here yet", retry_after_ms=RETRY_MS)
    return await store.node.queues.ended(own)


async def _find_left(store: EmbeddedStore, asked: FindLeft) -> Left:
    own = _here(store, asked.tenant, asked.name, asked.uid)
    if asked.slots:
        return await left_of_slots(store, own, unpacked(asked.slots))
    if not own.takes_none:
        raise Unavailable(f"queue {asked.name!r} takes publishes here", retry_after_ms=RETRY_MS)
    return left_of(store, own)


def _here(store: EmbeddedStore, tenant: str, name: str, uid: int) -> QueueDefinition:
    own = store.node.metadata.queues.get((tenant, name))
    if own is None or own.uid != uid:
        raise QueueNotFound(f"queue {name!r} is not here")
    return own


def _known(store: EmbeddedStore, tenant: str, name: str) -> QueueDefinition:
    known = store.node.metadata.defined(tenant, name)
    if known is None:
        raise QueueNotFound(f"there is no queue {name!r}")
    return known


def _others(store: EmbeddedStore, known: QueueDefinition) -> list[QueueDefinition]:
    """The tenant's other queues."""
    metadata = store.node.metadata
    every = [*metadata.queues.of_tenant(known.tenant), *metadata.elsewhere.by_name.of_tenant(known.tenant)]
    return [one for one in {one.name: one for one in every}.values() if one.name != known.name]


def _check_defines(store: EmbeddedStore) -> None:
    if store.node.metadata.adopted_from is not None:
        raise Conflict("the queues of this cluster are defined by another one; ask that one")


def _insisting(decide: Handler) -> Handler:
    """Repeats an operator's request if another step changed the definition meanwhile."""

    async def asked(store: EmbeddedStore, operation: Any) -> Any:
        while True:
            with suppress(ChangedMeanwhile):
                return await decide(store, operation)

    return asked


HANDLERS: Final[dict[type, Handler]] = {
    BeginRelocation: _insisting(_begin),
    SpreadQueue: _insisting(_spread),
    GoOnSpreading: _go_on,
    GiveUpRelocation: _insisting(_give_up),
    Arrive: _arrive,
    NoteSettled: _settled,
    ForgetPlace: _forget,
    FindEnd: _end,
    FindLeft: _find_left,
}
