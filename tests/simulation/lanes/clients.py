"""Who sends, receives, and reads in the order of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backend_store.core.partitions.slots import Routing
from tests.simulation.lanes.checks import Checks
from tests.simulation.lanes.host import Host
from tests.simulation.lanes.process import FOREVER_MS, Message, Process

if TYPE_CHECKING:
    from tests.simulation.lanes.world import World

ABANDONED_MS = 8_000
"""Well inside the window: who sends again later than that cannot hope to be recognised."""
NETWORK_MS = 8_000
"""After that nothing that was sent is still on its way, and no host that stood still has just gone on."""


class Client:
    """Knows a table, perhaps an old one, and has a machine of its own that never fails."""

    def __init__(self, world: World, name: str):
        self.world = world
        self.name = name
        self.table = world.first_table
        self.number = 0
        self.is_idle = False
        world.at(world.rng.uniform(200, 1500), self.go)

    def go(self) -> None:
        raise NotImplementedError

    def refresh(self) -> None:
        coordinator = self.world.coordinator
        self.world.send(self.name, coordinator, coordinator.tell, None, self._heed)

    def _heed(self, table: Any) -> None:
        if table.version > self.table.version:
            self.table = table

    def publishes(self) -> bool:
        self.is_idle = not self.world.is_loaded
        return not self.is_idle

    def some_host(self, cluster: str) -> Host:
        return self.world.rng.choice([host for host in self.world.hosts.values() if host.cluster == cluster])


class Producer(Client):
    """One message after the other, each sent again with the same id, at any host, until it is confirmed. Nobody guards
    the way, so an earlier copy may arrive after a later message."""

    has_key = True

    def __init__(self, world: World, name: str):
        self.current: Message | None = None
        self._try = 0
        self.since = 0.0
        super().__init__(world, name)

    def go(self) -> None:
        if not self.publishes():
            return
        self.number += 1
        id_ = b"%s/%d" % (self.name.encode(), self.number)
        key = self.name if self.has_key else None
        slot = Routing(self.world.mix.is_strict).slot(key=key, dedupe_id=id_)
        self.world.slots_in_use.append(slot) if slot is not None else None
        self.current = Message((self.name, self.number), slot, key, id_)
        self.since = self.world.now
        self.send()

    def send(self) -> None:
        message = self.current
        self._try += 1
        if message is None or message.slot is None:
            return
        if self.world.mix.window_ms < FOREVER_MS and self.world.now - self.since > ABANDONED_MS:
            self.current = None
            self.world.at(NETWORK_MS, self.go)
            return
        lane = self.table.slots.route(message.slot)
        if lane is None or self.world.rng.random() < 0.1:
            self.refresh()
        if lane is not None:
            host = self.some_host(self.table.lanes[lane].cluster)
            answer = self._answered(message, self._try)
            self.world.send(self.name, host, host.on_publish, message, self.table.slots.version, 0, answer)
        self.world.at(self.world.rng.choice([60, 300, 900]), self._again, self._try)

    def _again(self, number: int) -> None:
        if number == self._try:
            self.send()

    def _answered(self, message: Message, number: int) -> Callable[[Any], None]:
        def heard(answer: Any) -> None:
            if message != self.current:
                return
            if answer == "stored":
                self.world.checks.confirmed.add(message.name)
                self.current = None
                self.world.at(self.world.rng.uniform(20, 500), self.go)
            elif type(answer).__name__ == "Moved" and number == self._try:
                self.refresh()

        return lambda answer: self.world.send("", None, heard, answer)


class IdProducer(Producer):
    """Known by ids alone: each message may have another home."""

    has_key = False


class PlainProducer(Client):
    """Messages that nothing is known of. An open end is not tried again; a refusal is, for it says: nothing written."""

    def go(self) -> None:
        if self.publishes():
            self.number += 1
            self._send(Message((self.name, self.number)))
            self.world.at(self.world.rng.uniform(50, 400), self.go)

    def _send(self, message: Message) -> None:
        clusters = {self.table.lanes[number].cluster for number in self.table.slots.open_partitions}
        host = self.some_host(self.world.rng.choice(sorted(clusters)))
        self.world.checks.refused_for_good.discard(message.name)
        version = self.table.slots.version
        self.world.send(self.name, host, host.on_publish, message, version, 0, self._answered(message), once=True)

    def _answered(self, message: Message) -> Callable[[Any], None]:
        def heard(answer: Any) -> None:
            if answer == "stored":
                self.world.checks.confirmed.add(message.name)
                return
            self.world.checks.refused_for_good.add(message.name)
            self.refresh()
            if self.world.is_loaded:
                self.world.at(self.world.rng.uniform(50, 300), self._send, message)

        return lambda answer: self.world.send("", None, heard, answer, once=True)


class Consumer(Client):
    """Asks one host for messages; is quick, slow, or never heard of again. Acks at any host, again until answered."""

    def __init__(self, world: World, name: str, host: Host):
        self.host = host
        super().__init__(world, name)

    def go(self) -> None:
        self.is_idle = True
        self.world.send(self.name, self.host, self.host.on_receive, self._handed, once=True)
        self.world.at(self.world.rng.uniform(0.3, 2) * (self.world.mix.poll_ms if self.world.faults else 100), self.go)

    def _handed(self, host: Host, handed: Any) -> None:
        life = host.life
        self.world.send(host.name, None, self._got, host, life, handed, once=True)

    def _got(self, host: Host, life: int, handed: Any) -> None:
        world, mix = self.world, self.world.mix
        fate = world.rng.random() if world.faults else 1.0
        if fate < mix.sloth / 2:
            return
        think_ms = world.rng.uniform(0.5, mix.think_ms if world.faults else 50)
        if fate < mix.sloth:
            think_ms *= 10
        elif fate < 2 * mix.sloth:
            self._extend(handed.receipt)
            think_ms += mix.lease_ms
        world.at(think_ms, self._ack, handed.receipt, [], 8)

    def _extend(self, receipt: Any) -> None:
        asked, host = self.world.now, self.host

        def extended(lease_ms: int) -> None:
            # Counted as an agent counts: from when it was asked for.
            self.world.checks.extended(receipt, asked + lease_ms)

        host_answer: Callable[[Any], None] = extended
        self.world.send(
            self.name, host, host.on_receipt, receipt, "extend", (self.world.mix.lease_ms * 2,), host_answer
        )

    def _ack(self, receipt: Any, heard: list[Any], tries: int) -> None:
        if heard or not tries:
            return
        hosts = [host for host in self.world.hosts.values() if host.cluster == self.host.cluster]
        host = self.world.rng.choice(hosts)
        answer: Callable[[Any], None] = heard.append
        self.world.send(self.name, host, host.on_receipt, receipt, "ack", (), answer)
        self.world.at(self.world.rng.choice([150, 600]), self._ack, receipt, heard, tries - 1)


class Merger(Process):
    """Reads all lanes in the order of time. What it emitted, and where it stands, is one transaction of its disk."""

    def __init__(self, world: World, lanes: list[int]):
        super().__init__(world, "merger")
        self.disk = world.core.merge.MergePlace(0, dict.fromkeys(lanes, 0))
        self.wake()

    def wake(self) -> None:
        world = self.world
        self.table = world.first_table
        self.merge = world.core.merge.Merge(
            self.disk, now_ms=int(world.now), is_strict=world.mix.merges_strictly, window_ms=1000, held_max=50
        )
        self.staged: tuple[list[Any], list[Any]] = ([], [])
        self.in_commit: tuple[list[Any], list[Any], Any] | None = None
        self.later(100, self.tick)

    def tick(self) -> None:
        world = self.world
        if world.rng.random() < 0.3:
            world.send(self.name, world.coordinator, world.coordinator.tell, self, self._heed)
        for number, row in self.table.lanes.items():
            offset = self.merge.wants(number)
            if offset is not None and row.owner is not None:
                host = world.hosts[row.owner.host]
                world.send(self.name, host, self._read, host, number, offset, self.life)
        self._advance()
        self.later(80, self.tick)

    def _heed(self, table: Any) -> None:
        if table.version > self.table.version:
            self.table = table

    def _read(self, host: Host, number: int, offset: int, life: int) -> None:
        """At the owner, or who was it: what it knows to be committed."""
        owned = host.owned.get(number)
        if owned is None:
            return
        entry_of = self.world.core.merge.LaneEntry
        end = owned.end if "reads what is not committed" in self.world.breaks else owned.high
        entries = [
            entry_of(e.offset, e.time_us, e.body if isinstance(e.body, Message) else None)
            for e in owned.entries[offset : min(end, offset + self.world.mix.read_entries)]
        ]
        self.world.send(host.name, self, self._take, life, number, entries, end)

    def _take(self, life: int, number: int, entries: list[Any], end: int) -> None:
        if life != self.life:
            return
        self.staged[0].extend(self.merge.take(number, entries, end=end, now_ms=int(self.world.now)))
        self._advance()

    def _advance(self) -> None:
        self.staged[1].extend(self.merge.advance(int(self.world.now)))
        if self.in_commit is None and (self.staged[0] or self.staged[1]):
            self.in_commit = (*self.staged, self.merge.place)
            self.staged = [], []
            self.later(self.world.rng.uniform(1, 30), self._committed)

    def _committed(self) -> None:
        self._land()
        self._advance()

    def _land(self) -> None:
        assert self.in_commit is not None
        late, merged, place = self.in_commit
        self.in_commit = None
        self.disk = place
        self.world.checks.emitted(late, merged)

    def die(self) -> None:
        if self.in_commit is not None and self.world.rng.random() < 0.5:
            self._land()


__all__ = ["Checks", "Client", "Consumer", "IdProducer", "Merger", "PlainProducer", "Producer"]
