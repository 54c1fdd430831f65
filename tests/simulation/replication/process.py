"""A simulated machine: it may be down, or paused, and has a clock of its own and a disk that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backend_store.core.replication.record import NodeId
from tests.simulation.replication.coordinator import COORDINATOR
from tests.simulation.replication.disk import NodeDisk
from tests.simulation.replication.mix import DRIFT_MAX

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

Reply = Callable[..., None]


class Process:
    def __init__(self, world: World, name: NodeId):
        self.world = world
        self.name = name
        self.disk = NodeDisk(f"{name}/0")
        self.disks = 1
        self.is_up = False
        self.life = 0
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """While it is paused: what has come meanwhile."""
        self._rate = 1 + world.rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        self.wall_skew_ms = 0

    def do(self, what: Callable[..., None], *args: Any) -> None:
        """Something reaches this node."""
        if not self.is_up:
            return
        if self.held is not None:
            self.held.append((what, args))
        else:
            what(*args)

    def later(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        life = self.life

        def go() -> None:
            if self.life == life:
                self.do(what, *args)

        self.world.at(delay_ms, go)

    def clock(self) -> int:
        return 1_000_000 + int(self.world.now * self._rate)

    def wall(self) -> int:
        return 10_000_000 + int(self.world.now) + self.wall_skew_ms

    def replace_disk(self) -> None:
        self.world.checks.lost_disks[self.disk.id] = self.disk
        self.disk = NodeDisk(f"{self.name}/{self.disks}")
        self.disks += 1

    def pause(self) -> None:
        if self.is_up and self.held is None:
            self.held = []

    def go_on(self) -> None:
        held, self.held = self.held, None
        for what, args in held or ():
            self.do(what, *args)

    def call(self, what: Callable[..., None], reply: Reply, *args: Any) -> None:
        """Asks the coordinator."""
        world = self.world
        world.send(self.name, COORDINATOR, what, *args, world.replies(COORDINATOR, self.name, self.in_life(reply)))

    def in_life(self, what: Callable[..., None]) -> Callable[..., None]:
        life = self.life

        def go(*args: Any) -> None:
            if self.life == life:
                self.do(what, *args)

        return go
