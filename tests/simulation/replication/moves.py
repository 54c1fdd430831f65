"""Replicas that move while everything else happens: who keeps what is drawn anew again and again.

The shells' part of it is here as well: a leader that is not wanted hands over, a node that is no replica any more lets
go and deletes what it has, and begins a new life when it is wanted again.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from backend_store.core.replication.moving import letting_go
from backend_store.core.replication.record import Change, NodeId, PartitionRecord
from tests.simulation.replication.disk import Image

if TYPE_CHECKING:
    from tests.simulation.replication.node import Node
    from tests.simulation.replication.world import World

MORE_NODES = 2
MOVE_MS = 3_000
DELETES_AT_ONCE = "deletes before it has let go"


class Moves:
    def __init__(self, world: World):
        self.world = world
        self._rng = Random(world.seed + 1)
        self.wanted: dict[int, tuple[NodeId, ...]] = {}
        world.at(MOVE_MS, self._go_on)

    def _go_on(self) -> None:
        world, rng = self.world, self._rng
        if world.is_healed:
            return
        number = rng.choice(list(self.wanted))
        names = [node.name for node in world.nodes]
        self.wanted[number] = tuple(rng.sample(names, world.mix.replicas))
        world.checks.counts["moves"] += 1
        world.at(rng.expovariate(1 / MOVE_MS), self._go_on)

    # ------------------------------------------------------------------------------------------------- a node's part

    def looked(self, node: Node) -> None:
        for number in list(node.replicas):
            self._look_at(node, number)
        if any(self._needs_another_life(node, number) for number in self.wanted):
            node.crash()
            self.world.at(20, node.start)

    def _needs_another_life(self, node: Node, number: int) -> bool:
        """It is wanted, and has let go in this life, or may have."""
        if node.name not in self.wanted[number] or node.me is None:
            return False
        replica = node.replicas.get(number)
        record = None if replica is None else replica.record
        has_let_go = record is not None and record.left.get(node.name) == node.me.inc
        return replica is None or has_let_go

    def _look_at(self, node: Node, number: int) -> None:
        replica, wanted = node.replicas[number], self.wanted[number]
        if replica.leader is not None:
            targets = [name for name in wanted if name in replica.leader.record.isr and name != node.name]
            if node.name not in wanted and targets and not replica.leader.reshaping.is_leaving:
                replica.hand_over(self._rng.choice(targets), now_ms=node.clock())
                node.settle(number)
        elif replica.record is not None and node.me is not None and node.disk.images[number].stored.end:
            change = letting_go(replica.record, node.me, wanted)
            if change is not None and DELETES_AT_ONCE in self.world.breaks:
                self._delete(node, number, change.record.epoch)
            elif change is not None:
                node.call(self.world.coordinator.on_change, partial(self._let_go, node, number), change)

    def _let_go(self, node: Node, number: int, is_made: bool, change: Change, found: PartitionRecord) -> None:
        # Another life of this process may have been admitted since it asked: it keeps what it has.
        is_same = node.me is not None and change.record.left[node.name] == node.me.inc
        if (is_made or found == change.record) and is_same and number in node.replicas:
            self._delete(node, number, change.record.epoch)

    def _delete(self, node: Node, number: int, epoch: int) -> None:
        self.world.checks.counts["let go"] += 1
        if self.world.mix.mode == "async":
            image, aside = node.disk.images[number], Image()
            # Whoever has an entry of the leader's own epoch has nothing below it that the leader lacks.
            has_tail = node.replicas[number].log.last_epoch < epoch
            aside.quarantine = image.quarantine + (image.entries if has_tail else [])
            node.disk.aside.append(aside)
        node.forget(number)
        node.disk.images[number] = Image()
