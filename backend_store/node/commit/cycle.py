"""One commit of one partition: decides what waits, in a fixed order, and stages the rows.

Receipts come first, because they free room; then publishes; then messages that end, and where they go; then what the
kind of queue adds. The partition applies the outcome once it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from backend_store.core.leases.leases import ChunkState
from backend_store.core.ledger import doom
from backend_store.core.log.block import has_letters
from backend_store.core.log.chunk import Chunk, clear_column
from backend_store.core.log.log import Append
from backend_store.core.log.records import ChunkDone, PartitionState, Purged, Record, Scheduled, Unscheduled
from backend_store.core.log.sublogs import SORTING, VIEW_GROUPS, VIEW_MAIN, is_scheduled
from backend_store.core.partitions.slots import EVERY_SLOT
from backend_store.core.ready.attempt_policy import Reason
from backend_store.model import Offset, Published
from backend_store.node.commit.inbox import Inbox
from backend_store.node.commit.publish_call import Call
from backend_store.node.garbage_collector import add_garbage
from backend_store.node.ledger import stage_cut, stage_day
from backend_store.node.log.apply import stage, stage_order, stage_state
from backend_store.node.publishing import moved_away
from backend_store.node.publishing.decide import Publishing
from backend_store.node.publishing.idempotency_claims import bind, only_new
from backend_store.node.publishing.placement import expiries, name_of
from backend_store.node.publishing.queue_limits import NOTHING, has_limits
from backend_store.node.publishing.refusals import too_late
from backend_store.node.transfer.dead_letters import bury
from backend_store.node.views.groups import Groups
from backend_store.node.views.reorder import Reorder
from backend_store.storage.engine import Batch

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

Answers = list[tuple[Callable[[Any], None], Any]]

_is_plain = attrgetter("is_plain")


class Decided(NamedTuple):
    """What the commit in flight makes true: added chunks and schedules, answers to send, and the state after it."""

    chunks: list[Chunk]
    schedules: list[Scheduled]
    answers: Answers
    after: PartitionState


class Cycle:
    """One commit of one partition; lives while the partition prepares it."""

    def __init__(self, partition: Partition, inbox: Inbox, batch: Batch):
        self._of = partition
        self._inbox = inbox
        self._batch = batch
        self.plan = Append(
            partition.state,
            seed=partition.replica,
            now_ms=partition.log_ms(),
            partition=partition.index,
            seal=partition.seal,
            uid=partition.title.uid,
        )
        self._records: list[Record] = inbox.take_notes()
        self._answers: Answers = []
        self._schedules: list[Scheduled] = []

    def decide(self) -> Decided:
        """Decides what waits and stages its rows."""
        partition, plan, batch = self._of, self.plan, self._batch
        stage_day(batch, plan.state, partition.title, plan.now_ms)
        partition.inbox.freed = NOTHING  # counted in the core's decisions from here on
        for view in partition.views.values():
            view.decide(self._answers)
        for expired in self._inbox.take_expired(partition.steady_ms()):
            # Not in this turn, which decides, for the caller may publish again; nor with the commit, which may take
            # long.
            partition.node.soon(partial(partition.tell, expired.reply, too_late(partition.label)))
        calls = self._inbox.take_calls(partition)
        slotting = partition.slotting
        if slotting is not None:
            calls = slotting.admitted(calls, self._answers)
        if calls and partition.takes != EVERY_SLOT:
            calls = moved_away.kept(partition, calls, self._answers)
        if calls or partition.owes_room:
            self._decide_publishes(calls)
        buried = self._decide_ends()
        if buried:
            partition.node.committer.room.take(sum([len(chunk.data) for chunk in buried]))
        if partition.sorting is not None:
            self._decide_order(partition.sorting, buried)
        if self._inbox.has_corrections:
            self._write_off()
            self._decide_purges()
        if partition.groups is not None:
            self._decide_stream(partition.groups)
        if slotting is not None:
            slotting.decide(plan, batch)
        stage(batch, partition.replica, plan.records)
        if self._records:
            stage(batch, partition.replica, self._records)
        partition.stage_ids(batch, plan.now_ms)
        if plan.state.ledger.is_doomed:
            doom(plan.state)
            partition.owes_cut = True
        if partition.owes_cut:
            partition.owes_cut = False
            stage_cut(batch, plan.state, partition.title, plan.now_ms)
        stage_state(batch, partition.replica, plan.state)
        if partition.config.durability == "relaxed" and calls:
            self._answer_now()
        return Decided(plan.chunks, self._schedules, self._answers, plan.state)

    def _decide_stream(self, groups: Groups) -> None:
        """Decides a stream's own part: its groups, and retention."""
        partition, plan, records, batch = self._of, self.plan, self._records, self._batch
        after = plan.state
        groups.decide(after, batch, self._answers)
        if after.floor > partition.state.floor:
            after.inside = 0
            groups.purged(after, batch)
        elif partition.retention is not None and (gone := partition.retention.decide(plan, records)):
            groups.gone(after, gone, records)
            partition.counting.forget(partition, after.floor, batch)
        groups.stage(records)
        if plan.chunks:
            partition.counting.decide(partition.state, plan.chunks, records)

    def _decide_publishes(self, calls: list[Call]) -> None:
        partition, plan = self._of, self.plan
        config = partition.config
        if not plan.state.live:
            plan.state.letters = False
        is_limited = has_limits(config)
        if not is_limited and partition.sorting is None and all(map(_is_plain, calls)) and self._append_plain(calls):
            return
        main = partition.main
        wants_ids = config.dedupe != "none" or any(call.dedupes or call.claim is not None for call in calls)
        ids = partition.ids if wants_ids else None
        cycle = Publishing(
            plan,
            config,
            partition=partition.index,
            ids=ids,
            view=main,
            sorting=partition.sorting,
            siblings=partition.siblings() if is_limited else (),
            owes_room=partition.owes_room,
            elders=partition.elders() if wants_ids else (),
        )
        total = plan.state.published_total
        self._answers += cycle.decide(calls)
        if partition.owes_room != cycle.owes_room:
            partition.owes_room = cycle.owes_room
        if cycle.owes_room:
            partition.request_soon()
        if cycle.later:
            partition.inbox.put_back(cycle.later)
            if plan.chunks:
                partition.request()
            else:
                partition.node.committer.wait_for_room(partition)  # or a busy sibling would always be first
        self._records += partition.inbox.take_notes()  # of messages ended to make room
        self._count_came(plan.state.published_total - total, cycle.moved)
        for reason, ended in ((Reason.OVERFLOW, cycle.overflowed), (Reason.LATE, cycle.late)):
            for chunk, bits in ended:
                assert main is not None
                main.core.die(main.adopt(chunk), bits, reason, partition.steady_ms())
        if cycle.expires and main is not None and main.expiry is not None:
            main.expiry.added()
        self._records += cycle.records
        self._schedules = cycle.schedules

    def _append_plain(self, calls: list[Call]) -> bool:
        """The hot path: appends messages that need no checks, as they came.

        Returns False, having done nothing, if an idempotency key may be known already.
        """
        plan, index = self.plan, self._of.index
        has_claims = any([call.claim is not None for call in calls])  # noqa: C419 - cheaper
        claims = self._new_claims(calls) if has_claims else None
        if has_claims and claims is None:
            return False
        firsts: list[int] = []
        fsynced = self._of.config.durability == "fsync"
        base, answer, ledger = plan.state.end, self._answers.append, plan.state.ledger
        total, size, moved, moved_size = plan.state.published_total, 0, 0, 0
        for call in calls:
            answer((call.reply, Published(index, Offset(base), call.messages, fsynced)))
            if call.claim is not None:
                firsts.append(base)
            base += call.messages
            size += call.size
            if call.moves:
                moved += call.messages
                moved_size += call.size
                plan.state.letters = plan.state.letters or any(map(has_letters, call.blocks))
        plan.add([block for call in calls for block in call.blocks])
        if claims:
            bind(self._of.ids, claims, firsts, now_ms=plan.now_ms)
        self._count_came(plan.state.published_total - total, moved)
        ledger.published_bytes += size - moved_size
        ledger.moved_in_bytes += moved_size
        return True

    def _new_claims(self, calls: list[Call]) -> list[bytes] | None:
        partition = self._of
        window_ms = partition.config.dedupe_window_ms
        return only_new(partition.ids, partition.elders(), calls, now_ms=self.plan.now_ms, window_ms=window_ms)

    def _count_came(self, came: int, moved: int) -> None:
        """`moved` came from other queues. It may include holes of blocks that moved whole, which are not counted."""
        ledger = self.plan.state.ledger
        moved = min(came, moved)
        ledger.published += came - moved
        ledger.moved_in += moved

    def _decide_order(self, sorting: Reorder, buried: list[Chunk]) -> None:
        """Decides a sorted queue's own part: which messages are released, and what is remembered of producers."""
        partition, records = self._of, self._records
        late = [chunk for chunk in buried if chunk.shelf == SORTING]
        if (expiring := expiries(late)) and partition.main is not None and partition.main.expiry is not None:
            records += expiring
            partition.main.expiry.added()
        released, order = sorting.release(self.plan.state, late, self.plan.now_ms)
        records += released
        done = {record.base for record in records if type(record) is ChunkDone}
        if done or sorting.is_untidy:
            records += sorting.tidy(
                lambda base: base in done or partition.chunk_at(base, SORTING, exactly=True) is None
            )
        stage_order(self._batch, partition.replica, order)

    def _decide_ends(self) -> list[Chunk]:
        """Turns every view's overlay into records: what was settled, what died and where it goes, what was returned."""
        partition, plan, records = self._of, self.plan, self._records
        has_decided = any([view.core.has_decided for view in partition.views.values()])  # noqa: C419 - cheaper
        buried = self._bury() if has_decided else []
        for view in partition.views.values():
            overlay = view.overlay()
            records += overlay.records
            if view.parking is not None:
                records += view.parking.decide(partition.steady_ms())
            if view.number >= VIEW_GROUPS:
                assert partition.groups is not None
                partition.groups.decided(view, overlay)
                plan.state.ledger.read += overlay.acked
                continue
            if not (overlay.settled or overlay.acked or overlay.done):
                continue
            tally = plan.state.tally(view.number)
            tally.live -= overlay.settled
            tally.acked_total += overlay.acked
            plan.state.ledger.settled += overlay.acked
            for state in overlay.done:
                tally.live_bytes -= state.size
                if is_scheduled(state.shelf):
                    records.append(self._unscheduled(state))
        if has_decided:
            plan.state.end += 1  # the decision's own offset in the log
        if moved := partition.inbox.take_moved():
            plan.state.ledger.settled -= moved
            plan.state.ledger.moved_out += moved
        return buried

    def _bury(self) -> list[Chunk]:
        """Moves dead messages to where they go; returns the chunks that hold them now."""
        partition, buried = self._of, []
        for view in list(partition.views.values()):
            deaths = view.core.take_deaths()
            if deaths:
                config, index = partition.config, partition.index
                buried += bury(self.plan, view, deaths, label=partition.label, config=config, partition=index)
            if partition.sorting is not None:
                for death in deaths:
                    partition.sorting.left(death.state.base, death.bits)
        return buried

    def _unscheduled(self, state: ChunkState) -> Unscheduled:
        reader = self._of.reader
        chunk = state.chunk or self._of.read(state.base, state.shelf)
        ids = clear_column(chunk, "id") if chunk is not None and chunk.base == state.base else None
        # An id may have been scheduled again since: then the name belongs to the later message.
        later = {name for schedule in self._schedules for name, _ in schedule.names} if ids else set()
        names = [name for name in map(name_of, filter(None, ids or ())) if name not in later]
        mine = [name for name in names if (place := reader.named(name)) is not None and place[1] == state.base]
        return Unscheduled(Offset(state.base), reader.schedule_of(state.base), mine)

    def _write_off(self) -> None:
        for view, (messages, size) in self._inbox.take_written_off().items():
            tally = self.plan.state.tally(view)
            self.plan.state.ledger.lost += min(tally.live, messages)
            tally.live = max(0, tally.live - messages)
            tally.live_bytes = max(0, tally.live_bytes - size)

    def _decide_purges(self) -> None:
        purges, after = self._inbox.take_purges(), self.plan.state
        gone: dict[int, int] = {}
        for number in {view for view, _ in purges}:
            tally = after.tally(number)
            self._records.append(Purged(number, Offset(after.end)))
            add_garbage(self._batch, self._of.replica, after.end, number)
            gone[number], tally.live, tally.live_bytes = tally.live, 0, 0
            after.ledger.purged += gone[number]
            tally.floor = after.end
            if number == VIEW_MAIN:
                after.dropped_ms = after.time_ms
            after.end += 1
        self._answers += [(reply, gone[view]) for view, reply in purges]

    def _answer_now(self) -> None:
        """Relaxed durability: answers publishes as soon as they are queued for the writer."""
        later: Answers = []
        for reply, value in self._answers:
            if isinstance(value, Published):
                self._of.tell(reply, value)
            else:
                later.append((reply, value))
        self._answers = later
