"""The queues of a node: opens them at start, creates, reconfigures, partitions, moves away and deletes them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import structlog

from backend_store.core.leases.leasing import ReceiptKey
from backend_store.core.ledger import Title, begin, is_owed
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.log.sealed_block import Sealer
from backend_store.core.log.sublogs import VIEW_OUTBOX
from backend_store.core.partitions.slots import EVERY_SLOT, PartitionMap, slots_taken, unpacked
from backend_store.metadata.embedded import Metadata
from backend_store.metadata.moved import MovedQueue
from backend_store.metadata.partition_maps import book_key, read_book
from backend_store.model import COMPANION, Epoch, Offset, PushqError, QueueConfig, QueueDefinition, Unavailable
from backend_store.node.garbage_collector import EVERYTHING, GarbageCollector, add_garbage
from backend_store.node.ledger import stage_cut
from backend_store.node.limits import EPOCHS_MAX
from backend_store.node.log.apply import read_state, stage_state, state_key
from backend_store.node.partition import Partition, Surroundings
from backend_store.node.partitions import Partitions
from backend_store.node.slots.rebalancer import Change, Rebalancer
from backend_store.node.touched import Touched
from backend_store.node.transfer.queue_deletion import QueueDeletion
from backend_store.node.transfer.transfer import Timers, Transfer
from backend_store.node.views.factory import core_of
from backend_store.node.views.group_sets import align
from backend_store.storage.engine import Batch, Table

log = structlog.get_logger("pushq.queues")


class Host(Surroundings, Timers, Protocol):
    """What queues need from their node."""

    sweeper: GarbageCollector
    receipt_key: bytes
    copy_id: str
    sealer: Sealer | None
    is_keyless: bool
    lease_base: int
    """First lease number to grant since this start."""
    epoch: Epoch
    """The lowest epoch in which logs continue."""
    touched: Touched[Partition]

    def arm(self, partition: Partition, deadline_ms: int) -> None:
        """Has the partition's `tick` called at `deadline_ms`."""

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` as a task until it ends or the node closes."""


class Queues:
    """Every queue on the node, by uid, and every partition; the node owns it."""

    def __init__(self, node: Host, metadata: Metadata):
        self._node = node
        self._metadata = metadata
        self.partitions: dict[int, Partition] = {}
        """By replica: the number under which each partition is stored."""
        self._queues: dict[int, Partitions] = {}
        """By uid."""
        self._movings: dict[int, Rebalancer] = {}
        self._tenants: dict[int, str] = {}

    def open_all(self, batch: Batch, *, restored: bool) -> list[MovedQueue]:
        """Opens every queue. Returns the queues that are being moved away, for `resume`."""
        leaving = [moved for moved in self._metadata.moved.values() if not moved.is_empty]
        for definition in (*self._metadata.queues.values(), *(moved.definition for moved in leaving)):
            self._open_queue(definition, batch, restored)
        return leaving

    def resume(self, leaving: list[MovedQueue]) -> None:
        """Continues what the last stop interrupted."""
        for queue in self._queues.values():
            align(queue)
        for moved in leaving:
            self._leave(self._queues[moved.definition.uid], moved)

    # Asked for by `Rebalancer`, which carries out changes of slots.

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._node.later(seconds, call)

    def soon(self, call: Callable[[], None]) -> None:
        self._node.soon(call)

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._node.background(work, name)

    # ------------------------------------------------------------------------------------------------ open and change

    def of(self, definition: QueueDefinition) -> Partitions:
        """The queue's partitions, opened on first use: an empty queue has no rows."""
        found = self._queues.get(definition.uid)
        return found if found is not None else self._open_queue(definition, None, restored=False)

    def _open_queue(self, definition: QueueDefinition, batch: Batch | None, restored: bool) -> Partitions:
        known = self._metadata.maps.get(definition.uid)
        if known is None:
            state = self._state(definition, definition.uid, Epoch(1), batch, restored)
            queue = Partitions(definition, self._open_partition(definition, 0, definition.uid, state))
        else:
            epoch = self._epoch(known)
            states = {
                number: self._state(definition, replica, epoch, batch, restored)
                for number, replica in known.replicas.items()
            }
            numbers = [number for number, member in known.table.members.items() if member.role != "retired"]
            opened = [self._open_partition(definition, n, known.replicas[n], states[n]) for n in numbers]
            queue = Partitions(definition, opened[0])
            for partition in opened:
                self._split(partition)
                queue.add(partition)
            queue.past = {number: state for number, state in states.items() if number not in numbers}
            if batch is not None:
                self._cut_past(queue, known, batch)
            queue.heed(known)
        self._queues[definition.uid] = queue
        if queue.may_change:
            self._watch_slots(queue).wake()
        return queue

    def _cut_past(self, queue: Partitions, known: PartitionMap, batch: Batch) -> None:
        """Writes the last ledger row of retired partitions that lack it: a crash may have come between retirement and
        the row."""
        for number, state in queue.past.items():
            if is_owed(state):
                stage_cut(batch, state, self._title(queue.definition, number), self._node.steady_ms())
                stage_state(batch, known.replicas[number], state)

    def _epoch(self, known: PartitionMap) -> Epoch:
        """The epoch in which a partition without a row begins: the highest of the queue's partitions. After a restore
        an earlier partition may have had the same number; receipts which that one gave out must not be valid."""
        states = [read_state(self._node.engine, replica) for replica in known.replicas.values()]
        return max((state.epoch for state in states if state is not None), default=Epoch(1))

    def _state(
        self, definition: QueueDefinition, replica: int, epoch: Epoch, batch: Batch | None, restored: bool
    ) -> PartitionState:
        state = read_state(self._node.engine, replica)
        if state is None:
            floor = Offset(definition.floor)
            state = PartitionState([EpochStart(max(epoch, self._node.epoch), floor)], end=floor, floor=floor)
        begin(state, anew=restored)
        goes_on_in = max(Epoch(state.epoch + restored), self._node.epoch)
        if goes_on_in > state.epoch:
            state.epochs = [*state.epochs[1 - EPOCHS_MAX :], EpochStart(goes_on_in, Offset(state.end))]
            # Cursors given out after the backup was made may point past its end; a new epoch tells them apart. The
            # epoch is written before the mark of the restore is deleted, or a crash would lose it. Where a log may have
            # lost its tail, the next start takes a new epoch whatever is written; a stream still stores this one, so
            # that its cursors are known.
            if batch is not None and (restored or definition.config.kind == "stream"):
                stage_state(batch, replica, state)
        return state

    def _title(self, definition: QueueDefinition, number: int) -> Title:
        return Title(self._node.copy_id, definition.tenant, definition.name, definition.uid, number)

    def _open_partition(
        self, definition: QueueDefinition, number: int, replica: int, state: PartitionState
    ) -> Partition:
        key = ReceiptKey(self._node.receipt_key, 0, definition.uid, number)
        partition = Partition(
            self._node,
            replica=replica,
            label=definition.name,
            state=state,
            config=definition.config,
            make_core=lambda config, view, at, group=None: core_of(config, view, at, key, self._node.lease_base, group),
            index=number,
            title=self._title(definition, number),
            seal=self._node.sealer.of(definition) if self._node.sealer is not None else None,
        )
        partition.on_deadline = self._node.arm
        _tell(partition, definition)
        self.partitions[replica] = partition
        self._tenants[replica] = definition.tenant
        return partition

    def _split(self, partition: Partition) -> None:
        book = read_book(self._node.engine, partition.replica)
        assert book is not None, f"partition {partition.index} of {partition.label!r} has no row of its slots"
        partition.split(book)

    def _watch_slots(self, queue: Partitions) -> Rebalancer:
        uid = queue.definition.uid
        moving = self._movings.get(uid)
        if moving is None:
            moving = self._movings[uid] = Rebalancer(queue, self)
        moving.listen()
        return moving

    def configure(self, definition: QueueDefinition) -> None:
        """Applies changed settings of a queue from the next decision on."""
        queue = self.of(definition)
        queue.definition = definition
        if queue.remains is not None and queue.remains.slots & slots_taken(definition):
            queue.remains = None  # the slots have come back
        for partition in queue.all:
            partition.configure(definition.config)
            _tell(partition, definition)
            if VIEW_OUTBOX in partition.views:
                self.export(partition)
        if queue.may_change:
            self._watch_slots(queue).wake()

    async def ended(self, definition: QueueDefinition) -> int:
        """Returns an offset above every one given to publishes of slots that the queue takes no more. Everything
        decided before the call is durable when it returns."""
        assert slots_taken(definition) != EVERY_SLOT, f"queue {definition.name!r} takes publishes"
        await self._node.committer.write(Batch())
        queue = self.of(definition)
        return max(state.end for state in (*(one.decided for one in queue.all), *queue.past.values()))

    async def plan(self, queue: Partitions, change: Change) -> None:
        """Changes the slot table of a queue and starts to carry the change out. Raises `QueueNotFound`, and what
        `change` raises."""
        definition = queue.definition

        def rows(after: PartitionMap, batch: Batch) -> None:
            for partition in queue.all:
                if after.table.members[partition.index].role == "retired":
                    # The partition's next life begins at that offset. Index rows of earlier messages mean nothing then.
                    add_garbage(batch, partition.replica, partition.state.end)

        after = await self._metadata.change_partitions(definition, change, rows)
        if definition.uid not in self._metadata.maps:
            return  # one partition, nothing to change
        for partition in queue.all:
            if partition.slotting is None:
                self._split(partition)
        definition = queue.definition  # the definition may have changed meanwhile
        for number, replica in after.replicas.items():
            if queue.get(number) is None and after.table.members[number].role != "retired":
                state = self._state(definition, replica, self._epoch(after), None, restored=False)
                partition = self._open_partition(definition, number, replica, state)
                self._split(partition)
                partition.recover(self._node.steady_ms())
                queue.add(partition)
        align(queue)
        queue.heed(after)
        self._node.touched.add(queue.first)
        self._watch_slots(queue).wake()

    async def retired(self, queue: Partitions, partition: Partition) -> None:
        """Removes a partition that holds nothing and gets no more publishes."""
        while not (partition.closed or partition.is_quiet) or partition.cut():
            # A request came just now, perhaps a repeated ack: answer it first.
            partition.request()
            await self._node.committer.write(Batch())
        if partition.is_gone:
            return  # the queue was deleted meanwhile, and `delete` cleans up
        queue.remove(partition.index)
        self._node.touched.add(queue.first)
        self._forget(partition)
        partition.has_retired = True
        partition.close()  # the partition's next life uses the same rows: this one must write no more
        self._node.sweeper.wake()
        log.info("a partition has gone", queue=queue.label, partition=partition.index)

    async def delete(self, tenant: str, name: str, *, only_here: bool = False) -> None:
        """Deletes a queue and marks its rows for the sweeper. `only_here`: see `Metadata.delete_queue`."""
        definition = self._metadata.find(tenant, name)
        replicas: list[int] = []

        def rows(_: QueueDefinition, batch: Batch) -> None:
            # Read only here: a change of partitions in flight may have added one.
            replicas.extend(self._metadata.partition_map(definition.uid).replicas.values())
            self._doom(definition.uid, batch)
            for replica in replicas:
                batch.delete(Table.META, state_key(replica))
                add_garbage(batch, replica, EVERYTHING)

        await self._metadata.delete_queue(tenant, name, rows, uid=definition.uid, only_here=only_here)
        queue = self._queues.pop(definition.uid, None)
        self._movings.pop(definition.uid, None)
        if queue is not None:
            self._close(queue)
            # What was decided before is on its way to the disk and must be written before the sweep begins.
            last = Batch()
            for replica in replicas:
                last.delete(Table.META, state_key(replica))
                last.delete(Table.META, book_key(replica))
            await self._node.committer.write(last)
        self._node.sweeper.wake()

    def _doom(self, uid: int, batch: Batch) -> None:
        if (queue := self._queues.get(uid)) is not None:
            for partition in queue.all:
                partition.doom(batch)

    def _close(self, queue: Partitions) -> None:
        queue.close()
        for partition in queue.all:
            self._forget(partition)
            partition.close()

    def refuse_waiting(self, error: PushqError) -> None:
        """Refuses publishes that wait for slots on the move: they were not begun, and will not be on this node."""
        for queue in list(self._queues.values()):
            queue.refuse_waiting(Unavailable(f"queue {queue.label!r}: {error.detail}; nothing was begun"))

    def _forget(self, partition: Partition) -> None:
        self.partitions.pop(partition.replica, None)
        self._tenants.pop(partition.replica, None)

    async def move(self, tenant: str, name: str, target: str, until_ms: int) -> None:
        """Deletes a queue and moves its messages to the queue `target`."""
        definition = self._metadata.find(tenant, name)
        queue = self.of(definition)
        moved = await self._metadata.move_queue(tenant, name, target, until_ms, uid=definition.uid)
        self._leave(queue, moved)

    def _leave(self, queue: Partitions, moved: MovedQueue) -> None:
        tenant = moved.definition.tenant
        left = set(queue.all)
        self._movings.pop(moved.definition.uid, None)

        def target() -> Partitions | None:
            definition = self._metadata.queues.get((tenant, moved.target))
            return self.of(definition) if definition is not None else None

        def empty(partition: Partition) -> None:
            left.discard(partition)
            if not left:
                self._node.background(self._left(queue, moved), "leaving")

        queue.close()
        for partition in queue.all:
            partition.hold(0)
            if partition.slotting is not None:
                partition.slotting.let_go()
            QueueDeletion(partition, target, self._node, partial(empty, partition)).begin()

    async def _left(self, queue: Partitions, moved: MovedQueue) -> None:
        """The moved queue is empty: deletes its rows. Only late publishes are still sent on."""
        uid = moved.definition.uid
        replicas = self._metadata.partition_map(uid).replicas.values()
        self._queues.pop(uid, None)
        self._close(queue)

        def rows(batch: Batch) -> None:
            for partition in queue.all:
                partition.doom(batch)
            for replica in replicas:
                batch.delete(Table.META, state_key(replica))
                add_garbage(batch, replica, EVERYTHING)

        await self._metadata.emptied(moved, rows)
        self._node.sweeper.wake()

    def export(self, partition: Partition) -> None:
        """Moves messages from a partition's outbox to the queue they are for. In a cluster gateways move encrypted
        ones, since only they have the keys."""
        tenant = self._tenants[partition.replica]

        def target() -> Partitions | None:
            name = partition.config.dead_letter_queue
            definition = self._metadata.queues.get((tenant, name)) if name not in (None, COMPANION) else None
            return self.of(definition) if definition is not None else None

        outbox = partition.view(VIEW_OUTBOX)
        if self._node.is_keyless and self._is_encrypted(tenant, partition.config):
            return
        Transfer(outbox, target, self._node, stays=outbox.undeliverable).pump()

    def _is_encrypted(self, tenant: str, config: QueueConfig) -> bool:
        """Whether dead letters of a queue are encrypted, or are to be in the queue that it names for them."""
        named = self._metadata.queues.get((tenant, config.dead_letter_queue or ""))
        return named is not None and (config.encrypted or named.config.encrypted)


def _tell(partition: Partition, definition: QueueDefinition) -> None:
    """Sets which of its queue's slots the partition takes publishes of and delivers."""
    partition.takes = slots_taken(definition)
    partition.hold(unpacked(definition.holds))
