"""A stream in a world under the test's control (see `world`), and its consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backend_store.client.group_receipts import GroupReceipts
from backend_store.client.views import AskView
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import by_token
from backend_store.core.leases.session_snapshot import Detached, KeptLease
from backend_store.core.log.block import punch
from backend_store.core.log.chunk import KIND_JSON, claimed_messages, plain_blocks
from backend_store.model import Block, Published, PushqError, QueueConfig
from backend_store.node.partition import Partition
from backend_store.node.views.acks import SettleReply
from backend_store.node.views.group import Group, Mode, RunningGroup
from backend_store.node.views.groups import Groups
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_key
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.verify import quarantine_value
from tests.support.world import REPLICA, VISIBILITY_MS, Consumer, World, partitions_of, receipts_by_seq, verdicts


class StreamWorld(World):
    def __init__(self, *, engine: MemoryEngine | None = None, **settings: Any):
        super().__init__(kind="stream", engine=engine, config=QueueConfig(kind="stream", **settings))

    @property
    def groups(self) -> Groups:
        assert self.partition.groups is not None
        return self.partition.groups

    def configure(self, **settings: Any) -> None:
        self.config = QueueConfig(kind="stream", **settings)
        self.partition.configure(self.config)

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None:
        """Puts a broken entry aside, as a node does."""
        super().quarantine(partition, shelf, offset, data, reason)
        batch, key = Batch(), log_key(REPLICA, offset)
        batch.delete(Table.LOG, key)
        batch.put(Table.QUARANTINE, key, quarantine_value(reason, data))
        self.engine.commit(batch, lambda: None)
        partition.lose(0, offset)
        partition.write_off(0, claimed_messages(data), len(data), offset)

    def break_entry(self, base: int) -> None:
        """Flips a bit of a stored chunk."""
        key = log_key(REPLICA, base)
        data = self.engine.get(Table.LOG, key)
        assert data is not None
        batch = Batch()
        batch.put(Table.LOG, key, data[:-1] + bytes([data[-1] ^ 1]))
        self.engine.commit(batch, lambda: None)

    def publish_each(self, *bodies: bytes) -> list[int]:
        """Publishes each message in its own commit, and therefore its own chunk; returns their seqs."""
        return [self.stored(body).base for body in bodies]

    def stored_with_holes(self, *bodies: bytes, holes: int) -> int:
        """Publishes messages; those at the bits of `holes` are dropped (as repeats, say). Returns the first seq."""
        [block] = plain_blocks(KIND_JSON, list(bodies))
        return self._stored(punch(block, holes))

    def stored_by_another_program(self, *bodies: bytes) -> int:
        """Publishes messages in a block of an unknown format. Returns the first seq."""
        [block] = plain_blocks(KIND_JSON, list(bodies))
        return self._stored(Block(bytes([block.data[0] | 0x80]) + block.data[1:], block.count))

    def _stored(self, block: Block) -> int:
        answers: list[Published | PushqError] = []
        self.partition.publish([block], answers.append)
        while not answers:
            self.commit()
        assert isinstance(answers[0], Published), answers[0]
        return answers[0].base

    # Groups

    def group(self, name: str = "g", wanted: Any = "earliest", mode: Mode | None = None) -> GroupOf:
        """Creates a group, or moves it."""
        return GroupOf(self, self._asked(lambda reply: self.groups.put(name, wanted, mode, reply)))

    def opened(self, name: str, wanted: Any = None) -> GroupOf:
        return GroupOf(self, self._asked(lambda reply: self.groups.open(name, wanted, reply)))

    def delete(self, name: str) -> None:
        self._asked(lambda reply: self.groups.delete(name, reply))

    def found(self, name: str = "g") -> GroupOf:
        """The current object of a group, which changes after a crash."""
        group = self.groups.find(name)
        assert group is not None, f"there is no group {name!r}"
        return GroupOf(self, group)

    def ask(self, receipts: Sequence[str], ask: AskView, reply: SettleReply) -> None:
        """Lets each group decide about its own receipts, as a stream does."""
        GroupReceipts(partitions_of(self)).ask(by_token(receipts), ask, reply)

    def _asked(self, ask: Callable[[Callable[[Group | PushqError], None]], None]) -> Group:
        answers: list[Group | PushqError] = []
        ask(answers.append)
        while not answers:
            self.commit()
        if isinstance(answers[0], PushqError):
            raise answers[0]
        return answers[0]

    def restart(self) -> list[Lease]:
        """A clean stop and start: everything is written and leases are kept; returns those leases."""
        self.settle_down()
        kept = [
            KeptLease(
                REPLICA, lease.token, lease.state.base, lease.bits.to_bytes(32, "little"), lease.deadline_ms, number
            )
            for number, view in self.partition.views.items()
            for lease in view.core.leases.values()
        ]
        self.crash()
        views = [(self.partition.find_view(lease.view), lease) for lease in kept]
        restored = [view.restore(lease, Detached()) for view, lease in views if view is not None]
        return [lease for lease in restored if lease is not None]

    # What can be seen

    @property
    def kept(self) -> list[int]:
        """The seqs of all messages that a reader from the beginning gets."""
        seqs: list[int] = []
        state = self.partition.state
        chunk = self.partition.read(0)
        while chunk is not None:
            seqs += range(max(chunk.base, state.floor), chunk.base + chunk.count)
            chunk = self.partition.read(chunk.base + 1)
        return seqs


class GroupOf:
    """One group of a `StreamWorld`, as used by its consumers."""

    def __init__(self, world: StreamWorld, group: Group):
        self.world = world
        self.group = group

    @property
    def view(self) -> RunningGroup:
        return self.group.open()

    @property
    def lag(self) -> int:
        return self.group.lag

    @property
    def position(self) -> int:
        return self.group.position

    def take(
        self, limit: int = 1, consumer: Consumer | None = None, visibility_ms: int = VISIBILITY_MS
    ) -> Lease | None:
        consumer = consumer if consumer is not None else Consumer()
        lease = self.view.take(limit, consumer, visibility_ms)
        if lease is not None:
            consumer.leases.append(lease)
        return lease

    def leased(self, limit: int = 1, consumer: Consumer | None = None, visibility_ms: int = VISIBILITY_MS) -> Lease:
        lease = self.take(limit, consumer, visibility_ms)
        assert lease is not None, "nothing is ready"
        return lease

    def drained(self, consumer: Consumer | None = None) -> list[int]:
        """The seqs of all that one consumer can take now, in delivery order."""
        consumer = consumer or Consumer()
        seqs: list[int] = []
        while (lease := self.take(64, consumer)) is not None:
            seqs += seqs_of(lease)
        return seqs

    def ack(self, *receipts: str) -> list[bool]:
        """Verdicts, one per receipt, after the commit; requested from the stream, as callers do."""
        return self._judged(receipts, RunningGroup.settle)

    def nack(self, *receipts: str, due_ms: int | None = None) -> list[bool]:
        return self._judged(receipts, lambda view, own, reply: view.give_back(own, due_ms, None, reply))

    def extend(self, *receipts: str, visibility_ms: int = VISIBILITY_MS) -> list[bool]:
        return self._judged(receipts, lambda view, own, reply: view.extend(own, visibility_ms, reply))

    def give_back(self, consumer: Consumer) -> None:
        """The consumer goes away with the messages it holds."""
        for lease in consumer.leases:
            self.view.give_back_lease(lease)
        self.world.settle_down()

    def _judged(self, receipts: Sequence[str], ask: Callable[..., None]) -> list[bool]:
        answers: list[dict[str, int] | PushqError] = []
        self.world.ask(receipts, ask, answers.append)
        while not answers:
            self.world.commit()
        assert isinstance(answers[0], dict), answers[0]
        return verdicts(receipts, answers[0])


def seqs_of(lease: Lease) -> list[int]:
    return [lease.state.base + n for n in range(lease.state.count) if lease.bits >> n & 1]


def stream(messages: int = 6, **settings: Any) -> StreamWorld:
    """A stream with messages, two per chunk."""
    world = StreamWorld(**settings)
    for number in range(0, messages, 2):
        world.stored(b"%d" % number, b"%d" % (number + 1))
    return world


def all_receipts(consumer: Consumer) -> dict[int, str]:
    """The receipts of all messages that the consumer holds, by seq."""
    return {seq: receipt for lease in consumer.leases for seq, receipt in receipts_by_seq(lease).items()}
