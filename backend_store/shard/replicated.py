"""One replica of one shard: drives the replication core with this disk, the connections to peers and the coordinator.

The core decides what is to be done, in order; this module carries it out. An entry's rows are written when the entry is
stored; the core's *applied* offset is the end of the entries that will not be undone any more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from backend_store.cluster.coordinator import boot_seconds
from backend_store.core.replication import effects as does
from backend_store.core.replication.entries import Draft, Entry
from backend_store.core.replication.follower import Follower
from backend_store.core.replication.limits import FETCH_BYTES_MAX
from backend_store.core.replication.messages import AskSnapshot, Diverged, Fetch, Message, SnapshotPage
from backend_store.core.replication.record import Change, DiskId, Identity, Incarnation, NodeId, PartitionRecord
from backend_store.core.replication.replica import Replica
from backend_store.core.replication.settings import Settings
from backend_store.model import Epoch, Offset, Unavailable
from backend_store.node.node import wall_clock_ms
from backend_store.shard import entry_rows, quarantine
from backend_store.shard.entry_rows import Keeping, Stored
from backend_store.shard.interface import ShardNumber
from backend_store.shard.leading import Deposed
from backend_store.shard.limits import PAGES_WAITING_MAX, QUARANTINE_BYTES_MAX, RECENT_BYTES_MAX
from backend_store.shard.pace import Pace
from backend_store.shard.quarantine import Base
from backend_store.shard.store import ShardStore, StageRows, Switch, Work
from backend_store.storage.engine import Batch, Rows, Table
from backend_store.storage.env import LmdbEngine
from backend_store.storage.writer import Done

log = structlog.get_logger("pushq.shard")


def now_ms() -> int:
    return int(boot_seconds() * 1000)


class Outside(Protocol):
    """What a replica asks of the process around it. No method may call back before it returns."""

    def send(self, to: NodeId, message: Message) -> None: ...

    def submit(self, shard: ShardNumber, change: Change) -> None: ...

    def reread(self, shard: ShardNumber) -> None: ...

    def followed(self, shard: ShardNumber) -> None:
        """The replica does not lead any more."""

    def confirmed(self, shard: ShardNumber) -> None:
        """The replica leads, and all that it took over is confirmed."""


class Replicated:
    def __init__(
        self,
        number: ShardNumber,
        me: tuple[NodeId, Incarnation],
        path: Path,
        outside: Outside,
        *,
        on_fatal: Callable[[BaseException], None],
        settings: Settings | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Opens or makes the shard's folder. `pace`: limits how fast the folder is read for copies elsewhere.

        Raises storage errors, `CorruptEntry`, `OSError`.
        """
        self.number = number
        self.store = ShardStore(path, number, on_fatal=on_fatal)
        self._outside = outside
        self._on_fatal = on_fatal
        stored, tail = self.store.stored()
        self.quarantined = self.store.engine.look(quarantine.tally_of)
        """Number and bytes of the messages that are kept from what was truncated from this copy's log."""
        self.damaged = 0
        """Rows that the last pass of the scrub found to differ from what was written; 0 once the copy is renewed."""
        self.repairs = 0
        """How often this copy was renewed because of damaged rows."""
        self._is_switching = False
        """A snapshot is complete and is replacing the state."""
        self._said_full = False
        identity = Identity(*me, disk=DiskId(self.store.disk))
        self.replica = Replica(identity, stored, tail, settings=settings, now_ms=now_ms())
        self._work: list[Work] = []
        self._is_due = False
        """Some of the work must be committed without waiting for other work."""
        self._apply_to = self.replica.log.applied
        self._recent: OrderedDict[int, Entry] = OrderedDict()
        """Cached entries by their offsets. There may be tens of thousands, and each commit asks for the first one."""
        self._recent_bytes = 0
        self._rows: dict[int, dict[Table, Rows]] = {}
        """Rows of entries that this process made, until they are handed to the disk."""
        self._trims_to: Offset | None = self.replica.log.start
        """The log below it is not needed, and may not be deleted yet."""
        self._is_trimming = False
        self._looked_at = self.replica.log.end
        """The end of the log at the last look."""
        self._told_durable: list[asyncio.Future[None]] = []
        self._is_settling = False
        self._is_closed = False
        self._awaits_confirmation = False
        """The replica leads, and `Outside.confirmed` has not been called yet."""
        self._pace = pace or Pace(0)
        self._asks: dict[NodeId, AskSnapshot] = {}
        """Requested snapshot pages, the last request of each node."""
        self._next_page: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------------------------------------------------- inputs

    def on_record(self, record: PartitionRecord) -> None:
        self._tell(partial(self.replica.on_record, record, wall_ms=wall_clock_ms()))

    def on_refused(self, change: Change, record: PartitionRecord) -> None:
        self._tell(partial(self.replica.on_refused, change, record, wall_ms=wall_clock_ms()))

    def on_message(self, sender: NodeId, message: Message) -> None:
        """`sender`: the node that the connection authenticated. A message that names another node as its sender is
        ignored."""
        if not self._may_say(sender, message):
            return
        if isinstance(message, SnapshotPage) and self._pages_waiting > PAGES_WAITING_MAX:
            return  # this disk is slower than the leader's: the page is requested again
        if isinstance(message, Diverged | SnapshotPage) and self._is_full():
            return  # nothing is truncated while the quarantine is full
        self._tell(partial(self.replica.on_message, message))

    def _may_say(self, sender: NodeId, message: Message) -> bool:
        if isinstance(message, Fetch | AskSnapshot):
            if message.sender.node != sender:
                log.warning("a backend speaks for another", shard=self.number, sender=sender, named=message.sender.node)
            return message.sender.node == sender
        role = self.replica.role
        return not isinstance(role, Follower) or role.leader == sender

    def on_line(self, node: NodeId) -> None:
        """There is a new connection to that node."""
        self._tell(partial(self.replica.reconnected, node))

    def rejoin(self, inc: Incarnation) -> None:
        self._tell(partial(self.replica.rejoin, inc, wall_ms=wall_clock_ms()))

    def look(self, lease_until_s: float | None, alive: Collection[NodeId]) -> None:
        """`lease_until_s`: until when the session is held, by the clock `boot_seconds`; None: there is no session, or
        it is lost. `alive`: the nodes that have a session."""
        record = self.replica.record
        could_lead = () if record is None else (*record.isr, *record.elr)
        self.replica.has_ended([node for node in could_lead if node not in alive])
        if lease_until_s is None:
            self.replica.lose_lease()
        else:
            self.replica.keep_lease(int(lease_until_s * 1000))
        self._tell(self._look)

    def _look(self, *, now_ms: int) -> None:
        self.replica.look(now_ms=now_ms)
        self._go_on_trimming()

    def hand_over(self, target: NodeId) -> None:
        self._tell(partial(self.replica.hand_over, target))

    def _tell(self, what: Callable[..., None]) -> None:
        """Gives the core an input with the current time, and carries out the effects that the core asks for."""
        if self._is_closed:
            return
        try:
            what(now_ms=now_ms())
        except Exception as error:
            self._fail(error)
            return
        self._settle()

    def _fail(self, error: Exception) -> None:
        """A bug of ours, or a row that cannot be read: this replica must not go on."""
        log.error("a shard failed", shard=self.number, exc_info=error)
        self._is_closed = True
        self._on_fatal(error)

    def _is_full(self) -> bool:
        """Whether the quarantine is full: then this copy follows no log that has diverged from its own."""
        is_full = self.quarantined.bytes >= QUARANTINE_BYTES_MAX
        if is_full and not self._said_full:
            log.error(
                "the quarantine is full and this copy cannot follow: publish or drop its messages with pushq recover",
                shard=self.number,
                messages=self.quarantined.messages,
                bytes=self.quarantined.bytes,
            )
        self._said_full = is_full
        return is_full

    # --------------------------------------------------------------------------------------------------------- damage

    @property
    def engine(self) -> LmdbEngine | None:
        """The environment of its rows; None when the replica is closed, and while a snapshot replaces the rows."""
        return None if self._is_closed or self._is_switching else self.store.engine

    def renew(self) -> None:
        """Has a follower's rows copied from the leader again, unless that goes on already or cannot begin now."""

        def begin(*, now_ms: int) -> None:
            if not self._is_switching and self.replica.renew(now_ms=now_ms):
                log.warning("a damaged copy is taken anew from its leader", shard=self.number, rows=self.damaged)

        self._tell(begin)

    # ---------------------------------------------------------------------------------------------- the quarantine

    async def change_quarantine(self, step: entry_rows.Step) -> None:
        """Returns when the change is on the disk. Raises `Unavailable` where this copy is closed before."""
        if self._is_closed:
            raise _closed(self.number)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told_durable.append(durable)
        self._work.append(step)
        self._is_due = True
        self._settle()
        await durable

    async def rename(self) -> None:
        """Gives this copy a new name, because its data are older than the old name claims. Returns when the name is on
        the disk. Raises as `change_quarantine`."""
        if self._is_closed:
            raise _closed(self.number)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told_durable.append(durable)
        self._work.append(partial(entry_rows.put_disk, name=self.store.rename()))
        self._is_due = True
        self.replica.me = replace(self.replica.me, disk=DiskId(self.store.disk))
        self._settle()
        await durable

    @property
    def _pages_waiting(self) -> int:
        return sum(isinstance(work, StageRows) for work in self._work)

    # ----------------------------------------------------------------------------------------------------- as a leader

    def append(self, batch: Batch, payload: bytes, done: Done) -> bool:
        """Appends a batch to the log; calls `done` when the batch is confirmed, or when its outcome will not be known.
        Returns False where the log takes no batch now."""
        made = self.replica.append([Draft(1, (payload,))], now_ms=now_ms(), wall_ms=wall_clock_ms())
        if isinstance(made, str):
            return False
        self._rows[made[0].offset] = batch.rows
        is_waiting = self.replica.wait(made[0].end, done, now_ms=now_ms())
        assert is_waiting, "one batch at a time is in flight"
        self._settle()
        return True

    @property
    def is_leading(self) -> bool:
        """Whether this process is named leader."""
        return self.replica.leader is not None

    @property
    def may_serve(self) -> bool:
        """Whether this process leads, has everything confirmed that it took over, and knows that no other process
        leads."""
        leader = self.replica.leader
        if leader is None or leader.reshaping.is_leaving or not leader.is_vouched_for(now := now_ms()):
            return False
        return leader.confirmed_end(now) > 0 and self.replica.log.is_whole

    @property
    def epoch_of_logs(self) -> Epoch:
        """The epoch that queues' logs continue in. In mode `async`, positions of a leader's last messages that were
        given out may outlive these messages, and other messages take the same positions: so in mode `async` each
        leadership gives the logs an epoch of its own."""
        leader = self.replica.leader
        return Epoch(1) if leader is None or leader.record.mode == "sync" else leader.epoch

    def why_not_durable(self) -> str:
        """Why nothing that is taken now would be confirmed; "" where it would."""
        leader = self.replica.leader
        if leader is None or (record := leader.record).mode == "async" or not record.is_short:
            return ""
        return f"{len(record.isr)} of at least {record.min_in_sync} replicas are in sync"

    def copies(self) -> int:
        """Number of disks that have what was confirmed last: the replicas in sync, or the leader alone in mode
        `async`."""
        leader = self.replica.leader
        return 1 if leader is None or leader.record.mode == "async" else len(leader.record.isr)

    @property
    def is_all_confirmed(self) -> bool:
        """Whether the rows on this disk, those of the whole log, may be read by clients: a node can be opened on
        them."""
        leader = self.replica.leader
        return leader is not None and leader.confirmed_end(now_ms()) >= self.replica.log.end

    # --------------------------------------------------------------------------------------------------------- effects

    def _settle(self) -> None:
        if self._is_settling or self._is_closed:
            return
        self._is_settling = True
        has_sent = False
        try:
            while asked := self.replica.take():
                for effect in asked:
                    _DOES[type(effect)](self, effect)
                    has_sent = has_sent or type(effect) is does.Send
            self._apply()
            if self._awaits_confirmation and self.is_all_confirmed:
                self._awaits_confirmation = False
                self._outside.confirmed(self.number)
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._is_settling = False
        if self._is_due and has_sent:
            # Submitting to the disk blocks the loop; messages to peers leave at the end of this turn, before the commit
            # begins.
            asyncio.get_running_loop().call_soon(self._begin_if_due)
        elif self._is_due:
            self._begin()

    def _begin_if_due(self) -> None:
        if self._is_due:
            self._begin()

    def _apply(self) -> None:
        replica_log = self.replica.log
        end = Offset(min(self._apply_to, replica_log.high_watermark))
        if end > replica_log.applied:
            self.replica.applied_to(end)
            self._work.append(partial(entry_rows.settle, end=end))

    def _append(self, effect: does.Append) -> None:
        for entry in effect.entries:
            self._recent[entry.offset] = entry
            self._recent_bytes += len(entry.data)
            self._work.append(partial(self._store, entry=entry))
        self._is_due = True

    def _store(self, changes: Any, entry: Entry) -> None:
        entry_rows.append(changes, Stored(entry, self._rows.pop(entry.offset, None)))
        if self.quarantined.messages:
            quarantine.forget_entry(changes, entry.epoch, entry.offset, self.quarantined)

    def _truncate(self, effect: does.Truncate) -> None:
        self._forget_from(effect.end)
        keeping = self._keeping(None) if effect.keeps else None
        self._work.append(partial(entry_rows.truncate, end=effect.end, keeping=keeping))
        self._is_due = True
        log.info("a log was cut off", shard=self.number, end=effect.end, keeps=effect.keeps)

    def _keeping(self, base: Base | None) -> Keeping:
        return Keeping(self.number, self.quarantined, wall_clock_ms(), base)

    def _forget_from(self, end: int) -> None:
        for offset in [offset for offset in self._recent if offset >= end]:
            self._recent_bytes -= len(self._recent.pop(offset).data)

    def _trim(self, effect: does.Trim) -> None:
        self._trims_to = effect.start

    def _go_on_trimming(self) -> None:
        """Trims one piece at a time: what was kept for a replica that is given up may be a million entries. A piece
        rides in the commit of the next entries; a commit of its own would only delay them. Where no entry came since
        the last look, the piece gets its own commit."""
        start, is_still = self._trims_to, self.replica.log.end == self._looked_at
        self._looked_at = self.replica.log.end
        if start is None:
            return
        if not self._is_trimming:
            if not self.store.has_below(start):
                self._trims_to = None
                return
            self._is_trimming = True
            self._work.append(partial(entry_rows.trim, start=start))
        self._is_due = self._is_due or is_still

    def _applied(self, effect: does.Apply) -> None:
        self._apply_to = max(self._apply_to, effect.end)

    def _stage_rows(self, effect: does.StageRows) -> None:
        if effect.is_first:
            log.info("a snapshot is taken", shard=self.number)
        self._work.append(StageRows(effect.rows, effect.is_first))
        self._is_due = True

    def _switch(self, effect: does.Switch) -> None:
        self._forget_from(0)
        base = Base(effect.base.epochs, effect.base.end)
        keeping = self._keeping(None if effect.has_parted else base) if effect.keeps else None
        self._work.append(Switch(effect.base.end, effect.end, keeping, base, self.quarantined))
        self._apply_to = effect.base.end
        self._is_due = self._is_switching = True
        log.info("a snapshot takes the place of the state", shard=self.number, base=effect.base.end)

    def _send(self, effect: does.Send) -> None:
        self._outside.send(effect.to, effect.message)

    def _serve(self, effect: does.Serve) -> None:
        found: list[bytes] = []
        size, offset, end = 0, effect.fetch.end, self.replica.log.end
        while offset < end and size < FETCH_BYTES_MAX:
            entry = self._recent.get(offset)
            entries = [entry] if entry is not None else self._from_disk(offset, FETCH_BYTES_MAX - size)
            for one in entries:
                size += len(one.data)
                if found and size > FETCH_BYTES_MAX:
                    break
                found.append(one.data)
                offset = one.end
        self.replica.fetched(effect.fetch, tuple(found), now_ms=now_ms())

    def _from_disk(self, offset: Offset, bytes_max: int) -> list[Entry]:
        end = min((recent for recent in self._recent if recent > offset), default=self.replica.log.end)
        return self.store.entries(offset, end, bytes_max)

    def _serve_snapshot(self, effect: does.ServeSnapshot) -> None:
        self._asks[effect.ask.sender.node] = effect.ask
        if self._next_page is None:
            self._serve_page()

    def _serve_page(self) -> None:
        """Sends the next page, as soon as it may be read. A follower that waits asks again; its last request is
        answered."""
        loop = asyncio.get_running_loop()
        self._next_page = None
        if self.replica.leader is None:
            self._asks.clear()
        while self._asks and not self._is_closed:
            if (wait_s := self._pace.wait_s(loop.time())) > 0:
                self._next_page = loop.call_later(wait_s, self._page_is_due)
                break
            ask = self._asks.pop(next(iter(self._asks)))
            rows, is_last = self.store.page(ask.after, self.replica.log.applied)
            self._pace.take(sum(len(key) + len(value) for key, value in rows), loop.time())
            self.replica.page(ask, rows, is_last=is_last)
        self._settle()

    def _page_is_due(self) -> None:
        try:
            self._serve_page()
        except Exception as error:
            log.exception("a shard failed", shard=self.number)
            self._on_fatal(error)

    def _submit(self, effect: does.Submit) -> None:
        self._outside.submit(self.number, effect.change)

    def _reread(self, effect: does.Reread) -> None:
        self._outside.reread(self.number)

    def _lead(self, effect: does.Lead) -> None:
        log.info("leads a shard", shard=self.number, epoch=effect.epoch)
        self._awaits_confirmation = True

    def _follow(self, effect: does.Follow) -> None:
        log.info("leads a shard no more", shard=self.number)
        self._awaits_confirmation = False
        self._outside.followed(self.number)

    def _confirm(self, effect: does.Confirm) -> None:
        for done in effect.tickets:
            done(None)

    def _abandon(self, effect: does.Abandon) -> None:
        for done in effect.tickets:
            done(Deposed(f"this process does not lead shard {self.number} any more"))

    # --------------------------------------------------------------------------------------------------------- commits

    def _begin(self) -> None:
        if self.store.is_busy or self._is_closed:
            return
        self._is_due = False
        work, self._work = self._work, []
        self._is_trimming = False
        told, self._told_durable = self._told_durable, []
        mark = self.replica.staged()
        is_anew = any(isinstance(one, Switch) for one in work)
        done = partial(self._committed, mark, told, is_anew=is_anew)
        self.store.commit(work, self.replica.log.stored(), done)

    def _committed(self, mark: Any, told: list[asyncio.Future[None]], *, is_anew: bool) -> None:
        if is_anew:
            self._is_switching = False
            if self.damaged:
                log.info("a damaged copy was taken anew", shard=self.number)
                self.repairs, self.damaged = self.repairs + 1, 0
        for one in told:
            if not one.done():
                one.set_result(None)
        if self._is_closed:
            return
        self._tell(partial(self.replica.committed, mark))
        durable = self.replica.log.durable_end
        while self._recent_bytes > RECENT_BYTES_MAX:
            if (offset := next(iter(self._recent))) >= durable:
                break
            self._recent_bytes -= len(self._recent.pop(offset).data)
        if self._is_due:
            self._begin()

    async def close(self) -> None:
        """Waits for commits in progress."""
        self._is_closed = True
        if self._next_page is not None:
            self._next_page.cancel()
        await self.store.close()
        for one in self._told_durable:
            if not one.done():
                one.set_exception(_closed(self.number))


def _closed(shard: int) -> Unavailable:
    return Unavailable(f"this copy of shard {shard} is closed")


_DOES: dict[type, Callable[[Replicated, Any], None]] = {
    does.Append: Replicated._append,
    does.Truncate: Replicated._truncate,
    does.Trim: Replicated._trim,
    does.Apply: Replicated._applied,
    does.StageRows: Replicated._stage_rows,
    does.Switch: Replicated._switch,
    does.Send: Replicated._send,
    does.Serve: Replicated._serve,
    does.ServeSnapshot: Replicated._serve_snapshot,
    does.Submit: Replicated._submit,
    does.Reread: Replicated._reread,
    does.Lead: Replicated._lead,
    does.Follow: Replicated._follow,
    does.Confirm: Replicated._confirm,
    does.Abandon: Replicated._abandon,
}
