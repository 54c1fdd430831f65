"""A node: one storage environment, its writer, and the partitions in it. Opened once, at start; closed once, at the
end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import structlog

from backend_store.core.kept import Detached, Kept, KeptLease, KeptSession
from backend_store.core.leases import Lease
from backend_store.core.receipts import read_token
from backend_store.core.sealing import Sealer
from backend_store.core.shelves import VIEW_OUTBOX
from backend_store.metadata.documents import Documents
from backend_store.metadata.embedded import Metadata
from backend_store.model import Epoch, PushqError, Unavailable
from backend_store.node.alarms import Alarms
from backend_store.node.aside import Aside
from backend_store.node.audit import AuditLog
from backend_store.node.committer import Committer
from backend_store.node.ledger import Counted, LedgerBook
from backend_store.node.limits import CLOCK_LOOK_SECONDS, FAILED_TICK_MS, KEPT_LOOK_SECONDS, SPACE_CHECK_SECONDS
from backend_store.node.partition import Partition
from backend_store.node.queues import Queues
from backend_store.node.rows import TIMED, replicas_in
from backend_store.node.sweeper import Sweeper, is_swept
from backend_store.node.touched import Touched
from backend_store.node.turnstile import Turnstile
from backend_store.node.view import View
from backend_store.storage.engine import Batch, Engine, StorageBroken, StorageError, Table
from backend_store.storage.keys import META_RESTORED
from backend_store.storage.space import DEFAULT_RULES, SpaceGuard, SpaceRules
from backend_store.storage.writer import CommitWriter, Writer

log = structlog.get_logger("pushq.node")

RECEIPT_KEY = b"receipt-key"
COPY_ID = b"copy-id"
KEPT = b"kept"
ANSWER_SECONDS = 0.2
"""Between the read that met a broken structure and the end of the process: who asked is told. Nothing is written."""
_ending = threading.Event()
CANNOT_SERVE = 3
"""Exit code of a process whose data folder cannot be served; that of a start that refuses it, too."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_clock() -> Callable[[], int]:
    """Milliseconds since 1970 as the wall clock said at the start; steady from then on, while the machine sleeps too.

    Leases and due times go by it: somebody who sets the clock must not end all leases at once, or make them last; and
    what is due at ten must not come an hour late because a lid was closed for an hour at night.
    """
    offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return lambda: (offset + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000


def end_process(error: BaseException) -> None:
    """Fail-stop: after a failed write nobody knows what is on the disk, so the next start must look. Where the file is
    broken that will refuse, with the same exit code."""
    if isinstance(error, StorageBroken):
        if not _ending.is_set():
            _ending.set()
            log.critical("the stored data is damaged, the process ends", error=str(error))
            threading.Timer(ANSWER_SECONDS, os._exit, (CANNOT_SERVE,)).start()
        return
    log.critical("storage failed, the process ends and verifies at its next start", error=str(error))
    os.kill(os.getpid(), signal.SIGKILL)


FIRST_EPOCH: Final = Epoch(1)


class Node:
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
    ):
        """`writer`: of somebody for whom a commit is more than this disk; it is his to end. `epoch`: in which logs go
        on at least. A greater one than ever before where they may have lost their ends: receipts and cursors that name
        something there must not be taken for those of what stands in its place."""
        self.engine = engine
        self.epoch = epoch
        self.clock_ms = clock_ms
        self.steady_ms = steady_clock() if clock_ms is wall_clock_ms else clock_ms
        self.loop = asyncio.get_running_loop()
        self.copy_id = engine.disk_id
        """Names the data in rows of the ledger: leaders of one log, each with a disk of its own, call it the same."""
        self._is_led = writer is not None
        self.writer: CommitWriter = writer or Writer(engine, self.loop, on_fatal=on_fatal)
        self.committer = Committer(self.writer, self.loop, on_fatal)
        self.metadata = Metadata(engine, self.committer.write)
        self.sweeper = Sweeper(engine, self.committer.write)
        self.metadata.is_swept = partial(is_swept, engine)
        self.space = SpaceGuard(engine, directory, space) if directory is not None else None
        self.sealer: Sealer | None = None
        """The gateway's. It is there before any queue is opened, or never."""
        self.queues = Queues(self, self.metadata)
        self.ledger = LedgerBook(engine, self.committer.write, self._counted, self.steady_ms, self._listen)
        self.audit = AuditLog(engine, self.committer.write)
        self.documents = Documents(engine, self.committer.write)
        self.turnstile = Turnstile()
        self.aside = Aside(engine, self.committer, self.queues.partitions, self.background)
        self.broken_rows = 0
        self.not_durable: Callable[[], str] = lambda: ""
        """See `why_not_durable`; told by somebody for whom a commit is more than this disk."""
        self.copies: Callable[[], int] = lambda: 1
        """How many disks have what was confirmed a moment ago."""
        self.on_durable: Callable[[], None] = lambda: None
        """Told when what was not durable is so again: deliveries go on."""
        self.is_closing = False
        """Nothing new is begun: what is on its way to the disk is the last."""
        self.kept_leases: dict[str, Lease] = {}
        self.kept_at: dict[str, list[tuple[View, str]]] = {}
        """By gateway, until it is here again or they have ended: tokens of leases of before this process led."""
        self.kept_sessions: list[KeptSession] = []
        self.lease_base = secrets.randbits(62)
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self.touched = cast("Touched[Partition]", self.committer.touched)
        """Partitions that something happened to: the members of a node's cycles are nothing else."""
        self._alarms: Alarms[Partition] = Alarms()
        self.ticks = 0
        """How often a partition was looked at because of the time."""

    def seal_with(self, sealer: Sealer) -> None:
        """Has every queue's blocks opened and sealed by a gateway."""
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
        self.metadata.found(batch, self.clock_ms())
        if restored:
            self.metadata.skip_uids(batch)
        leaving = self.queues.open_all(batch, restored=restored)
        self.aside.find()
        self.aside.verify()
        # Of thousands of queues few have something that waits for its time: who has is found out once, and not by each.
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
        ]

    def _name_copy(self, batch: Batch, *, anew: bool) -> None:
        """The first leader of a log names it, for all that follow."""
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
        """Takes up stored leases, and those of a clean stop. Of leases that are memory a crash leaves none: what was in
        flight is redelivered."""
        row = self.engine.get(Table.META, KEPT)
        kept = msgspec.msgpack.decode(row, type=Kept) if row is not None else Kept([], [])
        holder = Detached()
        back_ms = max(0, kept.at_ms - self.steady_ms())  # the clock is an earlier one: what was left is still left
        for lease in [*self._stored_leases(), *kept.leases]:
            if back_ms:
                lease = msgspec.structs.replace(lease, deadline_ms=lease.deadline_ms - back_ms)
            partition = self.queues.partitions.get(lease.uid)
            view = partition.find_view(lease.view) if partition is not None else None
            restored = view.restore(lease, holder) if view is not None else None
            if view is not None and restored is not None:
                self.kept_leases.setdefault(restored.token, restored)
                if restored.gateway:
                    self.kept_at.setdefault(restored.gateway, []).append((view, restored.token))
        self.kept_sessions = kept.sessions
        if self.kept_leases or self.kept_at:
            self.later(KEPT_LOOK_SECONDS, self._forget_kept)

    def _forget_kept(self) -> None:
        """Of leases that ended nothing is kept for who had them: a gateway that was started anew has another name."""
        for gateway, kept in list(self.kept_at.items()):
            left = [(view, token) for view, token in kept if view.core.leases.get(token) is not None]
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
            )
            for uid, partition in self.queues.partitions.items()
            for view in partition.views.values()
            for lease in view.core.leases.values()
            if lease.counts and not lease.number  # those with a number have a row of their own
        ]
        batch = Batch()
        batch.put(Table.META, KEPT, msgspec.msgpack.encode(Kept(leases, sessions, self.steady_ms())))
        return batch

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        """Writes what waits and what is to be kept, then closes the environment cleanly."""
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
        """Stops without a word on the disk, for another leads: what this one holds in memory is void. Engine and writer
        are left as they are."""
        self.is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self.committer.abandon(error)
        partitions = list(self.queues.partitions.values())
        for _ in range(2):  # what had waited for the idempotency keys of the first ones comes by their answers
            for partition, reply in [(one, reply) for one in partitions for reply in one.inbox.take_waiting()]:
                partition.tell(reply, Unavailable(f"queue {partition.label!r}: {error.detail}; nothing was begun"))
            self.queues.refuse_waiting(error)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs it beside everything else; closing ends it."""
        task = self.loop.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    # ----------------------------------------------------------------------------------------------------- time

    def arm(self, partition: Partition, deadline_ms: int) -> None:
        """Has the partition ticked at its deadline; the node's one timer is set to the first of all."""
        self._alarms.set(partition, deadline_ms)
        self.touched.add(partition)
        self._wake_by(deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        if self._timer_ms is not None and self._timer_ms <= deadline_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        # A timer stands still while the machine sleeps, and the steady clock does not.
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
                # A fault of ours in one queue must not stop the clocks of the others, nor keep them from their turn.
                log.exception("a queue failed on its timer", queue=partition.label)
                wakeup_ms = now_ms + FAILED_TICK_MS
            if wakeup_ms is not None:
                self._alarms.set(partition, wakeup_ms)
        if (next_ms := self._alarms.next_ms()) is not None:
            self._wake_by(next_ms)

    def export(self, partition: Partition) -> None:
        """Something lies in the partition's outbox."""
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
        """Why nothing that is written now would be safe, and no ack could be kept; "" where it would."""
        return self.not_durable()

    def refuse_waiting(self, reason: str) -> None:
        """Answers publishes that wait: what they ask for cannot become safe now."""
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
                # The next look may succeed; without one, publishes would run into a full disk.
                log.error("cannot look at the disk's space", error=str(error))
            await asyncio.sleep(SPACE_CHECK_SECONDS)

    # --------------------------------------------------------------------------------------------------- damage

    @property
    def quarantined(self) -> int:
        """Entries that were put aside since the process began."""
        return self.aside.entries

    @property
    def missing(self) -> int:
        """Messages that should have been there at the start and were not."""
        return self.aside.missing

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None:
        self.aside.put(partition, shelf, offset, data, reason)

    def met_broken_row(self) -> None:
        self.broken_rows += 1
