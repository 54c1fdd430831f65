"""One round of placement: lost copies first, then zones, then loads, then leaders. Rounds end with an empty plan.

Each kind of move lowers one measure and raises none of the measures before it, so the rounds end. A move for balance
must gain a good part of what it moves, and is made only beyond a tolerance: nearly even loads are left alone, and no
copy moves back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from backend_store.core.placement.limits import (
    COPIES_MOVED_PER_ROUND_MAX,
    GAIN_MIN,
    IMBALANCE_TOLERATED,
    LEADS_MOVED_PER_ROUND_MAX,
    NODE_COPIES_MAX,
    TAKERS_TRIED_MAX,
)
from backend_store.core.placement.values import CopyDropped, CopyMoved, LeadMoved, Move, Node, Shard, applied


def plan(nodes: Sequence[Node], shards: Sequence[Shard]) -> list[Move]:
    """Returns the moves of one round, in order of urgency; none if nothing needs to move."""
    round_ = _Round(nodes, shards)
    round_.replace_lost()
    round_.spread_over_zones()
    round_.even_out()
    round_.choose_leaders()
    return round_.moves


class _Round:
    """A working copy of nodes and shards, on which the moves of a round are applied. A shard has at most one copy moved
    in a round, except for lost copies.
    """

    def __init__(self, nodes: Sequence[Node], shards: Sequence[Shard]) -> None:
        self.moves: list[Move] = []
        self._nodes = {node.name: node for node in nodes}
        self._takers = sorted(
            node.name for node in nodes if node.is_alive and not node.is_draining and not node.is_away
        )
        self._shards = {shard.id: shard for shard in sorted(shards, key=lambda shard: shard.id)}
        self._of_node: dict[str, set[int]] = {name: set() for name in self._nodes}
        self._load: Counter[str] = Counter()
        self._busy: set[int] = set()
        self._new: set[tuple[int, str]] = set()
        """Copies that this round creates: they are empty, so they cannot lead."""
        self._left = COPIES_MOVED_PER_ROUND_MAX
        for shard in self._shards.values():
            for name in shard.copies:
                if name in self._of_node:
                    self._of_node[name].add(shard.id)
                    self._load[name] += shard.weight  # type: ignore[assignment]

    # ---------------------------------------------------------------------------------------------- lost copies

    def replace_lost(self) -> None:
        """Replaces copies on dead or removed nodes and adds missing ones; then moves those of draining nodes, up to the
        limit.
        """
        for shard in list(self._shards.values()):
            self._drop_surplus(shard)
            while (lost := self._lost_of(self._shards[shard.id])) is not None:
                source = lost or None
                to = self._best_taker(self._shards[shard.id], without=source)
                if to is None:
                    break
                self._move(shard.id, to, source, is_counted=False)
        for name in sorted(self._nodes):
            if self._nodes[name].is_draining and self._nodes[name].is_alive:
                for id in sorted(self._of_node[name]):
                    to = self._best_taker(self._shards[id], without=name) if id not in self._busy else None
                    if to is not None and self._left:
                        self._move(id, to, name)

    def _drop_surplus(self, shard: Shard) -> None:
        """Drops copies beyond those wanted: lost ones first, then those of draining nodes, then any but the leader's,
        from the most crowded zone and the most loaded node.
        """
        while len(shard.copies) > max(1, shard.copies_wanted):
            source = max(shard.copies, key=lambda name: self._is_spare(shard, name))
            if source in self._of_node:
                self._of_node[source].discard(shard.id)
                self._load[source] -= shard.weight  # type: ignore[assignment]
            self._do(CopyDropped(shard.id, source))
            shard = self._shards[shard.id]

    def _is_spare(self, shard: Shard, name: str) -> tuple[bool, bool, bool, int, float, str]:
        node = self._nodes.get(name)
        if node is None or not node.is_alive:
            return True, False, False, 0, 0.0, name
        crowd = self._zones(shard)[node.zone]
        return False, node.is_draining, shard.leader != name, crowd, self._used(name), name

    def _lost_of(self, shard: Shard) -> str | None:
        """Returns a node whose copy is lost; "" if a copy is missing; None if neither."""
        for name in shard.copies:
            if name not in self._nodes or not self._nodes[name].is_alive:
                return name
        return "" if len(shard.copies) < shard.copies_wanted else None

    def _best_taker(self, shard: Shard, *, without: str | None) -> str | None:
        """Returns the node with the lowest load in the zone with the fewest copies of the shard, or None."""
        zones = self._zones(shard, without)
        able = [name for name in self._takers if name not in shard.copies and self._has_room(name)]
        return min(able, key=lambda name: (zones[self._nodes[name].zone], self._used(name), name), default=None)

    def _has_room(self, name: str) -> bool:
        return len(self._of_node[name]) < NODE_COPIES_MAX

    def _zones(self, shard: Shard, without: str | None = None) -> Counter[str]:
        return Counter(self._nodes[name].zone for name in shard.copies if name != without and name in self._nodes)

    def _used(self, name: str) -> float:
        return self._load[name] / self._nodes[name].capacity

    # ----------------------------------------------------------------------------------------------------- zones

    def spread_over_zones(self) -> None:
        """Moves a copy away from a zone that has at least two copies more of a shard than another zone."""
        for id, shard in self._shards.items():
            if not self._left:
                return
            if id in self._busy or self._lost_of(shard):
                continue
            zones = self._zones(shard)
            if max(zones.values(), default=0) < 2:
                continue
            givers = sorted(shard.copies, key=lambda name: (-zones[self._nodes[name].zone], -self._used(name), name))
            to = self._best_taker(shard, without=None)
            if to is not None and givers:
                crowded, empty = zones[self._nodes[givers[0]].zone], zones[self._nodes[to].zone]
                if crowded - empty > 1:
                    self._move(id, to, givers[0])

    # ----------------------------------------------------------------------------------------------------- loads

    def even_out(self) -> None:
        """Moves copies from nodes with the highest load per capacity to those with the lowest, while a node is far from
        its share.
        """
        if len(self._takers) < 2:
            return
        share = sum(self._load[name] for name in self._takers) / sum(
            self._nodes[name].capacity for name in self._takers
        )
        stuck: set[str] = set()
        while self._left:
            order = sorted(self._takers, key=lambda name: (self._used(name), name))
            is_uneven = self._used(order[-1]) > share * (1 + IMBALANCE_TOLERATED)
            if not is_uneven and self._used(order[0]) >= share * (1 - IMBALANCE_TOLERATED):
                return
            for giver in reversed(order):
                if giver not in stuck and self._give_one(giver, order):
                    break
                stuck.add(giver)
            else:
                return

    def _give_one(self, giver: str, order: list[str]) -> bool:
        """Moves the heaviest copy that fits into the difference to a node with a low load, anywhere or in the giver's
        zone. Returns whether there was one.
        """
        zone = self._nodes[giver].zone
        near = [name for name in order if self._nodes[name].zone == zone][:TAKERS_TRIED_MAX]
        mine: list[Shard] | None = None
        for to in sorted({*order[:TAKERS_TRIED_MAX], *near}, key=lambda name: (self._used(name), name)):
            if self._used(to) >= self._used(giver):
                return False
            if not self._has_room(to):
                continue
            if mine is None:
                mine = sorted((self._shards[id] for id in self._of_node[giver]), key=lambda one: (-one.weight, one.id))
            for shard in mine:
                if shard.id not in self._busy and to not in shard.copies and self._gains(shard, giver, to):
                    self._move(shard.id, to, giver)
                    return True
        return False

    def _gains(self, shard: Shard, giver: str, to: str) -> bool:
        """Whether the higher load of the two nodes falls by a good part of the copy's, and zones are no less even."""
        before = self._used(giver)
        after = max(
            (self._load[giver] - shard.weight) / self._nodes[giver].capacity,
            (self._load[to] + shard.weight) / self._nodes[to].capacity,
        )
        if before - after < GAIN_MIN * shard.weight / self._nodes[giver].capacity:
            return False
        zones = self._zones(shard)
        from_zone, to_zone = self._nodes[giver].zone, self._nodes[to].zone
        return from_zone == to_zone or zones[to_zone] < zones[from_zone]

    # --------------------------------------------------------------------------------------------------- leaders

    def choose_leaders(self) -> None:
        """Gives each shard a leader that can serve; then evens out the leaderships among nodes that have copies."""
        leads: Counter[str] = Counter()
        for shard in self._shards.values():
            if shard.leader is not None and self._may_lead(shard.leader, shard):
                leads[shard.leader] += 1
        left, led = LEADS_MOVED_PER_ROUND_MAX, set()
        for shard in self._shards.values():
            if shard.leader is not None and self._may_lead(shard.leader, shard):
                continue
            able = [name for name in shard.copies if self._may_lead(name, shard)]
            if able:
                self._lead(shard.id, min(able, key=lambda name: (leads[name], name)), leads)
                led.add(shard.id)
        for shard in list(self._shards.values()):
            if not left or shard.id in self._busy or shard.id in led or shard.leader is None:
                continue
            able = [name for name in shard.copies if self._may_lead(name, shard)]
            best = min(able, key=lambda name: (leads[name], name), default=None)
            if best is not None and leads[shard.leader] - leads[best] > 1:
                leads[shard.leader] -= 1
                self._lead(shard.id, best, leads)
                left -= 1

    def _may_lead(self, name: str, shard: Shard) -> bool:
        node = self._nodes.get(name)
        is_able = node is not None and node.is_alive and not node.is_draining and not node.is_away
        return is_able and name in shard.copies and (shard.id, name) not in self._new

    def _lead(self, id: int, to: str, leads: Counter[str]) -> None:
        leads[to] += 1
        self._do(LeadMoved(id, to))

    def _move(self, id: int, to: str, source: str | None, *, is_counted: bool = True) -> None:
        shard = self._shards[id]
        if source in self._of_node:
            self._of_node[source].discard(id)
            self._load[source] -= shard.weight  # type: ignore[assignment]
        self._of_node[to].add(id)
        self._load[to] += shard.weight  # type: ignore[assignment]
        self._busy.add(id)
        self._new.add((id, to))
        self._left -= is_counted
        self._do(CopyMoved(id, to, source))

    def _do(self, move: Move) -> None:
        self.moves.append(move)
        shard = self._shards[move.shard]
        self._shards[move.shard] = applied([shard], [move])[0]
