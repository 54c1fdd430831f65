"""One partition, run: takes commands, has the core decide them in cycles, and answers when they are durable.

The partition owns its state; everybody else sends it a command and is called back. Nothing here awaits: a command is
decided in one breath, and the answer comes from the commit that made it true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from backend_store.core.chunk import Chunk, clear_column
from backend_store.core.groups import GroupView
from backend_store.core.leases import ChunkState
from backend_store.core.log import Append
from backend_store.core.policy import Reason
from backend_store.core.records import (
    ChunkDone,
    GroupRow,
    PartitionState,
    Purged,
    Record,
    Scheduled,
    Unscheduled,
)
from backend_store.core.shelves import (
    MAIN,
    MAIN_SHELVES,
    SCHEDULED,
    SHELF_OF_VIEW,
    SORTING,
    VIEW_GROUPS,
    VIEW_MAIN,
    VIEW_OUTBOX,
    is_read,
    is_scheduled,
    view_of,
)
from backend_store.core.work import WorkView
from backend_store.model import (
    CHUNK_MESSAGES_MAX,
    Block,
    Offset,
    Overloaded,
    Published,
    PushqError,
    QueueConfig,
    QueueFull,
    QueueNotFound,
    StorageFull,
)
from backend_store.node.burying import bury
from backend_store.node.committer import Committer
from backend_store.node.cores import reconfigure
from backend_store.node.groups import Groups
from backend_store.node.joint import Joint
from backend_store.node.limits import CANCEL_LOOKS_MAX, INBOX_BYTES_MAX, INBOX_MESSAGES_MAX, SHARED_CYCLE_MESSAGES_MAX
from backend_store.node.publishing import Call, Publishing, PublishReply, is_plain, name_of
from backend_store.node.reader import LogReader, Progress
from backend_store.node.retention import Retention
from backend_store.node.rows import read_order, stage, stage_order, stage_state
from backend_store.node.seeking import Counting
from backend_store.node.sorting import Sorting
from backend_store.node.sweeper import add_garbage
from backend_store.node.view import View
from backend_store.storage.engine import Batch, Engine

if TYPE_CHECKING:
    from backend_store.node.ids import IdStore

log = structlog.get_logger("pushq.partition")

PurgeReply = Callable[[int | PushqError], None]
Answers = list[tuple[Callable[[Any], None], Any]]


class Decided(NamedTuple):
    """What the commit in flight makes true: the state after it, what it added, and who is answered what."""

    chunks: list[Chunk]
    schedules: list[Scheduled]
    answers: Answers
    after: PartitionState


class Surroundings(Protocol):
    """What a partition needs of its node."""

    engine: Engine
    committer: Committer

    @property
    def steady_ms(self) -> Callable[[], int]: ...
    def publishes_allowed(self) -> bool: ...
    def why_no_publishes(self) -> str: ...
    def wrote(self, size: int) -> None: ...
    def soon(self, call: Callable[[], None]) -> None:
        """Calls in the next turn of the loop."""

    def export(self, partition: Partition) -> None:
        """Something lies in the partition's outbox."""

    def quarantine(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None: ...


class MakeCore(Protocol):
    """Makes the core of a view; of a group from its row and where its first chunk begins."""

    def __call__(
        self, config: QueueConfig, view: int, state: PartitionState, group: tuple[GroupRow, Offset] | None = None, /
    ) -> WorkView: ...


class Partition:
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
    ):
        self.node = node
        self.replica = replica
        self.label = label
        self.index = index
        self.state = state
        self.config = config
        self.closed = False
        self.views: dict[int, View] = {}
        self.on_appended: Callable[[list[Chunk]], None] = _ignore_chunks
        self.on_deadline: Callable[[Partition, int], None] = _ignore_deadline
        self.on_purged: Callable[[], None] = _nothing
        self.reader = LogReader(node.engine, replica, self._broken, index)
        self._make_core = make_core
        self._calls: list[Call] = []
        self._call_count = 0
        self._call_bytes = 0
        self._joint: list[Joint] = []
        self._purges: list[tuple[int, PurgeReply]] = []
        self._written_off: dict[int, list[int]] = {}
        self._notes: list[Record] = []
        self._decided: Decided | None = None
        self._ids: IdStore | None = None
        self.sorting = Sorting(self, config) if config.kind == "work" and config.sequencing != "arrival" else None
        self.groups = Groups(self) if config.kind == "stream" else None
        self.retention = Retention(self) if config.kind == "stream" else None
        self._counting = Counting()
        if config.kind == "work":
            self.view(VIEW_MAIN)

    def view(self, number: int) -> View:
        """One of the partition's views; made when somebody first asks for it."""
        found = self.views.get(number)
        if found is None:
            found = self.views[number] = View(self, self._make_core(self.config, number, self.state))
        return found

    def find_view(self, number: int) -> View | None:
        """The view that a receipt or a kept lease names; None for a group that is gone."""
        if number < VIEW_GROUPS:
            return self.view(number)
        return self.groups.view(number) if self.groups is not None else None

    def make_group(self, row: GroupRow, low: Offset) -> GroupView:
        """The core of a group, whose first chunk begins at `low`."""
        core = self._make_core(self.config, row.number, self.state, (row, low))
        assert isinstance(core, GroupView)
        return core

    @property
    def main(self) -> View | None:
        """The view of a work queue; a stream has none but its groups'."""
        return self.views.get(VIEW_MAIN)

    @property
    def ids(self) -> IdStore:
        """What the partition knows of the ids it has had."""
        if self._ids is None:
            from backend_store.node.ids import IdStore

            self._ids = IdStore(self.node.engine, self.replica)
        return self._ids

    def configure(self, config: QueueConfig) -> None:
        """Takes over changed settings: they hold from the next decision on."""
        self.config = config
        for view in self.views.values():
            reconfigure(view.core, config)
        if self.retention is not None:
            self.retention.configured()
        if self.sorting is not None:
            self.sorting.sorter.configure(config)
            self.request()  # a shorter window may have come to its end

    def recover(self, now_ms: int) -> None:
        """Takes up what outlasts a restart."""
        if self.groups is not None and self.retention is not None:
            self.groups.recover()
            self.retention.recover()
        for view in self.views.values():
            view.recover(now_ms)
        main = self.main
        if self.sorting is not None and main is not None:
            self.sorting.restore(main, read_order(self.node.engine, self.replica), now_ms)
            if (next_ms := self.sorting.next_ms()) is not None:
                self.wake_at(next_ms)

    # ------------------------------------------------------------------------------------------------ for views

    def steady_ms(self) -> int:
        return self.node.steady_ms()

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
        self, blocks: list[Block], reply: PublishReply, *, must_fit: bool = False, dedupes: bool = False
    ) -> None:
        """Stores messages; `reply` gets their place once they are durable, or the error that kept them out."""
        if len(blocks) == 1:  # most calls are one block, and there are very many of them
            block = blocks[0]
            count, size = block.count, len(block.data)
        else:
            count, size = sum(b.count for b in blocks), sum(len(b.data) for b in blocks)
        error = self._why_not(count, size) if not must_fit else None
        if error is not None:
            reply(error)
            return
        self._calls.append(Call(blocks, count, size, is_plain(blocks), must_fit, dedupes, reply))
        self._call_count += count
        self._call_bytes += size
        self.request()

    def settle_and_publish(self, joint: Joint) -> None:
        """Acks and publishes in one commit: all of it happens, or nothing."""
        if self.closed:
            joint.reply(self.deleted())
            return
        self._joint.append(joint)
        self.request()

    def join(self) -> None:
        waiting, self._joint = self._joint, []
        for joint in waiting:
            joint.decide()

    def why_full(self, count: int) -> PushqError | None:
        """Why so many messages do not fit, for a publish that must not be refused later."""
        limit = self.config.max_messages
        held = self.state.live + self._call_count
        if limit is not None and self.config.overflow == "reject" and held + count > limit:
            return QueueFull(f"queue {self.label!r} holds {self.state.live} messages of at most {limit}")
        return None

    def why_not(self, blocks: Sequence[Block]) -> PushqError | None:
        """Why these messages cannot be taken now, whatever the queue's own limits say."""
        return self._why_not(sum(b.count for b in blocks), sum(len(b.data) for b in blocks))

    def _why_not(self, count: int, size: int) -> PushqError | None:
        if self.closed:
            return self.deleted()
        if not self.node.publishes_allowed():
            return StorageFull(f"queue {self.label!r}: {self.node.why_no_publishes()}")
        if self._call_count + count > INBOX_MESSAGES_MAX or self._call_bytes + size > INBOX_BYTES_MAX:
            detail = f"queue {self.label!r}: {self._call_count} messages wait for the disk"
            return Overloaded(detail, retry_after_ms=1000)
        return None

    def purge(self, reply: PurgeReply, view: int = VIEW_MAIN) -> None:
        """Drops everything stored so far in a view; `reply` gets how many messages that were."""
        if self.closed:
            reply(self.deleted())
            return
        self._purges.append((view, reply))
        self.request()

    def write_off(self, view: int, messages: int, size: int, offset: int) -> None:
        """Counts messages out whose entry is broken and was put aside."""
        if self.groups is not None and view == VIEW_MAIN:
            self.groups.lost(offset, messages)
        counts = self._written_off.setdefault(view, [0, 0])
        counts[0] += messages
        counts[1] += size
        self.request()

    def close(self) -> None:
        """The queue is deleted: nothing more is written, and whoever waits is told."""
        self.closed = True
        calls, self._calls = self._calls, []
        purges, self._purges = self._purges, []
        joint, self._joint = self._joint, []
        waiting: list[Callable[[Any], None]] = [*(call.reply for call in calls), *(reply for _, reply in purges)]
        waiting += [one.reply for one in joint]
        waiting += self.groups.take_waiting() if self.groups is not None else []
        for view in self.views.values():
            waiting += view.take_waiting()
        for reply in waiting:
            self._tell(reply, self.deleted())
        for view in self.views.values():
            view.core.purge(Offset(self.state.end))

    # ---------------------------------------------------------------------------------------------- group commit

    def prepare(self, batch: Batch, now_ms: int) -> None:
        if self.closed:
            return
        answers: Answers = []
        for view in self.views.values():
            view.decide(answers)
        sorting = self.sorting
        if sorting is not None:
            now_ms = self.steady_ms()  # the clock by which its messages wait
        plan = Append(self.state, seed=self.replica, now_ms=now_ms, partition=self.index)
        calls = self._next_calls()
        records, self._notes = self._notes, []
        schedules: list[Scheduled] = []
        if calls:
            schedules = self._decide_publishes(plan, calls, answers, records)
        buried = self._decide_ends(plan, records)
        if sorting is not None:
            self._decide_order(sorting, plan, buried, batch, records)
        self._write_off(plan.state)
        if self._purges:
            self._decide_purges(plan.state, batch, records, answers)
        if self.groups is not None:
            self._decide_stream(self.groups, plan, batch, records, answers)
        stage(batch, self.replica, plan.records)
        stage(batch, self.replica, records)
        if self._ids is not None:
            self._ids.move_on(plan.now_ms, self.config.dedupe_window_ms)
            self._ids.stage(batch)
        stage_state(batch, self.replica, plan.state)
        if self.config.durability == "relaxed" and calls:
            answers = self._answer_now(answers)
        self._decided = Decided(plan.chunks, schedules, answers, plan.state)
        if plan.chunks:
            self.node.wrote(sum(len(c.data) for c in plan.chunks))

    def _next_calls(self) -> list[Call]:
        """The publishes of this cycle: all, or where others are in it too, no more than a share."""
        calls = self._calls
        if not self.node.committer.is_shared or self._call_count <= SHARED_CYCLE_MESSAGES_MAX:
            self._calls, self._call_count, self._call_bytes = [], 0, 0
            return calls
        taken = messages = 0
        while taken < len(calls) and (not taken or messages + calls[taken].messages <= SHARED_CYCLE_MESSAGES_MAX):
            messages += calls[taken].messages
            self._call_bytes -= calls[taken].size
            taken += 1
        self._calls = calls[taken:]
        self._call_count -= messages
        self.request()
        return calls[:taken]

    def _decide_stream(
        self, groups: Groups, plan: Append, batch: Batch, records: list[Record], answers: Answers
    ) -> None:
        """What is a stream's alone: its groups, and what it does not keep."""
        after = plan.state
        groups.decide(after, batch, answers)
        if after.floor > self.state.floor:
            after.inside = 0
            groups.purged(after, batch)
        elif self.retention is not None and (gone := self.retention.decide(plan, records)):
            groups.gone(after, gone, records)
            self._counting.forget(self, after.floor, batch)
        groups.stage(records)
        if plan.chunks:
            self._counting.decide(self.state, plan.chunks, records)

    def _decide_publishes(
        self, plan: Append, calls: list[Call], answers: Answers, records: list[Record]
    ) -> list[Scheduled]:
        config = self.config
        has_limits = config.max_messages is not None or config.max_bytes is not None
        if not has_limits and self.sorting is None and all(call.is_plain for call in calls):
            fsynced = config.durability == "fsync"
            base = plan.state.end
            for call in calls:
                answers.append((call.reply, Published(self.index, Offset(base), call.messages, fsynced=fsynced)))
                base += call.messages
            plan.add([block for call in calls for block in call.blocks])
            return []
        wants_ids = config.dedupe != "none" or any(call.dedupes for call in calls)
        main = self.main
        ids = self.ids if wants_ids else None
        cycle = Publishing(plan, config, partition=self.index, ids=ids, view=main, sorting=self.sorting)
        answers += cycle.decide(calls)
        for chunk, bits in cycle.overflowed:
            assert main is not None
            main.core.die(main.adopt(chunk), bits, Reason.OVERFLOW, self.steady_ms())
        for chunk, bits in cycle.late:
            assert main is not None
            main.core.die(main.adopt(chunk), bits, Reason.LATE, self.steady_ms())
        if cycle.expires and main is not None and main.expiry is not None:
            main.expiry.added()
        records += cycle.records
        return cycle.schedules

    def _decide_order(
        self, sorting: Sorting, plan: Append, buried: list[Chunk], batch: Batch, records: list[Record]
    ) -> None:
        """What is a sorting queue's alone: whose turn has come, and what it knows of its producers."""
        late = [chunk for chunk in buried if chunk.shelf == SORTING]
        released, order = sorting.release(plan.state, late, plan.now_ms)
        records += released
        done = {record.base for record in records if type(record) is ChunkDone}
        if done:
            records += sorting.tidy(lambda base: base in done or self.chunk_at(base, SORTING, exactly=True) is None)
        stage_order(batch, self.replica, order)

    def _decide_ends(self, plan: Append, records: list[Record]) -> list[Chunk]:
        """What is settled, what died and where it goes, what came back: every view's overlay as records."""
        has_decided = False
        buried: list[Chunk] = []
        for view in list(self.views.values()):
            deaths = view.core.take_deaths()
            if deaths:
                buried += bury(plan, view, deaths, label=self.label, config=self.config, partition=self.index)
            if self.sorting is not None:
                for death in deaths:
                    self.sorting.left(death.state.base, death.bits)
        for view in self.views.values():
            has_decided = has_decided or view.core.has_decided
            overlay = view.overlay()
            records += overlay.records
            if view.parking is not None:
                records += view.parking.decide(self.steady_ms())
            if view.number >= VIEW_GROUPS:
                assert self.groups is not None
                self.groups.decided(view, overlay)
                continue
            tally = plan.state.tally(view.number)
            tally.live -= overlay.settled
            tally.acked_total += overlay.acked
            for state in overlay.done:
                tally.live_bytes -= state.size
                if is_scheduled(state.shelf):
                    records.append(self._unscheduled(state))
        if has_decided:
            plan.state.end += 1  # the decision's own place in the log
        return buried

    def _unscheduled(self, state: ChunkState) -> Unscheduled:
        chunk = state.chunk or self.read(state.base, state.shelf)
        names = clear_column(chunk, "id") if chunk is not None and chunk.base == state.base else None
        return Unscheduled(
            Offset(state.base), self.reader.schedule_of(state.base), [name_of(one) for one in names or () if one]
        )

    def _write_off(self, after: PartitionState) -> None:
        written_off, self._written_off = self._written_off, {}
        for view, (messages, size) in written_off.items():
            tally = after.tally(view)
            tally.live = max(0, tally.live - messages)
            tally.live_bytes = max(0, tally.live_bytes - size)

    def _decide_purges(self, after: PartitionState, batch: Batch, records: list[Record], answers: Answers) -> None:
        purges, self._purges = self._purges, []
        gone: dict[int, int] = {}
        for number in {view for view, _ in purges}:
            tally = after.tally(number)
            records.append(Purged(number, Offset(after.end)))
            add_garbage(batch, self.replica, after.end, number)
            gone[number], tally.live, tally.live_bytes = tally.live, 0, 0
            tally.floor = after.end
            after.end += 1
        answers += [(reply, gone[view]) for view, reply in purges]

    def _answer_now(self, answers: Answers) -> Answers:
        """Relaxed durability: a publish is answered when it is queued for the writer."""
        for reply, value in answers:
            if isinstance(value, Published):
                self._tell(reply, value)
        return [(reply, value) for reply, value in answers if not isinstance(value, Published)]

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
        for reply, value in answers:
            self._tell(reply, value)
        if self.closed:
            return  # the queue is deleted: its consumers were told, and nothing is handed out any more
        if after.floor > before.floor:
            self._tell(self.on_purged)
        if chunks:
            self._tell(self.on_appended, chunks)
        for view in list(self.views.values()):
            self._tell(view.on_ready)

    def _apply(self, chunks: list[Chunk], schedules: list[Scheduled], before: PartitionState) -> None:
        if self.groups is not None and self.retention is not None:
            self.groups.committed(chunks, before)
            self.retention.committed(before)
        for view in self.views.values():
            number = view.number
            if number >= VIEW_GROUPS:
                continue
            floor = before.floor if number == VIEW_MAIN else before.views.get(number, view.tally).floor
            if view.floor > floor:
                view.purged()
            else:
                view.committed(chunks if self._is_plain(chunks) else _of_view(chunks, number))
        main = self.main
        if main is not None:
            main.scheduled(schedules)
            if self.sorting is not None:
                self.sorting.committed(main)
        if VIEW_OUTBOX not in self.views and VIEW_OUTBOX in self.state.views:
            self.node.export(self)

    def _is_plain(self, chunks: list[Chunk]) -> bool:
        """Whether all of a commit's chunks are for the one view there is: so it is for most queues, nearly always."""
        return len(self.views) == 1 and (not chunks or (len(chunks) == 1 and chunks[0].shelf == MAIN))

    def failed(self, error: PushqError) -> None:
        """The process is about to end; whoever waits for the commit is told that the outcome is unknown."""
        decided, self._decided = self._decided, None
        for reply, _ in decided.answers if decided is not None else ():
            self._tell(reply, error)

    def _tell(self, listener: Callable[..., None], *what: Any) -> None:
        try:
            listener(*what)
        except Exception:
            # The listener's own fault; what the others wait for is true and must still be told.
            log.exception("a listener failed on what it was told", queue=self.label)

    # ---------------------------------------------------------------------------------------------------- reading

    def read(self, offset: Offset | int, shelf: int = MAIN) -> Chunk | None:
        """The first committed chunk of a shelf at or above `offset`. A corrupt one is put aside, counted and skipped.

        What was purged is not there, even while its rows still wait to be swept.
        """
        floor = self.state.low if shelf < 32 else self.floor_of(view_of(shelf))
        return self.reader.first(max(offset, floor), self.state.high_watermark, shelf)

    def oldest(self, view: int) -> int | None:
        """When the oldest message of a view was published; None when it has none."""
        shelves = (MAIN, *MAIN_SHELVES) if view == VIEW_MAIN else (SHELF_OF_VIEW[view],)
        if view == VIEW_MAIN and self.config.priorities == 1 and self.config.sequencing == "arrival":
            shelves = (MAIN, SCHEDULED)
        firsts = [chunk.time_ms for shelf in shelves if (chunk := self.read(0, shelf)) is not None]
        return min(firsts, default=None)

    def floor_of(self, view: int) -> int:
        tally = self.state.views.get(view)
        return self.state.floor if view == VIEW_MAIN else tally.floor if tally is not None else 0

    def progress(self, base: int, view: int = VIEW_MAIN) -> Progress:
        """What is stored of a chunk's messages."""
        return self.reader.progress(base, view)

    def chunk_at(self, offset: int, shelf: int, *, exactly: bool = False) -> Chunk | None:
        """The first chunk of a shelf that has an offset at or above `offset`; `exactly`: the one that begins there."""
        if exactly:
            chunk = self.read(offset, shelf)
            return chunk if chunk is not None and chunk.base == offset else None
        chunk = self.read(max(0, offset - CHUNK_MESSAGES_MAX + 1), shelf)
        while chunk is not None and chunk.base + chunk.count <= offset:
            chunk = self.read(chunk.base + 1, shelf)
        return chunk

    def find_message(self, message_id: str) -> tuple[int, int, int] | None:
        """(shelf, base, index) of a message that is ready or scheduled, by its id. None when there is none, or none
        among the first `CANCEL_LOOKS_MAX` messages of the backlog.
        """
        named = self.reader.named(name_of(message_id))
        if named is not None:
            return named
        offset = implied_offset(message_id, self.index)
        shelves = [*range(self.config.priorities), *range(SCHEDULED, SCHEDULED + self.config.priorities)]
        if self.config.sequencing != "arrival":
            shelves.append(SORTING)
        looks = 0
        for shelf in shelves:
            chunk = self.read(max(0, offset - CHUNK_MESSAGES_MAX + 1) if offset is not None else 0, shelf)
            while chunk is not None and looks < CANCEL_LOOKS_MAX:
                ids = clear_column(chunk, "id")
                if offset is not None:
                    if chunk.base > offset:
                        break
                    if offset < chunk.base + chunk.count and not (ids and ids[offset - chunk.base]):
                        return shelf, chunk.base, offset - chunk.base
                elif ids is not None and message_id in ids:
                    return shelf, chunk.base, ids.index(message_id)
                looks += chunk.count
                chunk = self.read(chunk.base + 1, shelf)
        return None

    def note(self, record: Record) -> None:
        """A record that nobody waits for: it is written with the next commit."""
        self._notes.append(record)
        self.ride_along()

    def put_aside(self, chunk: Chunk, reason: str) -> None:
        """Takes a chunk out that cannot be served; it is never silently gone."""
        self._broken(chunk.shelf, chunk.base, chunk.data, reason)

    def _broken(self, shelf: int, offset: int, data: bytes, reason: str) -> None:
        self.node.quarantine(self, shelf, offset, data, reason)

    # ------------------------------------------------------------------------------------------------------- time

    def next_wakeup_ms(self) -> int | None:
        times = [view.next_wakeup_ms() for view in self.views.values()]
        if self.retention is not None:
            times.append(self.retention.next_ms())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now_ms: int) -> None:
        """What is due: leases that ran out, delays, scheduled messages, messages that expire."""
        for view in list(self.views.values()):
            view.tick(now_ms)
        if self.retention is not None:
            self.retention.tick(now_ms)


def _of_view(chunks: list[Chunk], number: int) -> list[Chunk]:
    return [chunk for chunk in chunks if view_of(chunk.shelf) == number and is_read(chunk.shelf)]


def implied_offset(message_id: str, partition: int) -> int | None:
    """The place that an id names which the server made; None for a producer's own id."""
    head, _, tail = message_id.partition("-")
    if head != str(partition) or len(tail) != 12:
        return None
    try:
        return int(tail, 16)
    except ValueError:
        return None


def _nothing() -> None:
    """Nobody listens yet."""


def _ignore_chunks(chunks: list[Chunk]) -> None:
    """Nobody listens yet."""


def _ignore_deadline(partition: Partition, deadline_ms: int) -> None:
    """Nobody keeps time yet."""
