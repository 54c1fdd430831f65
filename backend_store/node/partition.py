"""One partition at run time: takes commands, has the cores decide them in commit cycles, answers when they are durable.

The partition owns its state; callers send commands and are called back. No method awaits: a command is decided in one
step, and its answer comes from the commit that made it true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from backend_store.core.groups import GroupView
from backend_store.core.ledger import Title, doom, is_owed
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.log import LogTime
from backend_store.core.log.records import (
    GroupRow,
    PartitionState,
    Record,
    Scheduled,
)
from backend_store.core.log.sealed_block import Seal
from backend_store.core.log.sublogs import (
    MAIN,
    VIEW_GROUPS,
    VIEW_MAIN,
    VIEW_OUTBOX,
    is_read,
    is_scheduled,
    view_of,
)
from backend_store.core.partitions.slot_history import SlotBook
from backend_store.core.ready.work_queue import WorkView
from backend_store.model import (
    Block,
    Claim,
    NotDurable,
    Offset,
    PushqError,
    QueueConfig,
    QueueNotFound,
    StorageFull,
)
from backend_store.node.commit.committer import Committer
from backend_store.node.commit.cycle import Answers, Cycle, Decided
from backend_store.node.commit.inbox import Inbox, PurgeReply
from backend_store.node.commit.publish_call import Call, PublishReply, is_plain
from backend_store.node.commit.transaction import Transaction
from backend_store.node.ledger import stage_cut, stage_day
from backend_store.node.log.apply import read_order
from backend_store.node.log.log_reads import LogReads
from backend_store.node.log.retention import Retention
from backend_store.node.log.row_reader import LogReader
from backend_store.node.log.seek import Counting
from backend_store.node.publishing.queue_limits import NOTHING, Amount
from backend_store.node.publishing.refusals import outcome_open, too_late, why_refused
from backend_store.node.slots.held_slots import close_lanes
from backend_store.node.slots.partition_slots import PartitionSlots
from backend_store.node.views.factory import reconfigure
from backend_store.node.views.groups import Groups
from backend_store.node.views.reorder import Reorder
from backend_store.node.views.view import View
from backend_store.storage.engine import Batch, Engine

if TYPE_CHECKING:
    from backend_store.node.publishing.known_ids import IdStore

log = structlog.get_logger("pushq.partition")


class Surroundings(Protocol):
    """What a partition needs from its node."""

    engine: Engine
    committer: Committer

    @property
    def steady_ms(self) -> Callable[[], int]: ...
    def publishes_allowed(self) -> bool: ...
    def why_no_publishes(self) -> str: ...
    def why_not_durable(self) -> str:
        """Why nothing written now would be durable; "" if writes are durable."""

    def wrote(self, size: int) -> None: ...
    def soon(self, call: Callable[[], None]) -> None:
        """Calls in the next turn of the loop."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls after `seconds`, unless the node closes before."""

    def export(self, partition: Partition) -> None:
        """Starts to move messages from the partition's outbox to the queue they are for."""

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None: ...
    def met_broken_row(self) -> None:
        """Counts an index row that does not verify."""


class MakeCore(Protocol):
    """Makes the core of a view. `group`: of a consumer group, its row and the offset where its first chunk begins."""

    def __call__(
        self, config: QueueConfig, view: int, state: PartitionState, group: tuple[GroupRow, Offset] | None = None, /
    ) -> WorkView: ...


Siblings = Callable[[], Sequence["Partition"]]
"""A queue's other partitions."""


class Partition(LogReads):
    """One partition; `Queues` makes and closes it, and its queue is a `Partitions`."""

    owes_room = False
    """The last commit ended as many messages for the queue's limits as one commit may, and there are more. A class
    attribute, as `has_losses` is."""
    held_slots = 0
    """Slots, as bits, of which nothing is delivered because older messages are in another part of the queue (strict
    order). A class attribute, as `has_losses` is."""
    has_losses = False
    """Some of what was stored here is damaged: once nothing is left, the counts must be zero as well. A class
    attribute, as hardly any partition sets it: an object with 30 attributes of its own takes five times the memory of
    one with 29."""

    def __init__(
        self,
        node: Surroundings,
        *,
        replica: int,
        label: str,
        state: PartitionState,
        config: QueueConfig,
        make_core: MakeCore,
        index: int = 0,
        title: Title | None = None,
        seal: Seal | None = None,
    ):
        self.node = node
        self.replica = replica
        self.label = label
        self.index = index
        self.title = title or Title("", "", label, replica, index)
        self.owes_cut = False
        """The next commit writes what was counted as a row of the ledger."""
        self.seal = seal
        """Opens and seals blocks that move in; None in a store without a gateway."""
        self.state = state
        self.config = config
        self._time = LogTime(node.steady_ms(), state.time_ms)
        self.closed = False
        self.has_retired = False
        """Closed because nothing was left in it; its queue still exists."""
        self.is_leaving = False
        """The queue is deleted and its messages go to another queue: nothing more comes in."""
        self.views: dict[int, View] = {}
        self.on_appended: Callable[[list[Chunk]], None] = _ignore_chunks
        self.on_deadline: Callable[[Partition, int], None] = _ignore_deadline
        self.on_purged: Callable[[], None] = _nothing
        self.reader = LogReader(node.engine, replica, self._broken, index, node.met_broken_row, seal, self.title.uid)
        self._make_core = make_core
        self.inbox = Inbox()
        self.slotting: PartitionSlots | None = None
        """Set for a queue that has or had several partitions."""
        self.siblings: Siblings = _alone
        self._has_joined = False
        """A transaction was decided in this cycle."""
        self._decided: Decided | None = None
        self._ids: IdStore | None = None
        self.sorting = Reorder(self, config) if config.kind == "work" and config.sequencing != "arrival" else None
        self.groups = Groups(self) if config.kind == "stream" else None
        self.retention = Retention(self) if config.kind == "stream" else None
        self.counting = Counting()
        if config.kind == "work":
            self.view(VIEW_MAIN)

    def view(self, number: int) -> View:
        """Returns one of the partition's views, made on first use."""
        found = self.views.get(number)
        if found is None:
            found = self.views[number] = View(self, self._make_core(self.config, number, self.state))
            if number != VIEW_MAIN:
                found.recover(self.steady_ms())  # the main view is recovered with the partition
        return found

    def find_view(self, number: int) -> View | None:
        """The view that a receipt or a kept lease names; None for a group that was deleted."""
        if number < VIEW_GROUPS:
            return self.view(number)
        return self.groups.view(number) if self.groups is not None else None

    def make_group(self, row: GroupRow, low: Offset) -> GroupView:
        """The core of a group whose first chunk begins at `low`."""
        core = self._make_core(self.config, row.number, self.state, (row, low))
        assert isinstance(core, GroupView)
        return core

    @property
    def main(self) -> View | None:
        """The view of a work queue; None for a stream, which has only the views of its groups."""
        return self.views.get(VIEW_MAIN)

    @property
    def ids(self) -> IdStore:
        """The ids and idempotency keys that the partition remembers."""
        if self._ids is None:
            from backend_store.node.publishing.known_ids import IdStore

            self._ids = IdStore(self.node.engine, self.replica)
        return self._ids

    def configure(self, config: QueueConfig) -> None:
        """Applies changed settings from the next decision on."""
        self.config = config
        for view in self.views.values():
            reconfigure(view.core, config)
        if self.retention is not None:
            self.retention.configured()
        if self.sorting is not None:
            self.sorting.sorter.configure(config)
            self.request()  # a shorter window may be over already

    def recover(self, now_ms: int, *, is_timed: bool = True) -> None:
        """Restores what survives a restart. `is_timed`: the partition may have rows in a table of `TIMED`."""
        if self.groups is not None and self.retention is not None:
            self.groups.recover()
            self.retention.recover()
        for view in self.views.values():
            view.recover(now_ms, is_timed=is_timed or view.number != VIEW_MAIN)
        main = self.main
        if self.sorting is not None and main is not None:
            self.sorting.restore(main, read_order(self.node.engine, self.replica))
            if (next_ms := self.sorting.next_ms()) is not None:
                self.wake_at(next_ms)

    # ------------------------------------------------------------------------------------------------ for views

    def steady_ms(self) -> int:
        """The clock of leases, delays and expiry. After a restart it may show an earlier time than when the last
        process ended."""
        return self.node.steady_ms()

    def log_ms(self) -> int:
        """The clock of stored times: when messages came, how old they are, how long an id is remembered."""
        return self._time.at(self.node.steady_ms(), self.state.time_ms)

    def steady_of(self, log_ms: int) -> int:
        """Converts a time of the log's clock to the steady clock."""
        return log_ms - self._time.ahead_ms

    def request(self) -> None:
        self.node.committer.request(self)

    def request_soon(self) -> None:
        self.node.committer.request_soon(self)

    def ride_along(self) -> None:
        self.node.committer.ride_along(self)

    def wake_at(self, time_ms: int) -> None:
        self.on_deadline(self, time_ms)

    def look_again(self, view: View) -> None:
        self.node.soon(view.on_ready)

    def deleted(self) -> QueueNotFound:
        return QueueNotFound(f"queue {self.label!r} was deleted")

    # ------------------------------------------------------------------------------------------------ commands

    def publish(
        self,
        blocks: list[Block],
        reply: PublishReply,
        *,
        must_fit: bool = False,
        dedupes: bool = False,
        slots: int = 0,
        version: int = 0,
        claim: Claim | None = None,
        moves: bool = False,
        stays: bool = False,
        until_ms: int = 0,
        follows: int = 0,
    ) -> None:
        """Stores messages; `reply` gets their place once they are durable, or the error that kept them out.

        `slots` and `version`: the messages' slots and the slot table that routed them here. `claim` is bound in the
        same commit, also when it comes without messages; then `follows` are the slots of the messages that come after
        it. `moves`: the messages were in a queue before. `stays`: they were in this queue, and leave their old place
        with the same commit. After `until_ms` the caller has stopped waiting: a publish that has not begun by then is
        refused.
        """
        count = size = 0
        for block in blocks:
            count += block.count
            size += len(block.data)
        error = self._why_not(count, size) if not must_fit else None
        if error is not None:
            reply(error)
            return
        if must_fit:
            self.node.committer.room.take(size)
        plain = is_plain(blocks) and (claim is None or bool(blocks))
        came_ms = self.node.steady_ms()
        self.inbox.add(
            Call(
                blocks,
                count,
                size,
                plain,
                must_fit,
                dedupes,
                reply,
                slots,
                version,
                came_ms,
                claim,
                moves,
                stays,
                until_ms,
                follows,
            )
        )
        if until_ms and self.inbox.first_until_ms == until_ms:
            self.wake_at(until_ms)
        self.node.committer.request(self)

    def why_full(self, messages: int, size: int) -> PushqError | None:
        """Why so many more messages and bytes cannot wait here; None if they can."""
        return self.inbox.why_full(self.label, messages, size)

    def why_not(self, blocks: Sequence[Block]) -> PushqError | None:
        """Why these messages cannot be taken now, the queue's own limits aside; None if they can."""
        return self._why_not(sum(b.count for b in blocks), sum(len(b.data) for b in blocks))

    def _why_not(self, count: int, size: int) -> PushqError | None:
        if self.closed or self.is_leaving:
            return self.deleted()
        if not self.node.publishes_allowed():
            return StorageFull(f"queue {self.label!r}: {self.node.why_no_publishes()}")
        if reason := self.node.why_not_durable():
            return self._not_durable(reason)
        return self.inbox.why_full(self.label, count, size)

    def _not_durable(self, reason: str) -> NotDurable:
        return NotDurable(f"queue {self.label!r}: {reason}; nothing was accepted", retry_after_ms=1000)

    def refuse_waiting(self, reason: str) -> None:
        """Refuses publishes that wait for a commit: they cannot become durable now, and none of them was begun."""
        for call in self.inbox.take_unpromised():
            self.tell(call.reply, self._not_durable(reason))

    def why_refused(
        self, blocks: Sequence[Block], elsewhere: Sequence[Block] = (), freed: Amount | None = NOTHING
    ) -> PushqError | None:
        """Why the queue itself would refuse some of these messages if they came next; None if it would not. Asked for a
        transaction, which must not fail half-way. Messages promised to others in this cycle count as stored, and so do
        those that the transaction has for other partitions (`elsewhere`); what it settles (`freed`) does not. `freed`
        is None if all messages are in the queue already.
        """
        return why_refused(self, [*self.inbox.promised, *blocks], elsewhere, freed)

    def split(self, book: SlotBook) -> PartitionSlots:
        """Makes the partition one of several: some slots are its own."""
        self.slotting = PartitionSlots(self, book)
        self.slotting.gate()
        return self.slotting

    def hold(self, slots: int) -> None:
        """Stops delivery of messages in these slots, and resumes that of all others."""
        if slots != self.held_slots:
            self.held_slots = slots
            close_lanes(self)

    def elders(self) -> Sequence[Partition]:
        """Partitions that owned some of this partition's slots before."""
        if self.slotting is None or not self.slotting.has_heirlooms:
            return ()
        return self.siblings()

    @property
    def live(self) -> int:
        """Messages of the main view that are stored and do not end with the next commits."""
        leaving = self.inbox.freed.messages
        return self.decided.live - leaving - (self.main.core.dying if self.main is not None else 0)

    @property
    def live_bytes(self) -> int:
        """What the messages of `live` count for, in bytes."""
        core = self.main.core if self.main is not None else None
        leaving = self.inbox.freed.size
        return self.decided.live_bytes - leaving - (core.ended_bytes + core.dying_bytes if core is not None else 0)

    @property
    def coming(self) -> tuple[int, int]:
        """Messages of the main view, and bytes, that the commit in flight adds: none of them can be ended yet."""
        chunks = self._decided.chunks if self._decided is not None else ()
        mine = [chunk for chunk in chunks if view_of(chunk.shelf) == VIEW_MAIN]
        return sum(chunk.count for chunk in mine), sum(len(chunk.data) for chunk in mine)

    @property
    def decided(self) -> PartitionState:
        """The state after the commit in flight."""
        return self._decided.after if self._decided is not None else self.state

    def settle_and_publish(self, joint: Transaction) -> None:
        """Acks and publishes in one commit: all of it takes effect, or nothing."""
        if self.closed:
            joint.reply(self.deleted())
            return
        self.inbox.add_joint(joint)
        for view, grouped in joint.acks:
            view.await_step(joint, grouped)
        self.request()

    @property
    def burden(self) -> int:
        """Messages and answers in the commit in flight."""
        decided = self._decided
        return sum(chunk.count for chunk in decided.chunks) + len(decided.answers) if decided is not None else 0

    @property
    def waited_ms(self) -> int:
        """How long the oldest waiting publish has waited for a commit cycle."""
        came_ms = self.inbox.came_ms
        return 0 if came_ms is None else max(0, self.node.steady_ms() - came_ms)

    @property
    def takes(self) -> int:
        """The slots whose publishes are taken here, as bits with `UNKEYED`. Messages of other slots are answered as
        repeats or refused: their slots went to another part of the queue, or are on the way there."""
        return self.inbox.takes

    @takes.setter
    def takes(self, slots: int) -> None:
        self.inbox.takes = slots

    @property
    def is_gone(self) -> bool:
        """The queue is deleted, or its messages are moving to another one."""
        return self.closed or self.is_leaving

    @property
    def is_idle(self) -> bool:
        """Nothing waits for a commit, and no commit is in flight."""
        return self._decided is None and self.inbox.is_empty

    @property
    def is_quiet(self) -> bool:
        """Idle, and no caller waits for a decision about receipts."""
        return self.is_idle and not any(view.awaits_decisions for view in self.views.values())

    def join(self) -> None:
        waiting = self.inbox.take_joint()
        while waiting and self.node.committer.room.is_left_for_steps:
            waiting.pop(0).decide()
            self._has_joined = True
        self.inbox.put_back_joint(waiting)

    def purge(self, reply: PurgeReply, view: int = VIEW_MAIN) -> None:
        """Drops everything stored so far in a view; `reply` gets the number of messages dropped."""
        if self.closed:
            reply(self.deleted())
            return
        self.inbox.add_purge(view, reply)
        self.request()

    def lose(self, shelf: int, offset: int) -> tuple[int, int] | None:
        """Ends leases and schedules of a damaged entry. Returns the messages of the view and the bytes lost, or None if
        memory does not hold them.
        """
        view = view_of(shelf)
        if self.groups is not None and view == VIEW_MAIN:
            for group in self.views.values():
                if group.number >= VIEW_GROUPS:
                    group.lose(offset)  # `groups` counts what they lose
            return None
        found = self.views.get(view)
        self.unschedule(shelf, offset)
        return found.lose(offset) if found is not None else None

    def unschedule(self, shelf: int, offset: int) -> None:
        """Cancels the due times of a damaged entry, if the entry holds scheduled messages."""
        if is_scheduled(shelf) and self.main is not None and self.main.schedule is not None:
            self.main.schedule.lost(offset, shelf)

    def write_off(self, view: int, messages: int, size: int, offset: int | None = None) -> None:
        """Subtracts lost messages from the counts: their entry is broken and was put aside. `offset` is None if their
        place is unknown."""
        self.has_losses = True
        if self.groups is not None and view == VIEW_MAIN and offset is not None:
            self.groups.lost(offset, messages)
        self.inbox.write_off(view, messages, size)
        self.request()

    def _count_out(self) -> None:
        """Writes off what is still counted of a view that has no entry left: what a broken entry said of itself may
        have been wrong."""
        for view in (VIEW_MAIN, *self.state.views):
            tally = self.state.tally(view)
            if not (tally.live or tally.live_bytes) or self.has_entry(view):
                continue
            if not self.inbox.wrote_off(view):  # the look may itself have found damage
                self.inbox.write_off(view, tally.live, tally.live_bytes)
                self.request()
                log.error("messages are missing", queue=self.label, view=view, messages=tally.live)

    def note(self, record: Record) -> None:
        """Takes a record that no caller waits for: it is written with the next commit."""
        self.inbox.note(record)
        self.ride_along()

    def cut(self) -> bool:
        """Asks for a ledger row of what was counted since the last one; False if there is nothing to write."""
        if self.closed or not is_owed(self.decided):
            return False
        self.owes_cut = True
        self.request()
        return True

    def doom(self, batch: Batch) -> None:
        """The queue is deleted with `batch`: writes to the ledger what is lost with it, and has each commit in flight
        do so too."""
        stage_day(batch, self.decided, self.title, self.log_ms())
        doom(self.decided)
        stage_cut(batch, self.decided, self.title, self.log_ms())

    def close(self) -> None:
        """Writes nothing more and answers every waiting caller: the queue is deleted, or the partition has retired."""
        self.closed = True
        steps = self.inbox.take_joint()
        waiting = [*(step.reply for step in steps), *self.inbox.take_waiting()]
        waiting += self.groups.take_waiting() if self.groups is not None else []
        for view in self.views.values():
            waiting += view.take_waiting()
        for reply in waiting:
            self.tell(reply, self.deleted())
        for step in steps:
            step.leave()
        for view in self.views.values():
            view.core.purge(Offset(self.state.end))

    # ---------------------------------------------------------------------------------------------- group commit

    def prepare(self, batch: Batch) -> None:
        if self.closed:
            return
        if self.inbox.has_joint and self._has_joined:
            self.request()  # it came while this cycle's members joined, or was too big: left for the next cycle
        elif self.inbox.has_joint:
            self.node.committer.wait_for_room(self)
        self._has_joined = False
        self._decided = Cycle(self, self.inbox, batch).decide()
        if self._decided.chunks:
            self.node.wrote(sum([len(chunk.data) for chunk in self._decided.chunks]))

    def stage_ids(self, batch: Batch, log_ms: int) -> None:
        """Stages the rows of remembered ids, where the queue keeps ids."""
        if self._ids is not None:
            self._ids.move_on(log_ms, self.config.dedupe_window_ms)
            self._ids.stage(batch)

    def committed(self) -> None:
        if self._decided is None:
            assert self.closed, f"{self.label}: a commit that nobody prepared"
            return
        (chunks, schedules, answers, after), self._decided = self._decided, None
        before, self.state = self.state, after
        if self._ids is not None:
            self._ids.committed()
            if self._ids.is_busy:
                self.request_soon()
        if not self.closed:
            self._apply(chunks, schedules, before)
        if self.slotting is not None:
            self.slotting.committed()
        if self.has_losses and not self.closed:
            self._count_out()
        self._answer(answers)
        if self.closed:
            return  # the queue is deleted: its consumers were told, and nothing more is delivered
        if after.floor > before.floor:
            self.tell(self.on_purged)
        if chunks:
            self.tell(self.on_appended, chunks)
        for view in list(self.views.values()):
            self.tell(view.on_ready)

    def _apply(self, chunks: list[Chunk], schedules: list[Scheduled], before: PartitionState) -> None:
        if self.groups is not None and self.retention is not None:
            self.groups.committed(chunks, before)
            self.retention.committed(before)
        for view in self.views.values():
            number = view.number
            if number >= VIEW_GROUPS:
                continue
            was = before if number == VIEW_MAIN else before.views.get(number)
            if view.tally.floor > (was.floor if was is not None else 0):
                view.purged()
            else:
                view.committed(chunks if self._is_plain(chunks) else _of_view(chunks, number))
        main = self.main if schedules or self.sorting is not None else None
        if main is not None:
            if schedules:
                main.scheduled(schedules)
            if self.sorting is not None:
                self.sorting.committed(main)
        if VIEW_OUTBOX not in self.views and VIEW_OUTBOX in self.state.views:
            self.node.export(self)

    def _is_plain(self, chunks: list[Chunk]) -> bool:
        """Whether all of a commit's chunks go to the only view: true for most queues nearly always."""
        return len(self.views) == 1 and (not chunks or (len(chunks) == 1 and chunks[0].shelf == MAIN))

    def failed(self, error: PushqError) -> None:
        """The process is about to end; tells the callers of this commit that the outcome is unknown."""
        decided, self._decided = self._decided, None
        for reply, _ in decided.answers if decided is not None else ():
            self.tell(reply, error)

    def _answer(self, answers: Answers) -> None:
        """Answers all callers. The loop is inlined here because one commit may have hundreds of answers."""
        for reply, value in answers:
            try:
                reply(value)
            except Exception:
                self._blame_listener()

    def tell(self, listener: Callable[..., None], *what: Any) -> None:
        try:
            listener(*what)
        except Exception:
            self._blame_listener()

    def _blame_listener(self) -> None:
        """Logs a bug of a listener: the others' answers are still true and must be delivered."""
        log.exception("a listener failed on what it was told", queue=self.label)

    # ---------------------------------------------------------------------------------------------------- reading

    def put_aside(self, chunk: Chunk, reason: str) -> None:
        """Quarantines a chunk that cannot be served; damaged data is never dropped silently."""
        self._broken(chunk.shelf, chunk.base, chunk.data, reason)

    def _broken(self, shelf: int, offset: int, data: bytes, reason: str) -> None:
        self.node.quarantine(self, shelf, offset, data, reason)

    # ------------------------------------------------------------------------------------------------------- time

    def next_wakeup_ms(self) -> int | None:
        times = [view.next_wakeup_ms() for view in self.views.values()]
        if self.retention is not None:
            times.append(self.retention.next_ms())
        if self.inbox.first_until_ms or self.inbox.under_way_until_ms:
            times.append(self.inbox.next_look_ms(self.node.steady_ms()))
        return min((time for time in times if time is not None), default=None)

    def tick(self, now_ms: int) -> None:
        """Does what is due: leases that ran out, delays, scheduled messages, expiry, retention and publishes out of
        time."""
        for view in list(self.views.values()):
            view.tick(now_ms)
        if self.retention is not None:
            self.retention.tick()
        self._give_up(now_ms)

    def _give_up(self, now_ms: int) -> None:
        """Answers publishes whose time is over. One that has not begun never will be; a refused one is refused whatever
        becomes of the commit; any other in the commit in flight may be stored, so its outcome is unknown."""
        for call in self.inbox.take_expired(now_ms):
            self.tell(call.reply, too_late(self.label))
        over = {id(reply) for reply in self.inbox.take_overdue(now_ms)}
        if not over or self._decided is None:
            return
        answers = self._decided.answers
        told = [answer for answer in answers if id(answer[0]) in over]
        answers[:] = [answer for answer in answers if id(answer[0]) not in over]
        for reply, value in told:
            self.tell(reply, value if isinstance(value, PushqError) else outcome_open(self.label))


def _of_view(chunks: list[Chunk], number: int) -> list[Chunk]:
    return [chunk for chunk in chunks if view_of(chunk.shelf) == number and is_read(chunk.shelf)]


def _alone() -> Sequence[Partition]:
    return ()


def _nothing() -> None:
    """Until a listener is set."""


def _ignore_chunks(chunks: list[Chunk]) -> None:
    """Until a listener is set."""


def _ignore_deadline(partition: Partition, deadline_ms: int) -> None:
    """Until the node sets its timer here."""
