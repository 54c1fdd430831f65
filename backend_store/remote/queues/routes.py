"""Routes the messages of a queue that is split over several places: which part takes which messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend_store.core.log.sealed_block import CannotOpen, Seal
from backend_store.core.partitions.routing import Share, shares
from backend_store.core.partitions.slots import SLOTS, UNKEYED, Member, Routing, SlotTable, unpacked
from backend_store.model import PARTITIONS_MAX, Block, ClusterAway, OpenPlace, Unavailable
from backend_store.remote.queues.queue import RemoteQueue

_TURN = 157
"""Odd, so that the rotation visits all slots."""


class PlaceTable(SlotTable, frozen=True, dict=True):
    """A slot table whose partitions are places. `round`: the places that calls without a slot go to in rotation."""

    round: tuple[int, ...] = (0,)

    def spread(self, turn: int) -> int:
        return self.round[turn * _TURN % len(self.round)]


class Bound(NamedTuple):
    """The share of a call that one place gets."""

    part: RemoteQueue | ClusterAway
    share: Share


class Routes:
    """The routes of one split queue; its `PlacedQueue` owns it. `parts`: the part at each open place, or why it cannot
    be reached. Messages without a slot go to each place in proportion to its slots, not counting those that are
    `leaving`."""

    def __init__(
        self,
        places: Sequence[OpenPlace],
        parts: Sequence[RemoteQueue | ClusterAway],
        routing: Routing,
        leaving: int = 0,
    ) -> None:
        self._parts = parts
        self._routing = routing
        owners = [0] * SLOTS
        self._slots = [unpacked(place.slots) for place in places]
        for number, bits in enumerate(self._slots):
            for slot in range(SLOTS):
                if bits >> slot & 1:
                    owners[slot] = number
        staying = [owner for slot, owner in enumerate(owners) if not leaving >> slot & 1]
        self._places = _table(owners, staying or owners)
        self._encoding: tuple[list[SlotTable | None], SlotTable] | None = None

    def bound(self, blocks: Sequence[Block], turn: int, seal: Seal | None) -> list[Bound]:
        """Splits a call by place. Raises `Unavailable`."""
        found = divided(blocks, self._routing, self._places, turn, seal)
        return [Bound(self._parts[share.partition], share) for share in found]

    def apart_from(self, slot: int, others: int) -> RemoteQueue | ClusterAway | None:
        """The part that has `slot`; None if that part also has all of `others`, given as bits with `UNKEYED`."""
        owner = self._places.owners[slot]
        return self._parts[owner] if others & ~self._slots[owner] else None

    @property
    def encoding(self) -> SlotTable:
        """The slot table by which calls are encoded: it numbers each partition of each place, so that no block has to
        be cut."""
        inner = [part.encoding_table if isinstance(part, RemoteQueue) else None for part in self._parts]
        known = self._encoding
        if known is None or any(a is not b for a, b in zip(known[0], inner, strict=True)):
            owners = []
            for slot, place in enumerate(self._places.owners):
                table = inner[place]
                number = table.places[slot] if table is not None else 0
                owners.append(place * (PARTITIONS_MAX + 1) + (number if number >= 0 else PARTITIONS_MAX))
            known = self._encoding = inner, _table(owners, owners)
        return known[1]


def apart(blocks: Sequence[Block], routing: Routing, slots: int, seal: Seal | None) -> list[Share]:
    """Splits a call in two: messages of `slots`, given as bits with `UNKEYED`, and all others. Raises
    `Unavailable`."""
    owners = [slots >> slot & 1 for slot in range(SLOTS)]
    return divided(blocks, routing, _table(owners, [slots >> UNKEYED & 1]), 0, seal)


def divided(blocks: Sequence[Block], routing: Routing, table: SlotTable, turn: int, seal: Seal | None) -> list[Share]:
    """See `routing.shares`. Raises `Unavailable` if a block has to be cut that this gateway cannot open."""
    try:
        return shares(blocks, routing, table, turn, seal)
    except CannotOpen as error:
        raise Unavailable(f"a call cannot be divided among clusters: {error}", retry_after_ms=500) from None


def _table(owners: Sequence[int], turns: Sequence[int]) -> PlaceTable:
    members = {number: Member("open", 1) for number in sorted({*owners, *turns})}
    return PlaceTable(1, tuple(owners), tuple(owners), members, round=tuple(turns))
