"""A node: one storage environment, its writer, and the partitions in it. Opened once, at start; closed once, at the
end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from backend_store.core.chunk import claimed_messages
from backend_store.core.kept import Detached, Kept, KeptLease, KeptSession
from backend_store.core.leases import Lease
from backend_store.core.leasing import ReceiptKey
from backend_store.core.receipts import read_token
from backend_store.core.records import EpochStart, PartitionState
from backend_store.core.shelves import VIEW_OUTBOX, view_of
from backend_store.metadata.embedded import Metadata, MovedQueue
from backend_store.metadata.partition_maps import book_key, read_book
from backend_store.model import COMPANION, Epoch, Offset, QueueDefinition
from backend_store.node.committer import Committer
from backend_store.node.cores import core_of
from backend_store.node.damage import broken_entry
from backend_store.node.leaving import Leaving
from backend_store.node.limits import SPACE_CHECK_SECONDS, VERIFY_AT_START_BYTES_MAX
from backend_store.node.moving import Change, Moving
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions
from backend_store.node.rows import entry_place, read_state, stage_state, state_key
from backend_store.node.sweeper import EVERYTHING, Sweeper, add_garbage
from backend_store.node.transfer import Transfer
from backend_store.node.turnstile import Turnstile
from backend_store.storage.engine import Batch, Engine, StorageError, Table
from backend_store.storage.keys import META_RESTORED, parse_entry_key
from backend_store.storage.space import SpaceGuard
from backend_store.storage.verify import parse_quarantine_value, quarantine_value, verify
from backend_store.storage.writer import Writer

log = structlog.get_logger("pushq.node")

RECEIPT_KEY = b"receipt-key"
KEPT = b"kept"


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_clock() -> Callable[[], int]:
    """Milliseconds since 1970 as the wall clock said at the start, and steady from then on.

    Leases and due times go by it: somebody who sets the clock must not end all leases at once, or make them last.
    """
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: (offset + time.monotonic_ns()) // 1_000_000


def end_process(error: BaseException) -> None:
    """Fail-stop: after a failed write nobody knows what is on the disk, so the next start must look."""
    log.critical("storage failed, the process ends and verifies at its next start", error=str(error))
    os.kill(os.getpid(), signal.SIGKILL)


class Node:
    def __init__(
        self,
        engine: Engine,
        *,
        directory: Path | None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        on_fatal: Callable[[BaseException], None] = end_process,
    ):
        self.engine = engine
        self.clock_ms = clock_ms
        self.steady_ms = steady_clock() if clock_ms is wall_clock_ms else clock_ms
        self.loop = asyncio.get_running_loop()
        self.writer = Writer(engine, self.loop, on_fatal=on_fatal)
        self.committer = Committer(self.writer, self.loop, clock_ms, on_fatal)
        self.metadata = Metadata(engine, self.committer.write)
        self.sweeper = Sweeper(engine, self.committer.write)
        self.space = SpaceGuard(engine, directory) if directory is not None else None
        self.partitions: dict[int, Partition] = {}
        """By the number under which each is stored."""
        self.queues: dict[int, Partitions] = {}
        """By uid."""
        self._movings: dict[int, Moving] = {}
        self.turnstile = Turnstile()
        self.quarantined = 0
        self._tenants: dict[int, str] = {}
        self._going_aside: set[bytes] = set()
        self.kept_leases: dict[str, Lease] = {}
        self.kept_sessions: list[KeptSession] = []
        self._lease_base = secrets.randbits(62)
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._timed: set[Partition] = set()

    async def start(self) -> None:
        """Recovers every partition and starts the background work."""
        receipt_key = self.engine.get(Table.META, RECEIPT_KEY)
        restored = self.engine.get(Table.META, META_RESTORED) is not None
        if receipt_key is None:
            receipt_key = secrets.token_bytes(32)
        self._receipt_key = receipt_key
        batch = Batch()
        batch.put(Table.META, RECEIPT_KEY, receipt_key)
        batch.delete(Table.META, META_RESTORED)
        self.metadata.found(batch, self.clock_ms())
        if restored:
            self.metadata.skip_uids(batch)
        leaving = [moved for moved in self.metadata.moved.values() if not moved.is_empty]
        for definition in self.metadata.queues.values():
            self._open_queue(definition, batch, restored)
        for moved in leaving:
            self._open_queue(moved.definition, batch, restored)
        self._verify()
        for partition in list(self.partitions.values()):
            partition.recover(self.steady_ms())
            if VIEW_OUTBOX in partition.state.views:
                self.export(partition)
        batch.delete(Table.META, KEPT)
        self._restore_kept()
        await self.committer.write(batch)
        await self.metadata.forget_moved(self.clock_ms())
        for moved in leaving:
            self._leave(self.queues[moved.definition.uid], moved)
        self._tasks += [
            self.loop.create_task(self.sweeper.run(), name="sweeper"),
            self.loop.create_task(self._watch_space(), name="space"),
        ]

    def _restore_kept(self) -> None:
        """Takes up stored leases, and those of a clean stop. Of leases that are memory a crash leaves none: what was in
        flight is redelivered."""
        row = self.engine.get(Table.META, KEPT)
        kept = msgspec.msgpack.decode(row, type=Kept) if row is not None else Kept([], [])
        holder = Detached()
        for lease in [*self._stored_leases(), *kept.leases]:
            partition = self.partitions.get(lease.uid)
            view = partition.find_view(lease.view) if partition is not None else None
            restored = view.restore(lease, holder) if view is not None else None
            if restored is not None:
                self.kept_leases.setdefault(restored.token, restored)
        self.kept_sessions = kept.sessions

    def _stored_leases(self) -> list[KeptLease]:
        found = []
        for uid, partition in self.partitions.items():
            for row in partition.reader.leases():
                fields = read_token(self._receipt_key, row.token)
                shelf = fields.shelf if fields is not None else 0
                found.append(
                    KeptLease(uid, row.token, row.base, row.bits, row.deadline_ms, row.view, shelf, row.number)
                )
        return found

    def _keep(self, sessions: list[KeptSession]) -> Batch:
        leases = [
            KeptLease(
                uid,
                lease.token,
                lease.state.base,
                lease.bits.to_bytes(32, "little"),
                lease.deadline_ms,
                view.number,
                lease.state.shelf,
            )
            for uid, partition in self.partitions.items()
            for view in partition.views.values()
            for lease in view.core.leases.values()
            if not lease.number  # those with a number have a row of their own
        ]
        batch = Batch()
        batch.put(Table.META, KEPT, msgspec.msgpack.encode(Kept(leases, sessions)))
        return batch

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        """Writes what waits and what is to be kept, then closes the environment cleanly."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        await self.committer.drain()
        await self.committer.write(self._keep(sessions or []))
        await self.writer.close()
        self.engine.close()

    # ----------------------------------------------------------------------------------------------- partitions

    def queue(self, definition: QueueDefinition) -> Partitions:
        """The queue's partitions, made at its first use: an empty one has no rows."""
        found = self.queues.get(definition.uid)
        return found if found is not None else self._open_queue(definition, None, restored=False)

    def _open_queue(self, definition: QueueDefinition, batch: Batch | None, restored: bool) -> Partitions:
        known = self.metadata.maps.get(definition.uid)
        if known is None:
            queue = Partitions(definition, self._open_partition(definition, 0, definition.uid, batch, restored))
        else:
            numbers = [number for number, member in known.table.members.items() if member.role != "retired"]
            opened = [self._open_partition(definition, n, known.replicas[n], batch, restored) for n in numbers]
            queue = Partitions(definition, opened[0])
            for partition in opened:
                self._split(partition)
                queue.add(partition)
            queue.heed(known)
        self.queues[definition.uid] = queue
        if queue.may_change:
            self._watch_slots(queue).wake()
        return queue

    def _open_partition(
        self, definition: QueueDefinition, number: int, replica: int, batch: Batch | None, restored: bool
    ) -> Partition:
        state = read_state(self.engine, replica) or PartitionState([EpochStart(Epoch(1), Offset(0))])
        if restored and batch is not None:
            # Cursors given out after the backup was made may point past its end: a new epoch tells them apart.
            # It is written before the mark of the restore goes, or a crash would forget it.
            state.epochs.append(EpochStart(Epoch(state.epoch + 1), Offset(state.end)))
            stage_state(batch, replica, state)
        key = ReceiptKey(self._receipt_key, 0, definition.uid, number)
        partition = Partition(
            self,
            replica=replica,
            label=definition.name,
            state=state,
            config=definition.config,
            make_core=lambda config, view, at, group=None: core_of(config, view, at, key, self._lease_base, group),
            index=number,
        )
        partition.on_deadline = self._arm
        self.partitions[replica] = partition
        self._tenants[replica] = definition.tenant
        return partition

    def _split(self, partition: Partition) -> None:
        book = read_book(self.engine, partition.replica)
        assert book is not None, f"partition {partition.index} of {partition.label!r} has no row of its slots"
        partition.split(book)

    def _watch_slots(self, queue: Partitions) -> Moving:
        uid = queue.definition.uid
        moving = self._movings.get(uid)
        if moving is None:
            moving = self._movings[uid] = Moving(queue, self)
        moving.listen()
        return moving

    def configure(self, definition: QueueDefinition) -> None:
        """Takes over changed settings of a queue: they hold from the next decision on."""
        queue = self.queue(definition)
        queue.definition = definition
        for partition in queue.all:
            partition.configure(definition.config)
        if queue.may_change:
            self._watch_slots(queue).wake()

    async def plan(self, queue: Partitions, change: Change) -> None:
        """Changes the slot table of a queue, and begins to carry out what that asks for. Raises `QueueNotFound`, and
        what `change` raises."""
        definition = queue.definition
        after = await self.metadata.change_partitions(definition, change)
        if definition.uid not in self.metadata.maps:
            return  # there is one partition, and nothing to change
        for partition in queue.all:
            if partition.slotting is None:
                self._split(partition)
        for number, replica in after.replicas.items():
            if queue.get(number) is None and after.table.members[number].role != "retired":
                partition = self._open_partition(definition, number, replica, None, restored=False)
                self._split(partition)
                partition.recover(self.steady_ms())
                queue.add(partition)
        queue.heed(after)
        self._watch_slots(queue).wake()

    def retired(self, queue: Partitions, partition: Partition) -> None:
        """Nothing is left in a partition, and nothing comes any more."""
        queue.remove(partition.index)
        self.partitions.pop(partition.replica, None)
        log.info("a partition has gone", queue=queue.label, partition=partition.index)

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs it beside everything else; closing ends it."""
        task = self.loop.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def delete_queue(self, tenant: str, name: str) -> None:
        definition = self.metadata.find(tenant, name)
        replicas = self.metadata.partition_map(definition.uid).replicas.values()

        def rows(_: QueueDefinition, batch: Batch) -> None:
            for replica in replicas:
                batch.delete(Table.META, state_key(replica))
                add_garbage(batch, replica, EVERYTHING)

        await self.metadata.delete_queue(tenant, name, rows)
        queue = self.queues.pop(definition.uid, None)
        self._movings.pop(definition.uid, None)
        if queue is not None:
            self._close(queue)
            # What was decided before is on its way to the disk: it must land before the sweep looks.
            last = Batch()
            for replica in replicas:
                last.delete(Table.META, state_key(replica))
                last.delete(Table.META, book_key(replica))
            await self.committer.write(last)
        self.sweeper.wake()

    def _close(self, queue: Partitions) -> None:
        queue.close()
        for partition in queue.all:
            self.partitions.pop(partition.replica, None)
            partition.close()

    async def move_queue(self, tenant: str, name: str, target: str, until_ms: int) -> None:
        """Deletes a queue and moves what it holds to another one."""
        queue = self.queue(self.metadata.find(tenant, name))
        moved = await self.metadata.move_queue(tenant, name, target, until_ms)
        self._leave(queue, moved)

    def _leave(self, queue: Partitions, moved: MovedQueue) -> None:
        tenant = moved.definition.tenant
        left = set(queue.all)
        self._movings.pop(moved.definition.uid, None)

        def target() -> Partitions | None:
            definition = self.metadata.queues.get((tenant, moved.target))
            return self.queue(definition) if definition is not None else None

        def empty(partition: Partition) -> None:
            left.discard(partition)
            if not left:
                self.background(self._left(queue, moved), "leaving")

        queue.close()
        for partition in queue.all:
            if partition.slotting is not None:
                partition.slotting.let_go()
            Leaving(partition, target, self, partial(empty, partition)).begin()

    async def _left(self, queue: Partitions, moved: MovedQueue) -> None:
        """The queue is empty: its rows go, and only what still comes is sent on."""
        uid = moved.definition.uid
        replicas = self.metadata.partition_map(uid).replicas.values()
        self.queues.pop(uid, None)
        self._close(queue)

        def rows(batch: Batch) -> None:
            for replica in replicas:
                batch.delete(Table.META, state_key(replica))
                add_garbage(batch, replica, EVERYTHING)

        await self.metadata.emptied(moved, rows)
        self.sweeper.wake()

    # ----------------------------------------------------------------------------------------------------- time

    def _arm(self, partition: Partition, deadline_ms: int) -> None:
        """Moves the node's one timer forward to a partition's deadline, if that comes first."""
        self._timed.add(partition)
        if self._timer_ms is not None and self._timer_ms <= deadline_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self.loop.call_later(max(0, deadline_ms - self.steady_ms()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_ms = None
        now_ms = self.steady_ms()
        timed, self._timed = self._timed, set()
        for partition in timed:
            try:
                partition.tick(now_ms)
            except Exception:
                # A fault of ours in one queue must not stop the clocks of the others.
                log.exception("a queue failed on its timer", queue=partition.label)
            if (wakeup_ms := partition.next_wakeup_ms()) is not None:
                self._arm(partition, wakeup_ms)

    def export(self, partition: Partition) -> None:
        """Takes what lies in a partition's outbox to the queue it is for."""
        tenant = self._tenants[partition.replica]

        def target() -> Partitions | None:
            name = partition.config.dead_letter_queue
            definition = self.metadata.queues.get((tenant, name)) if name not in (None, COMPANION) else None
            return self.queue(definition) if definition is not None else None

        outbox = partition.view(VIEW_OUTBOX)
        Transfer(outbox, target, self, stays=outbox.undeliverable).pump()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.loop.call_later(seconds, call)

    def soon(self, call: Callable[[], None]) -> None:
        """Calls in the next turn of the loop."""
        self.loop.call_soon(call)

    # ---------------------------------------------------------------------------------------------------- space

    def publishes_allowed(self) -> bool:
        return self.space is None or self.space.publishes_allowed

    def why_no_publishes(self) -> str:
        return "" if self.space is None else self.space.reason

    def wrote(self, size: int) -> None:
        if self.space is not None:
            self.space.wrote(size)

    async def _watch_space(self) -> None:
        while self.space is not None:
            try:
                self.space.refresh()
            except (StorageError, OSError) as error:
                # The next look may succeed; without one, publishes would run into a full disk.
                log.error("cannot look at the disk's space", error=str(error))
            await asyncio.sleep(SPACE_CHECK_SECONDS)

    # --------------------------------------------------------------------------------------------------- damage

    def _verify(self) -> None:
        """After an unclean end every entry is read once before anything is served. A big log is checked as it is read:
        each entry's checksum stands between the disk and a consumer anyway."""
        if self.engine.was_clean or self.engine.space().file_bytes > VERIFY_AT_START_BYTES_MAX:
            return
        report = verify(self.engine, broken_entry)
        for key, reason in report.listed:
            replica, shelf, offset = parse_entry_key(key)
            partition = self.partitions.get(replica)
            stored = self.engine.get(Table.QUARANTINE, key)
            if partition is not None and stored is not None:
                self._write_off(partition, offset, parse_quarantine_value(stored)[1], reason, view_of(shelf))
        log.info("verified after an unclean end", entries=report.rows, broken=report.quarantined)

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None:
        """Puts a corrupt entry aside: never served, never silently gone."""
        table, key = entry_place(partition.replica, shelf, offset)
        if key in self._going_aside:
            return  # counted already; its row is there until the commit that moves it
        self._going_aside.add(key)
        batch = Batch()
        batch.put(Table.QUARANTINE, key, quarantine_value(reason, data))
        batch.delete(table, key)
        task = self.loop.create_task(self.committer.write(batch), name="quarantine")
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        task.add_done_callback(lambda _: self._going_aside.discard(key))
        self._write_off(partition, offset, data, reason, view_of(shelf))

    def _write_off(self, partition: Partition, offset: int, data: bytes, reason: str, view: int = 0) -> None:
        self.quarantined += 1
        lost = max(0, claimed_messages(data) - partition.progress(offset, view).settled.bit_count())
        partition.write_off(view, lost, len(data), offset)
        log.error("corrupt entry put aside", queue=partition.label, offset=offset, reason=reason, messages=lost)
