"""Who uses the simulated queue: producers with stale tables who send again, consumers who are slow or die, readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend_store.core.log.cursor import decode_cursor, encode_positions
from backend_store.core.partitions.slot_history import Barrier, may_read
from backend_store.model import Epoch, Offset, Position
from tests.simulation.slots_checks import Entry, Message, Violation
from tests.simulation.slots_partition import Partition
from tests.simulation.slots_process import FOREVER_MS, LEASE_MS
from tests.simulation.slots_world import FAULTS_END_MS, PARTITIONS, World

ABANDONED_MS = 400
"""Well inside the window: who sends again later than that cannot hope to be recognised."""
NETWORK_MS = 700
"""After that nothing that was sent is still on its way."""
PIPELINED = 4
SILENT_MS = 350
"""A connection that says nothing for so long is taken for broken."""


class Client:
    """Knows a table, perhaps an old one."""

    def __init__(self, world: World, name: str):
        self.world = world
        self.name = name
        self.table = world.meta.table
        self.numbers = 0
        self.is_idle = False
        world.at(world.rng.uniform(0, 30), self.go)

    def go(self) -> None:
        raise NotImplementedError

    def refresh(self) -> None:
        meta = self.world.meta
        self.world.send(meta, meta.tell, None, self._heed)

    def _heed(self, table: Any) -> None:
        if table.version > self.table.version:
            self.table = table

    def publishes(self) -> bool:
        self.is_idle = self.world.now > FAULTS_END_MS
        return not self.is_idle

    def message(self, **what: Any) -> Message:
        self.numbers += 1
        name = (self.name, self.numbers)
        message = Message(name, **what)
        if message.slot is not None:
            self.world.checks.slots_in_use.add(message.slot)
        return message


class Producer(Client):
    """One message after the other, each sent again with the same id until it is confirmed; nobody guards the way, so
    an earlier copy may arrive late."""

    known_by_number = False

    def __init__(self, world: World, name: str):
        self.current: Message | None = None
        self._try = 0
        super().__init__(world, name)

    def go(self) -> None:
        if not self.publishes():
            return
        routing = self.world.core.slots.Routing(self.world.mix.is_strict)
        id_ = b"%s/%d" % (self.name.encode(), self.numbers + 1)
        if self.known_by_number:
            self.current = self.message(slot=routing.slot(key=self.name), key=self.name, producer=self.name)
        elif self.world.mix.is_strict or self.world.rng.random() < 0.5:
            later = self.world.rng.random() < 0.15
            due_ms = 1_000_000 + int(self.world.now) + self.world.rng.randint(20, 500) if later else 0
            slot = routing.slot(key=self.name)
            self.current = self.message(slot=slot, key=self.name, id=id_, due_ms=due_ms, is_ordered=not later)
        else:
            self.current = self.message(slot=routing.slot(dedupe_id=id_), id=id_)
        self.since = self.world.now
        self.send()

    def send(self) -> None:
        message = self.current
        self._try += 1
        if message is None:
            return
        if self._gives_up(message):
            self.current = None
            self.world.at(NETWORK_MS, self.go)
            return
        target = self.table.route(message.slot)
        if target is None or self.world.rng.random() < 0.2:
            self.refresh()
        if target is not None:
            partition = self.world.partitions[target]
            answer = self._answered(message, self._try)
            self.world.send(partition, partition.on_publish, message, self.table.version, answer)
        self.world.at(self.world.rng.choice([10, 40, 90]), self._again, self._try)

    def _gives_up(self, message: Message) -> bool:
        window_ms = self.world.mix.window_ms
        return message.id is not None and window_ms < FOREVER_MS and self.world.now - self.since > ABANDONED_MS

    def _again(self, number: int) -> None:
        if number == self._try:
            self.send()

    def _answered(self, message: Message, number: int) -> Callable[[str], None]:
        def heard(answer: str) -> None:
            if message != self.current:
                return
            if answer == "stored":
                self.world.checks.confirmed.add(message.name)
                self.current = None
                self.world.at(self.world.rng.uniform(1, 40), self.go)
            elif answer == "refused" and number == self._try:
                self.refresh()

        return lambda answer: self.world.send(None, heard, answer)


class NumberedProducer(Producer):
    """Is known by his numbers; a gap is refused."""

    known_by_number = True


class PlainProducer(Client):
    """Messages that nothing is known of; an unknown end is not tried again."""

    def go(self) -> None:
        if self.publishes():
            self._send(self.message())
            self.world.at(self.world.rng.uniform(5, 80), self.go)

    def _send(self, message: Message) -> None:
        partition = self.world.partitions[self.table.spread(message.name[1])]
        partition_heard = self._answered(message)
        self.world.send(partition, partition.on_publish, message, self.table.version, partition_heard)

    def _answered(self, message: Message) -> Callable[[str], None]:
        def heard(answer: str) -> None:
            if answer == "stored":
                self.world.checks.confirmed.add(message.name)
            elif self.world.now < FAULTS_END_MS:
                self.refresh()
                self.world.at(20, self._send, message)

        return lambda answer: self.world.send(None, heard, answer)


class Connection:
    """Bytes arrive in their order, also after the client has turned away; none does once the partition has crashed."""

    def __init__(self, partition: Partition):
        self.partition = partition
        self.life = partition.life
        self.is_open = True
        self.busy_until = 0.0

    def send(self, world: World, what: Callable[..., None], *args: Any) -> None:
        slow = world.rng.uniform(5, 300) if world.faults and world.rng.random() < world.mix.late else 0
        self.busy_until = max(self.busy_until, world.now + world.rng.expovariate(1) + 0.1 + slow)
        world.at_time(self.busy_until, self._arrive, what, args)

    def _arrive(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.is_open = self.is_open and self.partition.is_up and self.partition.life == self.life
        if self.is_open:
            what(*args)


class PipelinedProducer(Client):
    """Has several messages of one key on the way on one connection, as a gateway has for whoever publishes in order."""

    def __init__(self, world: World, name: str):
        self.slot = world.core.slots.Routing(True).slot(key=name)
        self.waiting: list[Message] = []
        """Not confirmed, in their order; the first `sent` of them are on the way."""
        self.sent = 0
        self.heard_at = 0.0
        self.started: dict[Message, float] = {}
        self.connection: Connection | None = None
        self.refused_version = 0
        self.route = world.meta.table
        super().__init__(world, name)

    def go(self) -> None:
        if self.publishes() and len(self.waiting) < 2 * PIPELINED:
            number = b"%s/%d" % (self.name.encode(), self.numbers + 1)
            message = self.message(slot=self.slot, key=self.name, id=number)
            self.waiting.append(message)
            self.started[message] = self.world.now
        if self._gives_up():
            self._turn_away()
            self.waiting.clear()
            self.world.at(NETWORK_MS, self.go)
            return
        self._pump()
        self.is_idle = self.is_idle and not self.waiting
        self.world.at(self.world.rng.uniform(4, 30), self.go)

    def _gives_up(self) -> bool:
        if not self.waiting or self.world.mix.window_ms == FOREVER_MS:
            return False
        return self.world.now - self.started[self.waiting[0]] > ABANDONED_MS

    def _pump(self) -> None:
        if self.world.rng.random() < 0.1:
            self.refresh()
        is_silent = self.sent > 0 and self.world.now - self.heard_at > SILENT_MS
        if is_silent or (self.world.faults and self.world.rng.random() < 0.03):
            self._turn_away()
            self.refresh()
        if not self.sent or "mixes tables on the way" in self.world.breaks:
            # What is on the way together goes by one table: by a newer one, a later one could be taken and these not.
            self.route = self.table
        target = self.route.route(self.slot)
        if target is None or self.route.version <= self.refused_version:
            self.refresh()
            return
        partition = self.world.partitions[target]
        if self.connection is None or self.connection.partition is not partition:
            self.connection = Connection(partition)
        while self.sent < min(PIPELINED, len(self.waiting)):
            message = self.waiting[self.sent]
            self.sent += 1
            self.heard_at = self.world.now
            answer = self._answered(message, self.connection, self.route.version)
            self.connection.send(self.world, partition.on_publish, message, self.route.version, answer)

    def _turn_away(self) -> None:
        """What is on the way may arrive or not: it is sent again, on a new connection, in the same order."""
        self.connection = None
        self.sent = 0

    def _answered(self, message: Message, connection: Connection, version: int) -> Callable[[str], None]:
        def heard(answer: str) -> None:
            if connection is not self.connection:
                return
            self.heard_at = self.world.now
            if answer == "stored":
                self.world.checks.confirmed.add(message.name)
                self.waiting.remove(message)
                self.sent -= 1
            else:
                # Those behind it are refused as well; a newer table says where all of them go.
                self._turn_away()
                self.refused_version = version

        return lambda answer: connection.send(self.world, heard, answer)


class Consumer(Client):
    """Takes a message from any partition; is quick, slow, or never heard of again."""

    def go(self) -> None:
        world = self.world
        self.is_idle = True
        with_messages = [partition for partition in world.partitions if partition.disk.unsettled]
        if with_messages:
            partition = world.rng.choice(with_messages)
            world.send(partition, partition.on_receive, self.name, self._got)
        world.at(world.rng.uniform(2, 8), self.go)

    def _got(self, number: int, entry: Entry) -> None:
        world = self.world
        is_slow = world.faults and world.rng.random() < world.mix.sloth
        think_ms = world.rng.uniform(10, 2 * LEASE_MS) if is_slow else world.rng.uniform(0.1, 4)
        end = world.rng.random() if world.faults else 0
        if end > 0.95:
            return
        if end > 0.85:
            partition = world.partitions[number]
            world.at(
                think_ms, world.send, partition, partition.on_nack, self.name, entry.offset, world.rng.uniform(0, 80)
            )
            return
        world.at(think_ms, self._ack, number, entry, 4)

    def _ack(self, number: int, entry: Entry, tries: int) -> None:
        world = self.world
        partition = world.partitions[number]
        heard: list[str] = []
        world.send(partition, partition.on_ack, self.name, entry.offset, lambda a: world.send(None, heard.append, a))
        if tries:
            world.at(30, lambda: None if heard else self._ack(number, entry, tries - 1))


class Reader(Client):
    """Reads the queue as a stream: partitions side by side, never past a barrier, and goes on from cursors."""

    def __init__(self, world: World, name: str):
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.last: dict[str, tuple[int, int]] = {}
        super().__init__(world, name)

    def go(self) -> None:
        for _ in range(self.world.rng.randint(1, 6)):
            self.read(self.world.rng.randrange(PARTITIONS))
        if self.world.rng.random() < 0.05:
            cursor = encode_positions({p: Position(Epoch(1), Offset(at)) for p, at in self.positions.items()}, uid=1)
            self.positions = {p: int(at.offset) for p, at in decode_cursor(cursor).positions.items()}
        self.is_idle = all(not self._next(number) for number in range(PARTITIONS))
        self.world.at(self.world.rng.uniform(1, 6), self.go)

    def _next(self, number: int) -> Entry | None:
        # Entries of a partition are few enough to be looked through.
        at = self.positions[number]
        return next((e for e in self.world.checks.history[number] if e.offset >= at), None)

    def read(self, number: int) -> None:
        barriers = [Barrier(r.at, r.source, r.source_sealed_at) for r in self.world.checks.openings[number]]
        entry = self._next(number)
        at = entry.offset if entry is not None else self.world.partitions[number].disk.end
        passed = [b for b in barriers if self.positions[number] <= b.opened_at <= at]
        for barrier in sorted(passed):
            ignores = "a reader passes barriers" in self.world.breaks
            if not ignores and not may_read(barriers, barrier.opened_at, self.positions):
                self.positions[number] = barrier.opened_at
                return
        self.positions[number] = at
        if entry is not None:
            self.positions[number] = at + 1
            self._check(entry)

    def _check(self, entry: Entry) -> None:
        message = entry.message
        if message.key is None or not message.is_ordered:
            return
        number, time_ms = self.last.get(message.key, (0, 0))
        if message.name[1] <= number:
            raise Violation(f"{message} is read after number {number} of its key")
        if entry.time_ms < time_ms:
            raise Violation(f"{message} is older than number {number} of its key, {time_ms - entry.time_ms} ms")
        self.last[message.key] = message.name[1], entry.time_ms


def run_world(world: World) -> World:
    """A whole life: some load, some faults, then rest. Raises `Violation`."""
    clients: list[Client] = [Producer(world, f"producer-{n}") for n in range(4)]
    clients += [NumberedProducer(world, f"numbered-{n}") for n in range(2)]
    clients += [PipelinedProducer(world, f"pipelined-{n}") for n in range(2)]
    clients += [Reader(world, "reader")]
    if not world.mix.is_strict:
        clients += [PlainProducer(world, f"plain-{n}") for n in range(2)]
    clients += [Consumer(world, f"consumer-{n}") for n in range(4)]
    world.run(lambda: all(client.is_idle for client in clients))
    world.checks.at_rest()
    return world
