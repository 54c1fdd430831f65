"""The coordinator: one row, the lane table, changed by compare-and-set; and the sessions of hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backend_store.core.partitions import slots
from backend_store.model import Conflict
from tests.simulation.lanes.process import Process

if TYPE_CHECKING:
    from tests.simulation.lanes.world import World

SESSION_MS = 3_000
TICK_MS = 200


class Coordinator(Process):
    def __init__(self, world: World, table: Any):
        super().__init__(world, "coordinator")
        self.table = table
        self.sessions: dict[str, tuple[int, float]] = {}
        """By host its incarnation, and until when it counts as alive."""
        self._told: deque[tuple[float, Any]] = deque([(0.0, table)])
        self.later(TICK_MS, self.tick)

    def wake(self) -> None:
        # Sessions last their whole time again: nobody knows what was heard meanwhile.
        self.sessions = {host: (inc, self.world.now + SESSION_MS) for host, (inc, _) in self.sessions.items()}
        self.later(TICK_MS, self.tick)

    def alive(self) -> dict[str, int]:
        return {host: incarnation for host, (incarnation, until) in self.sessions.items() if until > self.world.now}

    def change(self, make: Callable[[Any], Any]) -> bool:
        try:
            table = make(self.table)
        except Conflict:
            return False
        if table is not self.table:
            self.table = table
            self._told.append((self.world.now, table))
            for host in self.world.hosts.values():
                self.world.send(self.name, host, host.on_table, table)
        return True

    def on_heartbeat(self, host: str, incarnation: int, sent_ms: int) -> None:
        known, _ = self.sessions.get(host, (0, 0.0))
        if incarnation < known:
            return
        self.sessions[host] = incarnation, self.world.now + SESSION_MS
        process = self.world.hosts[host]
        self.world.send(self.name, process, process.on_heard, incarnation, sent_ms, self.table, self.alive())

    def tick(self) -> None:
        """Gives every lane whose owner is gone to somebody who may have it."""
        adoption = self.world.core.adoption
        for number, lane in self.table.lanes.items():
            alive = self.alive()
            if adoption.is_alive(lane.owner, alive):
                continue
            able = adoption.adopters(lane, alive)
            if able:
                host = able[0] if self.world.rng.random() < 0.7 else self.world.rng.choice(able)
                self.change(lambda table, number=number, host=host: adoption.adopted(table, number, host, self.alive()))  # type: ignore[misc]
        self.later(TICK_MS, self.tick)

    def on_change(self, make: Callable[[Any], Any], asker: Process, answer: Callable[[bool], None]) -> None:
        """A compare-and-set that a host asks for."""
        self.world.send(self.name, asker, answer, self.change(make))

    def on_opened(self, move: Any) -> None:
        self.change(lambda table: table.with_slots(slots.with_opened(table.slots, move)))

    def tell(self, target: Process | None, listener: Callable[[Any], None]) -> None:
        """A table, perhaps an old one: caches stand between."""
        world = self.world
        oldest = world.now - world.rng.uniform(0, world.mix.stale_ms) if world.faults else world.now
        while len(self._told) > 1 and self._told[1][0] <= world.now - world.mix.stale_ms:
            self._told.popleft()
        told = [table for time, table in self._told if time <= oldest]
        world.send(self.name, target, listener, told[-1] if told else self._told[0][1])
