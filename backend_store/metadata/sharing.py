"""Divides the slots of a split queue among several places, and computes the next step towards its goal.

Each place of a split queue takes the publishes of its own slots (see `core.partitions`). The queue is spread evenly
over its `goal` step by step: one place gives some slots to another one, by the steps of `relocation`, and the next step
begins when those have arrived. Merging is spreading over fewer places.

Each place assigns offsets from its own range; ranges are 2^44 apart if several places are open at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from backend_store.core.partitions.slots import ALL_SLOTS, SLOTS, UNKEYED, packed, unpacked
from backend_store.model import Conflict, FormerPlace, OpenPlace, QueueDefinition, Whereabouts

FLOOR_BITS = 32
"""Each place of a queue assigns offsets from a multiple of 2^32 on, so an offset shows its place, and messages still
written at the former place, such as redriven dead letters, have offsets left."""
OPEN_BITS = 44
"""If several places assign offsets at once, each has a range of 2^44."""
NUMBER_BITS = 53
"""Offsets are below 2^53: JavaScript's numbers are exact up to there."""


_ALL = packed(ALL_SLOTS)


class Give(NamedTuple):
    """One place gives slots, as bits, to another one."""

    source: Whereabouts
    to: Whereabouts
    slots: int


def open_places(definition: QueueDefinition) -> list[OpenPlace]:
    """The places that take publishes, the definition's own place first."""
    if not definition.beside:
        return [OpenPlace(definition.cluster, definition.shard, definition.floor, _ALL)]
    rest = ALL_SLOTS
    for one in definition.beside:
        rest &= ~unpacked(one.slots)
    first = OpenPlace(definition.cluster, definition.shard, definition.floor, packed(rest))
    return [first, *definition.beside]


def known_places(definition: QueueDefinition) -> list[OpenPlace | FormerPlace]:
    """Places where the queue has or may have messages, those that take publishes first. A place may occur twice."""
    return [*open_places(definition), *definition.former]


def leaving_slots(definition: QueueDefinition, place: Whereabouts) -> int:
    """The slots that are moving away from a place, as bits."""
    if definition.moving_to is None or place != (definition.moving_from or definition.place):
        return 0
    here = next((unpacked(one.slots) for one in open_places(definition) if one.place == place), 0)
    return here & (unpacked(definition.moving_slots) or ALL_SLOTS)


def leaving_bits(definition: QueueDefinition) -> int:
    """All slots that are moving, as bits; with `UNKEYED` if their place keeps no other slots."""
    if definition.moving_to is None:
        return 0
    source = definition.moving_from or definition.place
    has = next((unpacked(one.slots) for one in open_places(definition) if one.place == source), 0)
    leaving = leaving_slots(definition, source)
    return leaving | 1 << UNKEYED if leaving == has else leaving


def moved_slots(before: QueueDefinition, now: QueueDefinition) -> int:
    """Slots that are in another place than before, or whose move was given up; as bits with `UNKEYED`."""
    was, lies = ({one.place: unpacked(one.slots) for one in open_places(each)} for each in (before, now))
    moved = 0
    for place in {*was, *lies}:
        moved |= was.get(place, 0) ^ lies.get(place, 0)
    if not was.keys() <= lies.keys():
        moved |= 1 << UNKEYED
    return moved | leaving_bits(before) & ~leaving_bits(now)


def next_floor(definition: QueueDefinition, end: int, *, is_alone: bool) -> int:
    """The first offset of a place that is opened now. `end`: above the offsets of the place that gives it slots.
    `is_alone`: no other place assigns offsets meanwhile."""
    top = max(end, definition.floor, definition.top)
    bits = _range_bits(definition, is_alone=is_alone)
    return ((top >> bits) + (2 if bits == FLOOR_BITS else 1)) << bits


def _range_bits(definition: QueueDefinition, *, is_alone: bool) -> int:
    return FLOOR_BITS if is_alone and definition.top <= definition.floor else OPEN_BITS


def places_left(definition: QueueDefinition) -> int:
    """How many further places the queue may get, one after the other, until no offsets are left."""
    return ((1 << NUMBER_BITS) - next_floor(definition, definition.floor, is_alone=False)) >> OPEN_BITS


def check_numbers(definition: QueueDefinition, places: int = 1, *, is_alone: bool = False) -> None:
    """Raises `Conflict` if that many further places would need offsets above `NUMBER_BITS`. `is_alone`: see
    `next_floor`."""
    first = next_floor(definition, definition.floor, is_alone=is_alone)
    if first + (places << _range_bits(definition, is_alone=is_alone)) > 1 << NUMBER_BITS:
        further = "a further place" if places == 1 else f"{places} further places"
        raise Conflict(
            f"queue {definition.name!r} was split so often that no numbers are left for {further}; recreate it"
        )


def spread(goal: Sequence[Whereabouts], now_ms: int) -> Callable[[QueueDefinition], QueueDefinition]:
    """Sets a queue's goal to be spread evenly over these places, and begins the first step unless it has to wait."""

    def change(known: QueueDefinition) -> QueueDefinition:
        wanted = replace(known, goal=tuple(goal))
        return wanted if why_waits(wanted) is not None and next_give(wanted) is not None else go_on(now_ms)(wanted)

    return change


def go_on(now_ms: int) -> Callable[[QueueDefinition], QueueDefinition]:
    """Begins the next step towards the goal; if none is left, removes the goal. Raises `Conflict` if the next step has
    to wait."""

    def change(known: QueueDefinition) -> QueueDefinition:
        if known.moving_to is not None:
            raise Conflict(f"queue {known.name!r} is already moving to {known.moving_to}")
        if (give := next_give(known)) is None:
            return replace(known, goal=())
        if (why := why_waits(known)) is not None:
            raise Conflict(why)
        return replace(
            known,
            moving_to=give.to,
            moving_since_ms=now_ms,
            moving_from=give.source,
            moving_slots=packed(give.slots),
        )

    return change


def why_waits(definition: QueueDefinition) -> str | None:
    """Why the next step cannot begin yet, or None: in strict order no slot moves on before all messages left in former
    places are delivered."""
    if definition.config.ordering != "strict":
        return None
    left = next((one for one in definition.former if not one.is_settled), None)
    return None if left is None else f"queue {definition.name!r} has messages to deliver in {left.place}"


def next_give(definition: QueueDefinition) -> Give | None:
    """The next step towards the goal; None if it is reached, or there is none."""
    if not definition.goal:
        return None
    places = open_places(definition)
    has = {one.place: unpacked(one.slots) for one in places}
    share, extra = divmod(SLOTS, len(definition.goal))
    # Places that have most slots now keep the extra ones, so that fewer slots move.
    held = {place: has.get(place, 0).bit_count() for place in definition.goal}
    ranked = sorted(definition.goal, key=lambda place: (held[place] != share + 1, -held[place]))
    room = {place: share + (rank < extra) for rank, place in enumerate(ranked)}
    spare: dict[Whereabouts, list[int]] = {}
    for one in places:
        mine = [slot for slot in range(SLOTS) if has[one.place] >> slot & 1]
        kept = min(len(mine), room.get(one.place, 0))
        spare[one.place] = mine[kept:]
        if one.place in room:
            room[one.place] -= kept
    source = next((place for place, slots in spare.items() if slots), None)
    to = next((place for place in definition.goal if room[place] > 0), None)
    if source is None or to is None:
        return None
    return Give(source, to, sum(1 << slot for slot in spare[source][: room[to]]))
