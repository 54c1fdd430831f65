"""A node: one storage environment, its writer, and the partitions stored there. Opened once at start, closed once at
the end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import structlog

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import read_token
from backend_store.core.leases.session_snapshot import Detached, Kept, KeptLease, KeptSession
from backend_store.core.log.sealed_block import Sealer
from backend_store.core.log.sublogs import VIEW_OUTBOX
from backend_store.metadata.documents import Documents
from backend_store.metadata.embedded import Metadata
from backend_store.model import Epoch, PushqError, Unavailable
from backend_store.node.audit import AuditLog
from backend_store.node.clock_jump import days_since_seen, note_seen
from backend_store.node.commit.committer import Committer
from backend_store.node.garbage_collector import GarbageCollector, is_swept
from backend_store.node.ledger import Counted, LedgerBook
from backend_store.node.limits import (
    CLOCK_JUMP_DAYS_UNTOLD,
    CLOCK_LOOK_SECONDS,
    FAILED_TICK_MS,
    KEPT_LOOK_SECONDS,
    SEEN_SECONDS,
    SPACE_CHECK_SECONDS,
)
from backend_store.node.log.apply import TIMED, replicas_in
from backend_store.node.log.set_aside import Aside
from backend_store.node.partition import Partition
from backend_store.node.queues import Queues
from backend_store.node.timers.alarms import Alarms
from backend_store.node.touched import Touched
from backend_store.node.views.scan_scheduler import ScanScheduler
from backend_store.node.views.view import View
from backend_store.storage.engine import Batch, Engine, StorageBroken, StorageError, Table
from backend_store.storage.keys import META_RESTORED
from backend_store.storage.space import DEFAULT_RULES, SpaceGuard, SpaceRules
from backend_store.storage.writer import CommitWriter, Writer

log = structlog.get_logger("pushq.node")

RECEIPT_KEY = b"receipt-key"
COPY_ID = b"copy-id"
KEPT = b"kept"
ANSWER_SECONDS = 0.2
"""Delay between a read that finds a broken structure and the end of the process, so that the caller still gets its
error. Nothing is written meanwhile."""
_ending = threading.Event()
CANNOT_SERVE = 3
"""Exit code of a process whose data folder cannot be served, also when it refuses the folder at start."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_clock() -> Callable[[], int]:
    """Returns a clock: milliseconds since 1970, read from the wall clock once at start, then steady, counting machine
    sleep.

    Leases and due times use the clock. Setting the wall clock must neither end all leases at once nor prolong them, and
    a message due at ten must not come an hour late because the machine slept for an hour.
    """
    offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return lambda: (offset + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000


def end_process(error: BaseException) -> None:
    """Fail-stop: after a failed write the content of the disk is unknown, so the next start must verify it. If the file
    is broken, the next start refuses it with the same exit code."""
    if isinstance(error, StorageBroken):
        if not _ending.is_set():
            _ending.set()
            log.critical("stored data is corrupt, the process exits", error=str(error))
            threading.Timer(ANSWER_SECONDS, os._exit, (CANNOT_SERVE,)).start()
        return
    log.critical("storage failed, the process exits and verifies its data at the next start", error=str(error))
    os.kill(os.getpid(), signal.SIGKILL)


FIRST_EPOCH: Final = Epoch(1)


class Node:
    """The owner of all that is stored in one environment: queues, metadata, ledger, audit, and the timer they share."""

    def __init__(
        self,
        engine: Engine,
        *,
        directory: Path | None,
        space: SpaceRules = DEFAULT_RULES,
        clock_ms: Callable[[], int] = wall_clock_ms,
        on_fatal: Callable[[BaseException], None] = end_process,
        writer: CommitWriter | None = None,
        epoch: Epoch = FIRST_EPOCH,
        is_keyless: bool = False,
    ):
        """`is_keyless`: only gateways have the keys of encrypted queues, and move dead letters from one to another.
        `writer`: given when a commit means more than a write to this disk; its owner closes it. `epoch`: the lowest
        epoch in which logs continue. It must exceed every earlier one if logs may have lost their tails: receipts and
        cursors that point into a lost tail must not match what is stored there now."""
        self.engine = engine
        self.epoch = epoch
        self.clock_ms = clock_ms
        self.steady_ms = steady_clock() if clock_ms is wall_clock_ms else clock_ms
        self.loop = asyncio.get_running_loop()
        self.copy_id = engine.disk_id
        """Names the data in rows of the ledger. Leaders of one log, each with its own disk, use the same name."""
        self._is_led = writer is not None
        self.writer: CommitWriter = writer or Writer(engine, self.loop, on_fatal=on_fatal)
        self.committer = Committer(self.writer, self.loop, on_fatal)
        self.metadata = Metadata(engine, self.committer.write)
        self.sweeper = GarbageCollector(engine, self.committer.write)
        self.metadata.is_swept = partial(is_swept, engine)
        self.space = SpaceGuard(engine, directory, space) if directory is not None else None
        self.is_keyless = is_keyless
        self.sealer: Sealer | None = None
        """The gateway's; set before any queue is opened, or never."""
        self.queues = Queues(self, self.metadata)
        self.ledger = LedgerBook(engine, self.committer.write, self._counted, self.steady_ms, self._listen)
        self.audit = AuditLog(engine, self.committer.write)
        self.documents = Documents(engine, self.committer.write)
        self.turnstile = ScanScheduler()
        self.aside = Aside(engine, self.committer, self.queues.partitions, self.background)
        self.broken_rows = 0
        self.not_durable: Callable[[], str] = lambda: ""
        """See `why_not_durable`; set where a commit means more than a write to this disk."""
        self.copies: Callable[[], int] = lambda: 1
        """How many disks hold what was confirmed most recently."""
        self.on_durable: Callable[[], None] = lambda: None
        """Called when writes become durable again, so that deliveries continue."""
        self.is_closing = False
        """The node begins no new work; writes in flight are the last."""
        self.kept_leases: dict[str, Lease] = {}
        self.kept_at: dict[str, dict[str, View]] = {}
        """Gateway → token → view of each lease granted before this process became leader; kept until the gateway is
        back or its leases end."""
        self.has_crashed = False
        """Whether the last leader ended without a clean stop."""
        self.kept_sessions: list[KeptSession] = []
        self.lease_base = secrets.randbits(62)
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self.touched = cast("Touched[Partition]", self.committer.touched)
        """Partitions in which something happened; only these take part in commit cycles."""
        self._alarms: Alarms[Partition] = Alarms()
        self.ticks = 0
        """How often a partition was ticked by the timer."""

    def seal_with(self, sealer: Sealer) -> None:
        """Has a gateway open and seal the blocks of every queue."""
        self.sealer = sealer
        self.metadata.on_shredded = sealer.shredded

    async def start(self) -> None:
        """Recovers every partition and starts the background work."""
        receipt_key = self.engine.get(Table.META, RECEIPT_KEY)
        restored = self.engine.get(Table.META, META_RESTORED) is not None
        if receipt_key is None:
            receipt_key = secrets.token_bytes(32)
        self.receipt_key = receipt_key
        batch = Batch()
        batch.put(Table.META, RECEIPT_KEY, receipt_key)
        batch.delete(Table.META, META_RESTORED)
        if self._is_led:
            self._name_copy(batch, anew=restored)
        self._tell_clock_jump()
        note_seen(self.engine, batch, self.steady_ms())
        self.metadata.found(batch, self.clock_ms())
        if restored:
            self.metadata.skip_uids(batch)
        leaving = self.queues.open_all(batch, restored=restored)
        self.aside.find()
        self.aside.verify()
        # Few of thousands of queues have anything timed: one pass finds those, instead of a lookup per queue.
        timed = set[int]().union(*(replicas_in(self.engine, table) for table in TIMED))
        for partition in list(self.queues.partitions.values()):
            partition.recover(self.steady_ms(), is_timed=partition.replica in timed)
            if VIEW_OUTBOX in partition.state.views:
                self.export(partition)
        batch.delete(Table.META, KEPT)
        self._restore_kept()
        await self.committer.write(batch)
        await self.metadata.forget_moved(self.clock_ms())
        self.queues.resume(leaving)
        self._tasks += [
            self.loop.create_task(self.sweeper.run(), name="sweeper"),
            self.loop.create_task(self._watch_space(), name="space"),
            self.loop.create_task(self._note_time(), name="time of the folder"),
        ]

    def _tell_clock_jump(self) -> None:
        days = days_since_seen(self.engine, self.steady_ms())
        if days > CLOCK_JUMP_DAYS_UNTOLD:
            log.warning("what has outlived its time since then goes now, if the clock is right", days_since_then=days)

    async def _note_time(self) -> None:
        while self.space is not None:  # without a folder nothing starts again
            await asyncio.sleep(SEEN_SECONDS)
            batch = Batch()
            note_seen(self.engine, batch, self.steady_ms())
            with suppress(PushqError):  # the disk is full, say: the next time will do
                await self.committer.write(batch)

    def _name_copy(self, batch: Batch, *, anew: bool) -> None:
        """The first leader of a log names the log's data; later leaders keep the name."""
        known = self.engine.get(Table.META, COPY_ID)
        if known is not None and not anew:
            self.copy_id = known.decode()
        else:
            batch.put(Table.META, COPY_ID, self.copy_id.encode())

    def _counted(self) -> Iterable[Counted]:
        return self.queues.partitions.values()

    def _listen(self) -> Callable[[], Iterable[Counted]]:
        return self.touched.listen()

    def _restore_kept(self) -> None:
        """Restores stored leases and those saved by a clean stop. A crash loses leases that are kept only in memory:
        the messages that were in flight are redelivered."""
        row = self.engine.get(Table.META, KEPT)
        kept = msgspec.msgpack.decode(row, type=Kept) if row is not None else Kept([], [])
        self.has_crashed = row is None
        holder = Detached()
        back_ms = max(0, kept.at_ms - self.steady_ms())  # the clock may go back: remaining times stay the same
        for lease in [*self._stored_leases(), *kept.leases]:
            if back_ms:
                lease = msgspec.structs.replace(lease, deadline_ms=lease.deadline_ms - back_ms)
            partition = self.queues.partitions.get(lease.uid)
            view = partition.find_view(lease.view) if partition is not None else None
            restored = view.restore(lease, holder) if view is not None else None
            if view is not None and restored is not None:
                self.kept_leases.setdefault(restored.token, restored)
                if restored.gateway:
                    self.kept_at.setdefault(restored.gateway, {})[restored.token] = view
        self.kept_sessions = kept.sessions
        if self.kept_leases or self.kept_at:
            self.later(KEPT_LOOK_SECONDS, self._forget_kept)

    def _forget_kept(self) -> None:
        """Drops entries whose leases have ended: a gateway that restarted has another name and never asks for its old
        ones."""
        for gateway, kept in list(self.kept_at.items()):
            left = {token: view for token, view in kept.items() if view.core.leases.get(token) is not None}
            if left:
                self.kept_at[gateway] = left
            else:
                del self.kept_at[gateway]
        for token, lease in list(self.kept_leases.items()):
            if not any(part.bits for part in lease.parts()):
                del self.kept_leases[token]
        if self.kept_leases or self.kept_at:
            self.later(KEPT_LOOK_SECONDS, self._forget_kept)

    def _stored_leases(self) -> list[KeptLease]:
        found = []
        holding = replicas_in(self.engine, Table.LEASES)
        for uid, partition in self.queues.partitions.items():
            for row in partition.reader.leases() if uid in holding else ():
                fields = read_token(self.receipt_key, row.token)
                shelf = fields.shelf if fields is not None else 0
                found.append(
                    KeptLease(
                        uid, row.token, row.base, row.bits, row.deadline_ms, row.view, shelf, row.number, row.gateway
                    )
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
                gateway=lease.holder.gateway or lease.gateway,
            )
            for uid, partition in self.queues.partitions.items()
            for view in partition.views.values()
            for lease in view.core.leases.values()
            if lease.counts and not lease.number  # numbered leases have their own rows
        ]
        batch = Batch()
        batch.put(Table.META, KEPT, msgspec.msgpack.encode(Kept(leases, sessions, self.steady_ms())))
        note_seen(self.engine, batch, self.steady_ms())
        return batch

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        """Drains the committer, saves leases and `sessions`, then closes the environment cleanly."""
        self.is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        await self.committer.drain()
        await self.committer.write(self._keep(sessions or []))
        self.committer.end()
        await self.writer.close()
        self.engine.close()

    async def abandon(self, error: PushqError) -> None:
        """Stops without writing anything, because another node leads: what this node holds in memory is void. Leaves
        engine and writer open."""
        self.is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self.committer.abandon(error)
        partitions = list(self.queues.partitions.values())
        for _ in range(2):  # answering the first round releases publishes that waited for its idempotency keys
            for partition, reply in [(one, reply) for one in partitions for reply in one.inbox.take_waiting()]:
                partition.tell(reply, Unavailable(f"queue {partition.label!r}: {error.detail}; nothing was begun"))
            self.queues.refuse_waiting(error)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` as a task until it ends or the node closes."""
        task = self.loop.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    # ----------------------------------------------------------------------------------------------------- time

    def arm(self, partition: Partition, deadline_ms: int) -> None:
        """Has the partition ticked at its deadline; the node's one timer is set to the earliest of all deadlines."""
        self._alarms.set(partition, deadline_ms)
        self.touched.add(partition)
        self._wake_by(deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        if self._timer_ms is not None and self._timer_ms <= deadline_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        # The loop's timer stands still while the machine sleeps; the steady clock does not.
        wait_s = min(max(0, deadline_ms - self.steady_ms()) / 1000, CLOCK_LOOK_SECONDS)
        self._timer = self.loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_ms = None
        if self.is_closing:
            return
        now_ms = self.steady_ms()
        for partition in self._alarms.take(now_ms):
            if partition.closed:
                continue
            self.ticks += 1
            self.touched.add(partition)
            try:
                partition.tick(now_ms)
                wakeup_ms = partition.next_wakeup_ms()
            except Exception:
                # A bug met in one queue must not stop the timers of the others, nor keep them from their turn.
                log.exception("a queue timer failed", queue=partition.label)
                wakeup_ms = now_ms + FAILED_TICK_MS
            if wakeup_ms is not None:
                self._alarms.set(partition, wakeup_ms)
        if (next_ms := self._alarms.next_ms()) is not None:
            self._wake_by(next_ms)

    def export(self, partition: Partition) -> None:
        """Starts to move messages from the partition's outbox to the queue they are for."""
        self.queues.export(partition)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.loop.call_later(seconds, self._unless_closing, call)

    def _unless_closing(self, call: Callable[[], None]) -> None:
        if not self.is_closing:
            call()

    def soon(self, call: Callable[[], None]) -> None:
        """Calls in the next turn of the loop."""
        self.loop.call_soon(call)

    # ---------------------------------------------------------------------------------------------------- space

    def publishes_allowed(self) -> bool:
        return self.space is None or self.space.publishes_allowed

    def why_no_publishes(self) -> str:
        return "" if self.space is None else self.space.reason

    def why_not_durable(self) -> str:
        """Why nothing written now would be durable, acks included; "" if writes are durable."""
        return self.not_durable()

    def refuse_waiting(self, reason: str) -> None:
        """Refuses waiting publishes: they cannot become durable now."""
        for partition in list(self.queues.partitions.values()):
            partition.refuse_waiting(reason)

    def wrote(self, size: int) -> None:
        if self.space is not None:
            self.space.wrote(size)

    async def _watch_space(self) -> None:
        while self.space is not None:
            try:
                self.space.refresh()
            except (StorageError, OSError) as error:
                # The next check may succeed; without one, publishes would run into a full disk.
                log.error("cannot check free disk space", error=str(error))
            await asyncio.sleep(SPACE_CHECK_SECONDS)

    # --------------------------------------------------------------------------------------------------- damage

    @property
    def quarantined(self) -> int:
        """Entries put aside since the process started."""
        return self.aside.entries

    @property
    def missing(self) -> int:
        """Messages that should have been there at start and were not."""
        return self.aside.missing

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None:
        self.aside.put(partition, shelf, offset, data, reason)

    def met_broken_row(self) -> None:
        self.broken_rows += 1
