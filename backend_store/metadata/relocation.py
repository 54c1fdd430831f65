"""The steps of a queue's move to another cluster, as changes of its definition, which the home cluster makes.

    begin     moving_to is set             the old place stops taking publishes
    give_up   moving_to is unset           the old place takes publishes again; the new one never did
    arrive    the new place, with a floor  publishes go to the new place; the old one becomes `former`
    settle    former.is_settled            in strict order, the new place delivers from here on
    forget    former is removed            no message is left there, and no idempotency key of it is within the window

Each step names the definition's version on which it was decided (compare-and-set): of several gateways that try a step
one makes it, and the others learn the new definition. `arrive` is the step that cannot be undone.

Splitting and merging a queue take the same steps, for some slots at a time: see `sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from backend_store.core.partitions.slots import ALL_SLOTS, packed, unpacked
from backend_store.metadata.elsewhere import links_of
from backend_store.metadata.sharing import known_places, leaving_slots, next_floor, next_give, open_places
from backend_store.model import Conflict, FormerPlace, InvalidRequest, OpenPlace, QueueDefinition, Whereabouts

Change = Callable[[QueueDefinition], QueueDefinition]


def check_movable(definition: QueueDefinition, others: Iterable[QueueDefinition], to: Whereabouts) -> None:
    """Raises `InvalidRequest` for a queue that must stay beside others or sorts its messages, and `Conflict` if it
    cannot move to `to` now. `others`: the tenant's other queues."""
    check_able(definition, others)
    name = definition.name
    if definition.moving_to is not None:
        raise Conflict(f"queue {name!r} is already moving to {definition.moving_to}; wait for it, or cancel the move")
    check_free(definition, to)


def check_able(definition: QueueDefinition, others: Iterable[QueueDefinition]) -> None:
    """Raises `InvalidRequest` for a queue that sorts its messages, or must lie in the same place as another queue."""
    name, config = definition.name, definition.config
    if config.sequencing != "arrival":
        raise InvalidRequest(
            f"queue {name!r} sorts its messages (sequencing: {config.sequencing}), and this version cannot move its "
            "producer state"
        )
    if linked := links_of(config):
        raise InvalidRequest(
            f"queue {name!r} names {linked[0]!r}, which must be in the same place; it cannot move alone"
        )
    if (naming := next((one.name for one in others if name in links_of(one.config)), None)) is not None:
        raise InvalidRequest(f"queue {naming!r} names {name!r}, which must be in the same place; it cannot move alone")


def check_free(definition: QueueDefinition, to: Whereabouts) -> None:
    """Raises `Conflict` if the target cluster is a former place of the queue that is not forgotten yet."""
    clusters = {one.cluster for one in open_places(definition)}
    if to.cluster not in clusters and any(to.cluster == former.cluster for former in definition.former):
        raise Conflict(
            f"queue {definition.name!r} came from that cluster and still has messages there; it can move back once "
            "they are delivered and the window of its ids is over"
        )


def begin(to: Whereabouts, now_ms: int) -> Change:
    """Begins a move of all slots of the queue's only place, or of its first one."""
    return lambda known: replace(known, moving_to=to, moving_since_ms=now_ms, moving_from=None, moving_slots=b"")


def give_up(known: QueueDefinition) -> QueueDefinition:
    """Ends a move or a spread. Raises `Conflict` if there is none, and for a move in strict order: of publishes under
    way an earlier one may have been refused, and a later one would then be taken."""
    if known.moving_to is None and not known.goal:
        why = "has already arrived; move it back instead" if known.former else "is not moving"
        raise Conflict(f"queue {known.name!r} {why}")
    if known.moving_to is not None and known.config.ordering == "strict":
        raise Conflict(
            f"queue {known.name!r} keeps a strict order, so its move cannot be cancelled; it continues as soon as "
            "all shards of the old cluster respond"
        )
    return _stays(known)


def arrive(end: int, now_ms: int) -> Change:
    """Makes the new place take publishes. `end`: above every offset that the old place, which takes no more publishes
    of the moving slots, has assigned to them. Raises `Conflict` if the queue does not move."""

    def change(known: QueueDefinition) -> QueueDefinition:
        to = known.moving_to
        if to is None:
            raise Conflict(f"queue {known.name!r} is not moving")
        places = {one.place: one for one in open_places(known)}
        source = places[known.moving_from or known.place]
        given = unpacked(known.moving_slots) or unpacked(source.slots)
        rest = unpacked(source.slots) & ~given
        is_whole = given == ALL_SLOTS
        floor = next_floor(known, end, is_alone=is_whole and len(places) == 1)
        is_new = to not in places
        target = OpenPlace(to.cluster, to.shard, floor, b"") if is_new else places[to]
        places[to] = replace(target, slots=packed(unpacked(target.slots) | given))
        if rest:
            places[source.place] = replace(source, slots=packed(rest))
        else:
            del places[source.place]
        first = places.pop(known.place if known.place in places else to)
        left = _left(known, source, given, now_ms, is_whole=is_whole)
        arrived = replace(
            _stays(known, keeps_goal=True),
            cluster=first.cluster,
            shard=first.shard,
            floor=first.floor,
            top=max(known.top, floor) if is_new else known.top,
            former=(left, *_without(known.former, to, given, left.place)),
            beside=tuple(places.values()),
            since=known.since if is_whole else known.version + 1,
        )
        return arrived if next_give(arrived) is not None else replace(arrived, goal=())

    return change


def _left(known: QueueDefinition, source: OpenPlace, given: int, now_ms: int, *, is_whole: bool) -> FormerPlace:
    place = FormerPlace(source.cluster, source.shard, source.floor, now_ms)
    if is_whole:
        return place
    before = next((one for one in known.former if one.place == source.place), None)
    slots = given | (unpacked(before.slots) if before is not None else 0)
    return replace(place, slots=packed(slots), settling=packed(given))


def _without(former: Iterable[FormerPlace], to: Whereabouts, given: int, source: Whereabouts) -> Iterable[FormerPlace]:
    """The former places without `source`, and without slots that return to a former place: that place knows them."""
    for one in former:
        if one.place == source:
            continue
        if one.place == to:
            if slots := unpacked(one.slots) & ~given:
                yield replace(one, slots=packed(slots), settling=packed(unpacked(one.settling) & ~given))
            continue
        yield one


def _stays(known: QueueDefinition, *, keeps_goal: bool = False) -> QueueDefinition:
    return replace(
        known,
        moving_to=None,
        moving_since_ms=0,
        moving_from=None,
        moving_slots=b"",
        goal=known.goal if keeps_goal else (),
    )


def settle(place: Whereabouts) -> Change:
    return lambda known: replace(
        known, former=tuple(replace(one, is_settled=True) if one.place == place else one for one in known.former)
    )


def forget(place: Whereabouts) -> Change:
    def change(known: QueueDefinition) -> QueueDefinition:
        former = tuple(one for one in known.former if one.place != place)
        return replace(known, former=former, since=known.since if any(one.slots for one in former) else 0)

    return change


def places_of(definition: QueueDefinition) -> list[Whereabouts]:
    """The places where the queue lies, where it has messages left, and to which it moves; each once."""
    goes = [definition.moving_to] if definition.moving_to is not None else []
    return list(dict.fromkeys([*(one.place for one in known_places(definition)), *goes]))


class Spot(NamedTuple):
    """The location of a shard, to compare with definitions."""

    cluster: str
    shard: int
    is_lane: bool
    """The shard is of a cluster of independent hosts."""

    def is_at(self, definition: QueueDefinition, place: Whereabouts) -> bool:
        """Whether `place`, one of the queue's, is in this shard, at least in part."""
        spans_all = self.is_lane and not definition.single_lane
        return place.cluster == self.cluster and (spans_all or place.shard == self.shard)


def lies_in(definition: QueueDefinition, spot: Spot) -> bool:
    """Whether the queue has, or may have, messages in the shard."""
    if spot.is_at(definition, definition.place):
        return True
    if not definition.former and not definition.beside:
        return False
    return any(spot.is_at(definition, one.place) for one in known_places(definition))


def as_known_in(definition: QueueDefinition, spot: Spot) -> QueueDefinition:
    """The definition as the shard is to store it: which slots it takes and holds back, and its floor."""
    here = next((one for one in open_places(definition) if spot.is_at(definition, one.place)), None)
    slots = unpacked(here.slots) & ~leaving_slots(definition, here.place) if here is not None else 0
    floor = here.floor if here is not None else definition.floor
    if here is None:
        former = [one for one in definition.former if spot.is_at(definition, one.place)]
        floor = former[0].floor if former else floor
    takes = packed(slots) if slots != ALL_SLOTS else b""
    return replace(definition, takes_none=not slots, takes=takes, holds=packed(_held(definition, here)), floor=floor)


def _held(definition: QueueDefinition, here: OpenPlace | None) -> int:
    """In strict order, the slots whose older messages are still in another place; as bits."""
    if here is None or definition.config.ordering != "strict":
        return 0
    held = 0
    for former in definition.former:
        if not former.is_settled and former.place != here.place:
            held |= unpacked(former.settling)
    return held & unpacked(here.slots)
