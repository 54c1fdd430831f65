"""A queue's partitions as processes that lose what is not on their disks, and a network that delays and doubles.

Everything is decided by the seed: the kind of queue, the faults and how often, and each single delay. Time is simulated
milliseconds. The real cores decide; what stands here and in `slots_partition` is the shell around them, as small as it
can be: a disk that takes one transaction after the other, an inbox, leases. `slots_checks` watches every step,
`slots_clients` publish and consume.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from backend_store.model import Conflict
from tests.simulation.slots_checks import Checks, Violation
from tests.simulation.slots_partition import Partition
from tests.simulation.slots_process import Core, Mix, Process

PARTITIONS = 4
FAULTS_END_MS = 1800
GIVE_UP_MS = 9000
"""A world that is not at rest so long after its last fault never will be."""


class World:
    def __init__(self, seed: int, core: Core | None = None, breaks: frozenset[str] = frozenset()):
        self.rng = Random(seed)
        self.mix = Mix(self.rng)
        self.core = core or Core()
        self.breaks = breaks
        self.now = 0.0
        self.faults = True
        self._chosen: list[int] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.checks = Checks(self)
        self.meta = Meta(self, self.core.slots.first_table(self.rng.randint(1, 2)))
        self.partitions = [Partition(self, number, self.meta.table) for number in range(PARTITIONS)]

    # ---------------------------------------------------------------------------------------- time and network

    def at(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        self.at_time(self.now + delay_ms, what, *args)

    def at_time(self, time_ms: float, what: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_ms, self._number, what, args))

    def send(self, target: Process | None, what: Callable[..., None], *args: Any) -> None:
        """A datagram: may be late, doubled or lost between machines. Clients (None) have no machine to be down."""
        mix, rng = self.mix, self.rng
        if mix.on_one_node:
            self.at(rng.uniform(0.05, 0.5), _arrive, target, what, args)
            return
        if self.faults and rng.random() < mix.lost:
            return
        late = rng.uniform(0, mix.late_ms) if self.faults and rng.random() < mix.late else 0.0
        self.at(rng.expovariate(1) + 0.2 + late, _arrive, target, what, args)
        if self.faults and rng.random() < mix.twice:
            self.at(rng.uniform(0.2, mix.late_ms), _arrive, target, what, args)

    # --------------------------------------------------------------------------------------------------- faults

    def crash_something(self) -> None:
        if not self.faults:
            return
        processes: list[Process] = [self.meta, *self.partitions]
        down = processes if self.mix.on_one_node else [self.rng.choice(processes)]
        back_ms = self.rng.choice([5, 30, 200])
        for process in down:
            if process.is_up:
                process.crash()
                self.at(back_ms, process.restart)
        self.at(self.rng.expovariate(1 / self.mix.crash_ms), self.crash_something)

    def plan_something(self) -> None:
        """Grows, shrinks, or moves slots that are in use, whenever the last plan is done: while things still drain."""
        if not self.faults:
            return
        rng, core = self.rng, self.core.slots
        if rng.random() < self.mix.resizes:
            size = rng.randint(1, PARTITIONS)
            self.meta.change(lambda table: core.resized(table, size))
        else:
            if rng.random() < 0.5:
                self._chosen = rng.sample(sorted(self.checks.slots_in_use), min(len(self.checks.slots_in_use), 4))
            self.meta.change(lambda table: core.moved(table, self._chosen, rng.choice(table.open_partitions)))
        self.at(rng.expovariate(1 / self.mix.plan_ms), self.plan_something)

    def heal(self) -> None:
        self.faults = False
        for process in (self.meta, *self.partitions):
            process.restart()

    # ------------------------------------------------------------------------------------------------------ run

    def run(self, is_done: Callable[[], bool]) -> None:
        """Until everything is at rest. Raises `Violation`."""
        self.at(self.rng.expovariate(1 / self.mix.crash_ms), self.crash_something)
        self.at(self.rng.uniform(5, 100), self.plan_something)
        self.at(FAULTS_END_MS, self.heal)
        slots, bound = self.core.slots, self.core.slots.MOVE_SLOTS_MAX
        slots.MOVE_SLOTS_MAX = self.mix.move_slots
        try:
            self._run(is_done)
        finally:
            slots.MOVE_SLOTS_MAX = bound

    def _run(self, is_done: Callable[[], bool]) -> None:
        look_ms = FAULTS_END_MS + 100
        while self._events:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)
            if self.now > look_ms:
                look_ms += 50
                if is_done() and self.is_at_rest():
                    return
                if self.now > GIVE_UP_MS:
                    raise Violation(f"not at rest: {self.unrest()[:5] or 'a client has no answer'}")

    def is_at_rest(self) -> bool:
        return not self.unrest()

    def unrest(self) -> list[str]:
        table = self.meta.table
        found = [f"{move} has not arrived" for move in table.moves]
        found += [f"partition {n} still drains" for n, member in table.members.items() if member.role == "draining"]
        for partition in self.partitions:
            keeper = partition.keeper
            found += [f"{partition.number}: {entry} waits" for entry in partition.disk.unsettled.values()]
            for slot, tenures in keeper.book.tenures.items():
                if len(tenures) > 1 or tenures[0].sealed_by or not tenures[0].is_released:
                    found.append(f"{partition.number}: slot {slot} {tenures}")
        return found


def _arrive(target: Process | None, what: Callable[..., None], args: tuple[Any, ...]) -> None:
    if target is None or target.is_up:
        what(*args)


class Meta(Process):
    """The metadata store: one row, the table."""

    def __init__(self, world: World, table: Any):
        super().__init__(world)
        self.table = self._ahead = table
        self._in_commit: Any = None
        self._told: deque[tuple[float, Any]] = deque([(0.0, table)])
        """Tables that caches may still have, each with the time it came."""

    def change(self, plan: Callable[[Any], Any]) -> None:
        """One transaction: reads the table, writes the next one."""
        if not self.is_up:
            return
        try:
            self._ahead = plan(self._ahead)
        except Conflict:
            return
        self._write()

    def _write(self) -> None:
        if self._in_commit is None and self._ahead is not self.table:
            self._in_commit = self._ahead
            self.later(self.commit_time(), self._committed)

    def _committed(self) -> None:
        self._land()
        self._write()

    def _land(self) -> None:
        row = msgspec.msgpack.encode(self._in_commit)
        self.table = msgspec.msgpack.decode(row, type=type(self._in_commit))
        if self._ahead is self._in_commit:
            self._ahead = self.table
        self._in_commit = None
        self._told.append((self.world.now, self.table))
        self.world.checks.planned(self.table)
        for partition in self.world.partitions:
            self.world.send(partition, partition.on_table, self.table)

    def die(self, *, has_landed: bool) -> None:
        if has_landed and self._in_commit is not None:
            self._land()
        self._ahead, self._in_commit = self.table, None

    def wake(self) -> None:
        pass

    def tell(self, target: Process | None, listener: Callable[[Any], None]) -> None:
        world = self.world
        oldest = world.now - world.rng.uniform(0, world.mix.stale_ms) if world.faults else world.now
        while len(self._told) > 1 and self._told[1][0] <= world.now - world.mix.stale_ms:
            self._told.popleft()
        table = [told for time, told in self._told if time <= oldest or told is self._told[0][1]][-1]
        if "tells a table that is not on the disk" in world.breaks:
            table = self._ahead
        world.send(target, listener, table)

    def on_opened(self, move: Any) -> None:
        self.change(lambda table: self.world.core.slots.with_opened(table, move))

    def on_empty(self, number: int, since: int) -> None:
        self.change(lambda table: self.world.core.slots.with_retired(table, number, since))
