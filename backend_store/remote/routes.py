"""Which part of a queue takes which messages, where it lies in several places at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend_store.core.sealing import Seal
from backend_store.core.slots import SLOTS, Member, Routing, SlotTable, unpacked
from backend_store.core.split import Share, shares
from backend_store.model import PARTITIONS_MAX, Block, ClusterAway, OpenPlace
from backend_store.remote.queue import RemoteQueue

_TURN = 157
"""Odd, so that turns go through all slots."""


class PlaceTable(SlotTable, frozen=True, dict=True):
    """A slot table whose partitions are places. Each gets as many calls without a slot as it has slots."""

    def spread(self, turn: int) -> int:
        return self.owners[turn * _TURN % SLOTS]


class Bound(NamedTuple):
    """What one place gets of a call."""

    part: RemoteQueue | ClusterAway
    share: Share


class Routes:
    """See the file's first sentence. `parts`: of each open place, or why nobody here can reach it."""

    def __init__(
        self, places: Sequence[OpenPlace], parts: Sequence[RemoteQueue | ClusterAway], routing: Routing
    ) -> None:
        self._parts = parts
        self._routing = routing
        owners = [0] * SLOTS
        for number, place in enumerate(places):
            bits = unpacked(place.slots)
            for slot in range(SLOTS):
                if bits >> slot & 1:
                    owners[slot] = number
        self._places = _table(owners)
        self._encoding: tuple[list[SlotTable | None], SlotTable] | None = None

    def bound(self, blocks: Sequence[Block], turn: int, seal: Seal | None) -> list[Bound]:
        """The messages of a call by where they go."""
        found = shares(blocks, self._routing, self._places, turn, seal)
        return [Bound(self._parts[share.partition], share) for share in found]

    def part_of(self, slot: int) -> RemoteQueue | ClusterAway:
        return self._parts[self._places.owners[slot]]

    @property
    def routing(self) -> Routing:
        return self._routing

    @property
    def encoding(self) -> SlotTable:
        """By which calls are encoded: a number for each partition of each place, so that no block has to be cut."""
        inner = [part.encoding_table if isinstance(part, RemoteQueue) else None for part in self._parts]
        known = self._encoding
        if known is None or any(a is not b for a, b in zip(known[0], inner, strict=True)):
            owners = []
            for slot, place in enumerate(self._places.owners):
                table = inner[place]
                number = table.places[slot] if table is not None else 0
                owners.append(place * (PARTITIONS_MAX + 1) + (number if number >= 0 else PARTITIONS_MAX))
            known = self._encoding = inner, _table(owners)
        return known[1]


def _table(owners: Sequence[int]) -> PlaceTable:
    members = {number: Member("open", 1) for number in sorted(set(owners))}
    return PlaceTable(1, tuple(owners), tuple(owners), members)
