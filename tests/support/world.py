"""One partition in a world under the test's control: time stands still, and a commit lands when the test says so, or
never.

The partition, its view and the rows are real, over a memory engine; only the event loop and the writer thread are
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from backend_store.client.queue import EmbeddedQueue
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.leasing import ReceiptKey
from backend_store.core.leases.receipts import SUFFIXES, by_token
from backend_store.core.leases.session_snapshot import Detached, KeptLease
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of, plain_blocks
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.ready.work_queue import WorkView
from backend_store.model import Epoch, Offset, Published, PushqError, QueueConfig, QueueDefinition
from backend_store.node.commit.cycle_budget import CycleBudget
from backend_store.node.log.apply import read_state
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions
from backend_store.node.views.factory import core_of
from backend_store.node.views.scan_scheduler import ScanScheduler
from backend_store.node.views.view import View
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine

REPLICA = 7
SECRET = b"s" * 32
START_MS = 1_700_000_000_000
VISIBILITY_MS = 30_000


class ManualCommitter:
    """Holds commit requests until the test makes a commit."""

    def __init__(self, world: World):
        self._world = world
        self._waiting: dict[Partition, None] = {}
        self._riders: dict[Partition, None] = {}
        self.is_shared = False
        self.room = CycleBudget()
        self._in_flight: tuple[Batch, list[Partition]] | None = None
        self.is_on_disk = False
        """The batch in flight is durable, but nobody knows yet."""

    def request(self, member: Partition) -> None:
        self._waiting[member] = None

    def wait_for_room(self, member: Partition) -> None:
        self._waiting[member] = None

    def ride_along(self, member: Partition) -> None:
        self._riders[member] = None

    def request_soon(self, member: Partition) -> None:
        self._waiting[member] = None

    @property
    def is_in_flight(self) -> bool:
        return self._in_flight is not None

    @property
    def is_asked(self) -> bool:
        """Whether a commit was requested."""
        return bool(self._waiting)

    def prepare(self) -> bool:
        """Hands pending work to the disk. False if there is none, or the disk is busy."""
        if self._in_flight is not None or not self._waiting:
            return False
        members = list(self._waiting | self._riders)
        self._waiting.clear()
        self._riders.clear()
        batch = Batch()
        self.room.begin()
        for member in members:
            member.join()
        members += [member for member in self._waiting | self._riders if member not in members]
        self._waiting.clear()
        self._riders.clear()
        for member in members:
            member.prepare(batch)
        self._in_flight = batch, members
        return True

    def reach_the_disk(self) -> None:
        """Makes the batch durable, before anybody knows it."""
        assert self._in_flight is not None
        if not self.is_on_disk:
            self.is_on_disk = True
            self._world.engine.commit(self._in_flight[0], lambda: None)

    def land(self) -> None:
        assert self._in_flight is not None
        self.reach_the_disk()
        (_, members), self._in_flight = self._in_flight, None
        self.is_on_disk = False
        for member in members:
            member.committed()

    def fail(self, error: PushqError) -> None:
        assert self._in_flight is not None and not self.is_on_disk
        (_, members), self._in_flight = self._in_flight, None
        for member in members:
            member.failed(error)


class Consumer:
    """A lease holder that records what it is told."""

    gateway = ""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.released_total = 0
        self.lost_receipts: list[str] = []
        self.sendable_calls = 0

    def released(self, count: int) -> None:
        self.released_total += count

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        self.lost_receipts.extend(receipts)

    def sendable(self) -> None:
        self.sendable_calls += 1


class World:
    """See the module docstring. `kind`: the kind of queue; `config`: its other settings."""

    def __init__(self, *, kind: str = "work", engine: MemoryEngine | None = None, config: QueueConfig | None = None):
        self.kind = kind
        self.config = config or QueueConfig(kind="stream" if kind == "stream" else "work")
        self.now_ms = START_MS
        self.engine = engine or MemoryEngine()
        self.allowed = True
        self.not_durable = ""
        self.quarantined: list[int] = []
        self.broken_rows = 0
        self.exported: list[Partition] = []
        self.soon_calls: list[Callable[[], None]] = []
        self.committer = ManualCommitter(self)
        self.partition = self._open()

    # Surroundings of the partition

    def publishes_allowed(self) -> bool:
        return self.allowed

    def why_no_publishes(self) -> str:
        return "the test's disk is full"

    def why_not_durable(self) -> str:
        return self.not_durable

    def wrote(self, size: int) -> None:
        """Does nothing: disk usage is not watched here."""

    @property
    def steady_ms(self) -> Callable[[], int]:
        return lambda: self.now_ms

    def soon(self, call: Callable[[], None]) -> None:
        self.soon_calls.append(call)

    def export(self, partition: Partition) -> None:
        self.exported.append(partition)

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None:
        self.quarantined.append(offset)

    def met_broken_row(self) -> None:
        self.broken_rows += 1

    # Start and end

    def _open(self) -> Partition:
        state = read_state(self.engine, REPLICA) or PartitionState([EpochStart(Epoch(1), Offset(0))])
        key = ReceiptKey(SECRET, 0, REPLICA, 0)
        partition = Partition(
            self,  # type: ignore[arg-type]
            replica=REPLICA,
            label="q",
            state=state,
            config=self.config,
            make_core=lambda config, number, at, group=None: core_of(config, number, at, key, self.now_ms << 20, group),
        )
        partition.recover(self.now_ms)
        return partition

    def crash(self, *, landed: bool = False) -> None:
        """Ends the process; `landed`: the commit in flight reached the disk."""
        if landed and self.committer.is_in_flight:
            self.committer.reach_the_disk()
        self.engine = self.engine.crash()
        self.committer = ManualCommitter(self)
        self.soon_calls.clear()
        self.now_ms += 1
        self.partition = self._open()

    def restart(self) -> list[Lease]:
        """A clean stop and start: everything is written and leases are kept; returns those leases."""
        self.settle_down()
        kept = [
            KeptLease(REPLICA, lease.token, lease.state.base, lease.bits.to_bytes(32, "little"), lease.deadline_ms)
            for lease in self.view.leases.values()
        ]
        self.crash()
        restored = [self.main.restore(lease, Detached()) for lease in kept]
        return [lease for lease in restored if lease is not None]

    @property
    def view(self) -> WorkView:
        return self.main.core

    @property
    def main(self) -> View:
        return self.partition.view(VIEW_MAIN)

    def commit(self) -> bool:
        """One complete commit cycle. False if nothing was pending."""
        if not self.committer.is_in_flight and not self.committer.prepare():
            return False
        self.committer.land()
        return True

    def settle_down(self) -> None:
        """Commits until nothing is pending; started attempts are written, too."""
        self.committer.request(self.partition)
        while self.commit():
            pass

    # What callers do

    def publish(self, *bodies: bytes, kind: int = KIND_JSON) -> list[Published | PushqError]:
        """Publishes; the list receives the response when the commit lands."""
        answers: list[Published | PushqError] = []
        self.partition.publish(plain_blocks(kind, list(bodies)), answers.append)
        return answers

    def publish_drafts(self, drafts: Sequence[Draft]) -> list[Published | PushqError]:
        answers: list[Published | PushqError] = []
        self.partition.publish(blocks_of(drafts).blocks, answers.append)
        return answers

    def stored(self, *bodies: bytes) -> Published:
        """Publishes and commits."""
        answers = self.publish(*bodies)
        while not answers:
            self.commit()
        assert isinstance(answers[0], Published), answers[0]
        return answers[0]

    def take(
        self, limit: int = 1, consumer: Consumer | None = None, visibility_ms: int = VISIBILITY_MS
    ) -> Lease | None:
        consumer = consumer if consumer is not None else Consumer()
        lease = self.main.take(limit, consumer, visibility_ms)
        if lease is not None:
            consumer.leases.append(lease)
        return lease

    def leased(self, limit: int = 1, consumer: Consumer | None = None, visibility_ms: int = VISIBILITY_MS) -> Lease:
        lease = self.take(limit, consumer, visibility_ms)
        assert lease is not None, "nothing is ready"
        return lease

    def ack(self, *receipts: str) -> list[bool]:
        """Verdicts, one per receipt, after the commit."""
        return self._settled(receipts, lambda reply: self.main.settle(by_token(receipts), reply))

    def nack(self, *receipts: str, due_ms: int | None = None) -> list[bool]:
        return self._settled(receipts, lambda reply: self.main.give_back(by_token(receipts), due_ms, None, reply))

    def _settled(
        self, receipts: Sequence[str], ask: Callable[[Callable[[dict[str, int] | PushqError], None]], None]
    ) -> list[bool]:
        answers: list[dict[str, int] | PushqError] = []
        ask(answers.append)
        while not answers:
            self.commit()
        assert isinstance(answers[0], dict), answers[0]
        return verdicts(receipts, answers[0])

    def extend(self, *receipts: str, visibility_ms: int = VISIBILITY_MS) -> list[bool]:
        return self._settled(receipts, lambda reply: self.main.extend(by_token(receipts), visibility_ms, reply))

    def purge(self) -> list[int | PushqError]:
        answers: list[int | PushqError] = []
        self.partition.purge(answers.append)
        return answers

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.partition.tick(self.now_ms)

    # What can be seen

    @property
    def counts(self) -> tuple[int, int, int]:
        """(ready, in flight, delayed)."""
        view = self.view
        return self.partition.state.live - view.in_flight - view.delayed, view.in_flight, view.delayed


def verdicts(receipts: Sequence[str], done: dict[str, int]) -> list[bool]:
    by_suffix = {suffix: index for index, suffix in enumerate(SUFFIXES)}
    return [bool(done.get(r[:-2], 0) >> by_suffix.get(r[-2:], 256) & 1) for r in receipts]


def receipts_by_seq(lease: Lease) -> dict[int, str]:
    """The receipts of a lease's messages, by seq."""
    base = lease.state.base
    return {base + n: lease.token + SUFFIXES[n] for n in range(lease.state.count) if lease.bits >> n & 1}


def bodies_by_seq(lease: Lease) -> dict[int, bytes]:
    """The bodies of a lease's messages, by seq, before they are encoded."""
    assert lease.chunk is not None
    bodies = lease.chunk.messages.bodies
    return {lease.state.base + n: bodies[n] for n in range(lease.state.count) if lease.bits >> n & 1}


def attempts_by_seq(lease: Lease) -> dict[int, int]:
    return {lease.state.base + n: lease.attempt_of(n) for n in range(lease.state.count) if lease.bits >> n & 1}


def queue_of(world: World) -> EmbeddedQueue:
    """The world's partition, as a queue."""
    node: Any = SimpleNamespace(
        clock_ms=lambda: world.now_ms,
        steady_ms=lambda: world.now_ms,
        turnstile=ScanScheduler(),
        touched=set(),
    )
    partitions = partitions_of(world)
    return EmbeddedQueue(node, partitions.definition, partitions)


def partitions_of(world: World) -> Partitions:
    """The world's partition, as the only one of its queue."""
    definition = QueueDefinition(uid=7, tenant="default", name="q", config=world.config, created_at_ms=0, version=1)
    return Partitions(definition, world.partition)
