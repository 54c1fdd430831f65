"""The steps of a queue's move to another cluster, as changes of its definition, which the home cluster makes.

    begin     moving_to is set             the old place is to take no more publishes
    give_up   moving_to is unset           it takes them again: nobody else ever did
    arrive    the new place, with a floor  publishes go there; the old one is `former`
    settle    former.is_settled            in strict order the new place's messages are delivered from here on
    forget    former goes                  nothing is left there, and no id of it is within the window

Each names the version that it was decided on, so of several who try one makes it, and the others learn what is so. Only
`arrive` cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from backend_store.metadata.elsewhere import links_of
from backend_store.model import Conflict, FormerPlace, InvalidRequest, QueueDefinition, Whereabouts

Change = Callable[[QueueDefinition], QueueDefinition]

FLOOR_BITS = 32
"""Each place of a queue gives out numbers from a multiple of 2^32 on, so the place of a message is seen by its number,
and what is still written at the former place, redriven letters among it, has numbers left."""


def check_movable(definition: QueueDefinition, others: Iterable[QueueDefinition], to: Whereabouts) -> None:
    """Raises `InvalidRequest` for a queue that cannot lie apart from what it has to do with, and `Conflict` where it
    cannot go there now. `others`: the tenant's queues."""
    name, config = definition.name, definition.config
    if config.kind == "stream":
        raise InvalidRequest(f"queue {name!r} is a stream, and this version moves none between clusters")
    if config.sequencing != "arrival":
        raise InvalidRequest(
            f"queue {name!r} sorts its messages (sequencing: {config.sequencing}), and this version does not move what "
            "it knows of producers"
        )
    if linked := links_of(config):
        raise InvalidRequest(f"queue {name!r} names {linked[0]!r}, beside which it has to lie; it cannot move alone")
    if (naming := next((one.name for one in others if name in links_of(one.config)), None)) is not None:
        raise InvalidRequest(f"queue {naming!r} names {name!r}, and has to lie beside it; it cannot move alone")
    if definition.moving_to is not None:
        raise Conflict(f"queue {name!r} moves to {definition.moving_to} already; wait for it, or give that up")
    if any(to.cluster == former.cluster for former in definition.former):
        raise Conflict(
            f"queue {name!r} came from there, and has something there yet; it may go back when that is delivered and "
            "the window of its ids is over"
        )


def begin(to: Whereabouts, now_ms: int) -> Change:
    return lambda known: replace(known, moving_to=to, moving_since_ms=now_ms)


def give_up(known: QueueDefinition) -> QueueDefinition:
    """Raises `Conflict` where nothing is left to give up, and for strict order: of calls that are on the way one may
    have been refused, and the next one would be taken."""
    if known.moving_to is None:
        why = "has arrived; plan a move back" if known.former else "does not move"
        raise Conflict(f"queue {known.name!r} {why}")
    if known.config.ordering == "strict":
        raise Conflict(
            f"queue {known.name!r} keeps a strict order, and a move of such a queue is not given up; it goes on as "
            "soon as all of the old cluster's shards answer"
        )
    return replace(known, moving_to=None, moving_since_ms=0)


def arrive(end: int, now_ms: int) -> Change:
    """`end`: above every number that the old place has given out, and it gives out none to publishes any more."""

    def change(known: QueueDefinition) -> QueueDefinition:
        to = known.moving_to
        if to is None:
            raise Conflict(f"queue {known.name!r} does not move")
        left = FormerPlace(known.cluster, known.shard, known.floor, now_ms)
        return replace(
            known,
            cluster=to.cluster,
            shard=to.shard,
            floor=floor_above(max(end, known.floor)),
            moving_to=None,
            moving_since_ms=0,
            former=(left, *known.former),
        )

    return change


def floor_above(end: int) -> int:
    """Where the numbers of the next place begin. What is left below it is more than any queue holds."""
    return ((end >> FLOOR_BITS) + 2) << FLOOR_BITS


def settle(place: Whereabouts) -> Change:
    return lambda known: replace(
        known, former=tuple(replace(one, is_settled=True) if one.place == place else one for one in known.former)
    )


def forget(place: Whereabouts) -> Change:
    return lambda known: replace(known, former=tuple(one for one in known.former if one.place != place))


def places_of(definition: QueueDefinition) -> list[Whereabouts]:
    """Where it lies, where it goes, and where it has something left."""
    goes = [definition.moving_to] if definition.moving_to is not None else []
    return [definition.place, *goes, *(former.place for former in definition.former)]


def lies_in(definition: QueueDefinition, cluster: str, shard: int | None) -> bool:
    """Whether it has something there, or may have. `shard` None: any one of the cluster."""
    places = (definition.place, *(former.place for former in definition.former))
    return any(place.cluster == cluster and shard in (None, place.shard) for place in places)


def as_known_in(definition: QueueDefinition, cluster: str, shard: int | None) -> QueueDefinition:
    """What a shard there is told of the queue."""
    is_current = definition.cluster == cluster and shard in (None, definition.shard)
    takes_none = not is_current or definition.moving_to is not None
    floor = definition.floor
    if not is_current:
        former = [one for one in definition.former if one.cluster == cluster and shard in (None, one.shard)]
        floor = former[0].floor if former else floor
    return replace(definition, takes_none=takes_none, floor=floor)
