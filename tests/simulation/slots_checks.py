"""What holds at every step, whatever fails: nothing confirmed is lost, nothing is stored twice, keys stay in order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.slots_partition import Partition
    from tests.simulation.slots_process import Stage
    from tests.simulation.slots_world import World


class Violation(Exception):
    """A promise is broken."""


class Message(NamedTuple):
    name: tuple[str, int]
    """Who published it, and as which of his messages: the same however often it is sent or moved on."""
    slot: int | None = None
    key: str | None = None
    id: bytes | None = None
    producer: str | None = None
    """Known by its producer's number instead of an id."""
    due_ms: int = 0
    is_ordered: bool = True
    """Published after the key's previous message, and for now."""


class Entry(NamedTuple):
    offset: int
    message: Message
    time_ms: int


class Hold(NamedTuple):
    consumer: str
    partition: int
    offset: int
    until: float


class Checks:
    def __init__(self, world: World):
        self.world = world
        self.slots_in_use: set[int] = set()
        self.confirmed: set[tuple[str, int]] = set()
        self.delivered: set[tuple[str, int]] = set()
        self.acked: set[tuple[str, int]] = set()
        self._acked_places: set[tuple[int, int]] = set()
        self.history: defaultdict[int, list[Entry]] = defaultdict(list)
        """Every entry that was ever committed, by partition: the stream that readers read."""
        self._places: dict[tuple[int, int], tuple[str, int]] = {}
        self.openings: defaultdict[int, list[Any]] = defaultdict(list)
        self._stored: defaultdict[bytes | tuple[str, int], list[float]] = defaultdict(list)
        self._first: dict[str, int] = {}
        self._holds: dict[str, Hold] = {}
        self.counts: defaultdict[str, int] = defaultdict(int)

    # ------------------------------------------------------------------------------------------------ committed

    def landed(self, partition: Partition, stage: Stage) -> None:
        """A transaction is on a partition's disk."""
        for entry in stage.entries:
            if partition.keeper.book.role == "retired":
                raise Violation(f"{entry.message} is stored in partition {partition.number}, which is removed")
            self._stored_once(entry)
            self.history[partition.number].append(entry)
            self._places[partition.number, entry.offset] = entry.message.name
        for offset, by_consumer in stage.settled.items():
            entry = partition.disk.unsettled[offset]
            if by_consumer:
                self.acked.add(entry.message.name)
                self._acked_places.add((partition.number, offset))
            hold = self._holds.get(entry.message.key or "")
            if hold is not None and (hold.partition, hold.offset) == (partition.number, offset):
                del self._holds[entry.message.key or ""]
        for record in stage.records:
            self.counts[type(record).__name__] += 1
            if type(record).__name__ == "SlotsOpened":
                self.openings[partition.number].append(record)

    def _stored_once(self, entry: Entry) -> None:
        message = entry.message
        name = message.id or (message.name if message.producer else None)
        if name is None:
            return
        window_ms = self.world.mix.window_ms - 2 * self.world.mix.skew_ms
        before = self._stored[name]
        if any(self.world.now - time < window_ms for time in before):
            raise Violation(f"{message} is stored twice")
        before.append(self.world.now)

    def answered(self, message: Message, place: tuple[int, int]) -> None:
        """A publish is confirmed: the answer names the place of the message, or of the first of its repetitions."""
        if place != (-1, -1) and self._places[place] != message.name:
            raise Violation(f"{message} is said to be at {place}, where {self._places[place]} is")

    def owners(self) -> None:
        """After any book has changed: at most one partition takes messages for a slot."""
        seen = 0
        for partition in self.world.partitions:
            taken = partition.keeper.taken & ~(1 << self.world.core.slots.UNKEYED)
            if seen & taken:
                raise Violation("two partitions take messages for one slot")
            seen |= taken

    def planned(self, table: Any) -> None:
        """A table is on the disk."""
        self.counts["tables"] += 1
        self.counts["retired"] += sum(member == ("retired", table.version) for member in table.members.values())
        for number, member in table.members.items():
            if member.role == "retired":
                self.is_empty(self.world.partitions[number])

    def is_empty(self, partition: Partition) -> None:
        if partition.disk.unsettled:
            raise Violation(
                f"partition {partition.number} is removed with {len(partition.disk.unsettled)} messages in it"
            )

    # ------------------------------------------------------------------------------------------------ delivered

    def leased(self, partition: int, entry: Entry, consumer: str, until: float) -> None:
        message = entry.message
        is_known = message.id is not None or message.producer is not None
        if (partition, entry.offset) in self._acked_places or (is_known and message.name in self.acked):
            raise Violation(f"{message} is delivered after its ack")
        if self.world.mix.is_strict and message.key is not None:
            hold = self._holds.get(message.key)
            if hold is not None and hold.until > self.world.now:
                raise Violation(f"{message} of {partition} is delivered while {hold} holds its key")
            self._holds[message.key] = Hold(consumer, partition, entry.offset, until)
            if message.is_ordered and message.name not in self.delivered:
                if message.name[1] <= self._first.get(message.key, 0):
                    raise Violation(f"{message} is delivered after number {self._first[message.key]} of its key")
                self._first[message.key] = message.name[1]
        self.delivered.add(message.name)

    def returned(self, partition: int, offset: int, key: str | None) -> None:
        hold = self._holds.get(key or "")
        if hold is not None and (hold.partition, hold.offset) == (partition, offset):
            del self._holds[key or ""]

    # ------------------------------------------------------------------------------------------------- at rest

    def at_rest(self) -> None:
        lost = self.confirmed - self.acked
        if lost:
            raise Violation(f"{len(lost)} confirmed messages were never settled: {sorted(lost)[:3]}")
