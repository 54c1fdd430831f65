"""A lane's log as its holders have it together: a model of replication, with nothing in it but its promises.

The owner of the newest epoch that an adopter has taken up appends. A holder has a prefix. An entry is committed when
all that must be in sync have it: those that the coordinator's row names, those of the row that the owner goes by, and
one that the owner is about to take in. What is committed stays; of the rest an adopter has what had reached it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.lanes.process import Violation

if TYPE_CHECKING:
    from tests.simulation.lanes.world import World


class Entry(NamedTuple):
    offset: int
    epoch: int
    time_us: int
    body: Any


class LaneLog:
    def __init__(self, world: World, number: int, holders: tuple[str, ...]):
        self.world = world
        self.number = number
        self.entries: list[Entry] = []
        self.has = dict.fromkeys(holders, 0)
        self.committed = 0
        self.epoch = 0
        self.writer = ""
        self.writers: dict[int, str] = {}
        """By epoch."""

    def take_over(self, host: str, epoch: int) -> bool:
        """From here on the host writes, and nobody of an older epoch; False where a newer one has begun."""
        if epoch <= self.epoch:
            return False
        kept = self.has[host]
        if kept < self.committed:
            raise Violation(f"lane {self.number}: {host} adopts it and lacks {self.committed - kept} committed entries")
        self.epoch, self.writer = epoch, host
        self.writers[epoch] = host
        del self.entries[kept:]
        self.has = {holder: min(has, kept) for holder, has in self.has.items()}
        return True

    def append(self, epoch: int, entry: Entry) -> None:
        """What a deposed owner appends stays on its own disk, and goes when it comes back."""
        if epoch == self.epoch:
            assert entry.offset == len(self.entries)
            self.entries.append(entry)

    def replicate(self, epoch: int, in_sync: set[str], pending: set[str], told: Callable[[int], None]) -> None:
        """The owner's disk and holders within its reach take what there is; says what is committed by then.

        Who is pending must have it, too, and does not count for the minimum: the row does not say yet that it has.
        """
        if epoch != self.epoch:
            return
        world, end = self.world, len(self.entries)
        for holder in self.has:
            if holder == self.writer or world.reach_each_other(self.writer, holder):
                self.has[holder] = end if holder == self.writer or world.rng.random() < 0.9 else self.has[holder]
        row = world.coordinator.table.lanes[self.number]
        required = {*row.in_sync, *in_sync, *pending}
        if len(in_sync) < world.coordinator.table.min_in_sync:
            return
        committed = min(self.has[holder] for holder in required)
        if committed > self.committed:
            first, self.committed = self.committed, committed
            for entry in self.entries[first:committed]:
                world.checks.committed(self.number, entry)
        told(self.committed)
