"""What simulated hosts are made of: a seed's draw, the code under test, and processes that crash and stand still."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from backend_store.core.host_lanes import adoption, agent, lending, merge, routing, slot_log, stamping, table

if TYPE_CHECKING:
    from tests.simulation.lanes.world import World

FOREVER_MS = 10**9
FAULTS = ["crash", "pause", "cut", "island", "clock", "coordinator", "owner", "power", "merger"]


class Core(NamedTuple):
    """The code under test; a mutant has other modules in these places."""

    # In the order in which they import each other.
    table: ModuleType = table
    adoption: ModuleType = adoption
    routing: ModuleType = routing
    stamping: ModuleType = stamping
    slot_log: ModuleType = slot_log
    lending: ModuleType = lending
    agent: ModuleType = agent
    merge: ModuleType = merge


class Violation(Exception):
    """A promise is broken."""


class Message(NamedTuple):
    name: tuple[str, int]
    """Who published it, and as which of his messages: the same however often it is sent."""
    slot: int | None = None
    key: str | None = None
    id: bytes | None = None


class Mix:
    """What one seed draws: no two worlds have the same troubles."""

    def __init__(self, rng: Random):
        draw = rng.choice
        self.is_strict = rng.random() < 0.6
        self.mode = draw(["memory", "replicated"])
        self.merges_strictly = rng.random() < 0.4
        self.clusters = draw([1, 1, 2])
        self.window_ms = draw([FOREVER_MS, 40_000])
        """Within which an id is known."""
        self.lost = draw([0.0, 0.01, 0.05])
        self.twice = draw([0.0, 0.05, 0.3])
        self.late = draw([0.0, 0.05, 0.2])
        self.late_ms = draw([100, 1000, 3000])
        self.fault_ms = draw([400, 1200, 4000, FOREVER_MS])
        self.faults = rng.sample(FAULTS, 5)
        self.plan_ms = draw([FOREVER_MS, 300, 3000])
        self.stale_ms = draw([0, 0, 2000])
        """How old a table may be that is told to clients."""
        self.commit_ms = draw([3, 20, 150])
        self.skew_ms = draw([0, 50, 2000])
        self.drift = draw([0.0, 0.01])
        self.lease_ms = draw([400, 3000, 10_000])
        self.loan_messages = draw([1, 4, 100])
        self.poll_ms = draw([100, 100, 900])
        """Between two messages that a consumer asks for: how long loans lie at their agents hangs on it."""
        self.think_ms = draw([50, 1500])
        self.sloth = draw([0.02, 0.15])
        """Of consumers that are never heard of again, or only much later."""
        self.page_ids = draw([2, 50])
        self.read_entries = draw([3, 64])


class Process:
    """Has a memory that a crash empties. What it does later, it does in this life or not at all."""

    def __init__(self, world: World, name: str):
        self.world = world
        self.name = name
        self.is_up = True
        self.is_paused = False
        self.life = 1
        self._stalled: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    @property
    def runs(self) -> bool:
        return self.is_up and not self.is_paused

    def later(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        self.world.at(delay_ms, self.do, self.life, what, args)

    def do(self, life: int, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.is_up and self.life == life:
            if self.is_paused:
                self._stalled.append((life, what, args))
            else:
                what(*args)

    def arrive(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Bytes reach the machine: a process that stands still reads them when it goes on."""
        if self.is_up:
            self.do(self.life, what, args)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        stalled, self._stalled = self._stalled, []
        for life, what, args in stalled:
            self.do(life, what, args)

    def crash(self) -> None:
        self.is_up = False
        self.is_paused = False
        self._stalled.clear()
        self.life += 1
        self.die()

    def restart(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.wake()

    def die(self) -> None:
        """What the end of the process has to say to the rest of the world."""

    def wake(self) -> None:
        raise NotImplementedError
