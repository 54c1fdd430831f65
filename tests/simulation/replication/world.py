"""A cluster of one seed: nodes, coordinator, managers, clients, and a network that has no manners.

Time is simulated milliseconds. Nothing here or in what it drives asks the real clock or a generator of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from backend_store.core.replication.messages import Fetched
from backend_store.core.replication.record import NodeId
from tests.simulation.replication.checks import Checks, Violation
from tests.simulation.replication.clients import Consumer, Producer
from tests.simulation.replication.coordinator import Coordinator, Manager
from tests.simulation.replication.faults import Faults
from tests.simulation.replication.mix import Mix
from tests.simulation.replication.moves import MORE_NODES, Moves
from tests.simulation.replication.node import Node
from tests.simulation.replication.renewals import Renewals

HEALING_MS = 20_000
"""So long after the last fault everything must be in order again."""


class World:
    def __init__(
        self,
        seed: int,
        *,
        breaks: frozenset[str] = frozenset(),
        duration_ms: int = 60_000,
        moves: bool = False,
        renews: bool = False,
    ):
        """`breaks`: duties of a shell that nodes do not do, by name. `moves`: replicas go from node to node.
        `renews`: followers take all their rows anew."""
        self.seed = seed
        self.breaks = breaks
        self.rng = Random(seed)
        self.mix = Mix(self.rng)
        self.now = 0.0
        self.healed_ms = duration_ms - HEALING_MS
        self.duration_ms = duration_ms
        self.is_healed = False
        self.cut: set[tuple[str, str]] = set()
        self.leases_hold = self.rng.random() < 0.5
        """The coordinator never ends a session early, in this world."""
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0
        self.checks = Checks(self)
        self.coordinator = Coordinator(self)
        self.moves = Moves(self) if moves else None
        self.renewals = Renewals(self) if renews else None
        more = MORE_NODES if moves else 0
        self.nodes = [Node(self, NodeId(f"n{number}")) for number in range(1, self.mix.nodes + more + 1)]
        self.by_name = {node.name: node for node in self.nodes}
        for number in range(self.mix.partitions):
            chosen = self.rng.sample(self.nodes, self.mix.replicas)
            self.coordinator.found(number, {node.name: node.disk.id for node in chosen})
            if self.moves is not None:
                self.moves.wanted[number] = tuple(node.name for node in chosen)
        self.managers = {name: Manager(self, name) for name in ("manager 1", "manager 2")}
        self.producers = [Producer(self, number, number % self.mix.partitions) for number in range(3)]
        if self.mix.consumes:
            self.consumers = [Consumer(self, number, number) for number in range(self.mix.partitions)]

    # -------------------------------------------------------------------------------------------- time and network

    def at(self, delay_ms: float, what: Callable[..., Any], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._number, what, args))

    def send(self, source: str, target: str, what: Callable[..., None], *args: Any) -> None:
        """A datagram: may be late, doubled, out of order or lost."""
        mix, rng = self.mix, self.rng
        if not self.is_healed:
            if rng.random() < mix.lost:
                return
            if rng.random() < mix.twice:
                self._deliver(source, target, what, args)
        self._deliver(source, target, what, args)

    def _deliver(self, source: str, target: str, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        mix, rng = self.mix, self.rng
        delay_ms = rng.expovariate(0.5) + 0.2
        if not self.is_healed and rng.random() < mix.late:
            delay_ms += rng.uniform(20, mix.late_ms)

        def arrive() -> None:
            if (source, target) in self.cut or (target == "coordinator" and not self.coordinator.is_up):
                return
            what(*args)

        self.at(delay_ms, arrive)

    def replies(self, source: str, target: str, what: Callable[..., None]) -> Callable[..., None]:
        """What is called at `source` and done at `target`, if it gets there."""
        return lambda *args: self.send(source, target, what, *args)

    def maybe_flipped(self, message: Any) -> Any:
        """A link may flip a bit of an entry that it carries."""
        if self.is_healed or type(message) is not Fetched or not message.entries:
            return message
        if self.rng.random() >= self.mix.damaged:
            return message
        data = bytearray(message.entries[0])
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return Fetched(
            message.partition,
            message.epoch,
            message.request,
            message.start,
            (bytes(data), *message.entries[1:]),
            message.high_watermark,
            message.trim,
            message.sent_ms,
        )

    # ---------------------------------------------------------------------------------------------------------- run

    def heal(self) -> None:
        self.is_healed = True
        self.cut.clear()
        self.coordinator.start()
        for node in self.nodes:
            node.go_on()
            node.start()

    def run(self) -> Checks:
        """Raises `Violation`, or an assertion of the code under test."""
        for node in self.nodes:
            node.start()
        self.faults = Faults(self)
        self.at(self.healed_ms, self.heal)
        while self._events and self.now <= self.duration_ms:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)
        self.checks.at_the_end()
        return self.checks


def broken_by(seed: int, **options: Any) -> str | None:
    """What a world of this seed breaks, if anything: a promise, an assertion of the core, or the core itself."""
    try:
        World(seed, **options).run()
    except (Violation, AssertionError, LookupError, ValueError) as broken:
        return f"seed {seed}: {type(broken).__name__}: {broken}"
    return None
