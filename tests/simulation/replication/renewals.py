"""Followers that take all their rows anew, as they do when their disk has changed what was written, while everything
else happens.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from backend_store.core.replication.follower import Follower

if TYPE_CHECKING:
    from tests.simulation.replication.node import Node
    from tests.simulation.replication.world import World

RENEW_MS = 1_500


class Renewals:
    def __init__(self, world: World):
        self.world = world
        self._rng = Random(world.seed + 2)
        world.at(RENEW_MS, self._go_on)

    def _go_on(self) -> None:
        world, rng = self.world, self._rng
        if world.is_healed:
            return
        number, record = rng.choice(list(world.coordinator.records.items()))
        followers = [name for name in record.replicas if name != record.leader]
        node = world.by_name[rng.choice(followers)] if followers else None
        if node is not None and node.is_up and number in node.replicas:
            node.do(self._renew, node, number)
        world.at(rng.expovariate(1 / RENEW_MS), self._go_on)

    def _renew(self, node: Node, number: int) -> None:
        """As a shell asks it: while enough others are in sync."""
        replica = node.replicas[number]
        record = replica.record
        if record is None or not isinstance(replica.role, Follower):
            return
        others = [name for name in record.isr if name != node.name]
        if len(others) >= record.min_in_sync and replica.renew(now_ms=node.clock()):
            self.world.checks.counts["renewals"] += 1
            node.settle(number)
