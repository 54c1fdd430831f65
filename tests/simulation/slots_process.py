"""What simulated processes are made of: a seed's draw, memory that a crash empties, a disk with transactions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from backend_store.core.partitions import slot_history, slot_moves, slots
from tests.simulation.slots_checks import Entry, Message

if TYPE_CHECKING:
    from tests.simulation.slots_world import World

LEASE_MS = 120
FOREVER_MS = 10**9


class Core(NamedTuple):
    """The code under test; a mutant has another module in one of the places."""

    slots: ModuleType = slots
    book: ModuleType = slot_history
    moves: ModuleType = slot_moves


class Mix:
    """What one seed draws: no two worlds have the same troubles."""

    def __init__(self, rng: Random):
        draw = rng.choice
        self.is_strict = rng.random() < 0.8
        self.on_one_node = rng.random() < 0.3
        self.window_ms = draw([FOREVER_MS, 1250])
        self.page_ids = draw([2, 5, 50])
        self.lost = draw([0.0, 0.02, 0.1])
        self.twice = draw([0.0, 0.1, 0.4])
        self.late = draw([0.0, 0.1, 0.3])
        self.late_ms = draw([60, 500])
        self.crash_ms = draw([60, 200, 800, FOREVER_MS])
        self.plan_ms = draw([5, 5, 100])
        self.resizes = draw([0.2, 0.9])
        self.stale_ms = draw([0, 0, 300])
        """How old a table may be that the metadata store's caches tell."""
        self.move_slots = draw([24, 64, 256])
        self.commit_ms = draw([2, 6, 40])
        self.tick_ms = draw([6, 15, 60])
        self.skew_ms = 0 if self.on_one_node else draw([0, 100])
        self.sloth = draw([0.05, 0.3])


class Process:
    """Has a memory that a crash empties. What it does later, it does in this life or not at all."""

    def __init__(self, world: World):
        self.world = world
        self.is_up = True
        self.life = 0

    def later(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        life = self.life

        def do() -> None:
            if self.is_up and self.life == life:
                what(*args)

        self.world.at(delay_ms, do)

    def commit_time(self) -> float:
        return self.world.rng.uniform(0.3, self.world.mix.commit_ms)

    def crash(self) -> None:
        self.is_up = False
        self.life += 1
        self.die(has_landed=self.world.rng.random() < 0.4)

    def restart(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.wake()

    def die(self, *, has_landed: bool) -> None:
        """The commit in flight is on the disk or it is not; nobody was told either way."""
        raise NotImplementedError

    def wake(self) -> None:
        raise NotImplementedError


class Disk:
    """What of a partition outlives its process."""

    def __init__(self, book: Any):
        self.end = 0
        self.time_ms = 0
        self.book = msgspec.msgpack.encode(book)
        self.unsettled: dict[int, Entry] = {}
        self.ids: dict[bytes, Any] = {}
        self.producers: dict[str, Any] = {}


class Stage:
    """One transaction."""

    def __init__(self, disk: Disk, now_ms: int):
        self.end = disk.end
        self.time_ms = max(disk.time_ms, now_ms)
        self.book = disk.book
        self.entries: list[Entry] = []
        self.settled: dict[int, bool] = {}
        """Offset → whether a consumer settled it, and not the outbox."""
        self.ids: dict[bytes, Any] = {}
        self.producers: dict[str, Any] = {}
        self.records: list[Any] = []
        self.answers: list[Callable[[], None]] = []

    def note(self, record: Any) -> None:
        """A record has a place in the log."""
        if record is not None:
            self.records.append(record)
            self.end += 1

    def append(self, message: Message) -> Entry:
        entry = Entry(self.end, message, self.time_ms)
        self.entries.append(entry)
        self.end += 1
        return entry
