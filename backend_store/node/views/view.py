"""One view of a partition at run time: leases messages from memory and disk to holders.

The view's core decides; this class does the reads that the core needs and notifies holders. Acks, nacks and extensions
are in `acks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from backend_store.core.leases.leases import ChunkState, Holder, Lease, receipts_of
from backend_store.core.leases.leasing import Lost
from backend_store.core.leases.session_snapshot import KeptLease
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.records import PartitionState, Scheduled, Tally
from backend_store.core.log.sublogs import SCHEDULED, SORTING, VIEW_MAIN, is_scheduled
from backend_store.core.ready.attempt_policy import Outcome, Policy, Reason
from backend_store.core.ready.priorities import Lane
from backend_store.core.ready.strict import StrictRuns
from backend_store.core.ready.work_queue import Overlay, WorkView
from backend_store.model import Offset
from backend_store.node.limits import READS_PER_TAKE_MAX
from backend_store.node.publishing.eviction import Eviction
from backend_store.node.timers.expiry import Expiry, Schedule
from backend_store.node.views.acks import Acks, SettleReply
from backend_store.node.views.spill import KeySpill

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

FOR_EVER_MS = 1 << 61


class View(Acks):
    """One view; its partition owns it. `core` makes the decisions; `number` tells the partition's views apart."""

    def __init__(self, partition: Partition, core: WorkView):
        super().__init__()
        self.partition = partition
        self.core = core
        self.number = core.number
        self.on_ready: Callable[[], None] = _nothing
        self.is_looking = False
        """The last search for messages stopped at its limit of reads; it continues in the next turn of the loop."""
        self._done: set[int] = set()
        """Chunks that the commit in flight leaves empty; that commit may also have added them."""
        self.schedule = Schedule(self) if core.number == VIEW_MAIN else None
        self.parking = KeySpill(self) if core.is_strict else None
        self.expiry = Expiry(self) if core.number == VIEW_MAIN else None
        self.eviction = Eviction(self)

    @property
    def tally(self) -> PartitionState | Tally:
        """Committed counts."""
        state = self.partition.state
        return state if self.number == VIEW_MAIN else state.views.get(self.number, _EMPTY)

    @property
    def ready(self) -> int:
        return max(0, self.tally.live - self.core.in_flight - self.core.delayed)

    @property
    def bytes(self) -> int:
        """What the view's messages count for; a chunk with many ended messages takes more on disk."""
        return self.tally.live_bytes - self.core.ended_bytes

    @property
    def floor(self) -> int:
        return self.tally.floor

    # ------------------------------------------------------------------------------------------------ commands

    def give_back_lease(self, lease: Lease) -> None:
        """Returns the messages that a holder still held when it left; the attempt counts for those that were begun."""
        self.decide_first()
        if self.comes_behind(lease, partial(self.give_back_lease, lease)):
            return
        now_ms = self.partition.steady_ms()
        if self.core.give_back(lease, lease.bits, now_ms=now_ms, outcome=Outcome.RETURNED, untried=lease.untried):
            self.partition.request()

    def unsent(self, lease: Lease) -> None:
        """Takes back leased messages that were never sent: the attempt does not count."""
        state, to_come = lease.state, 0
        if is_scheduled(state.shelf) and self.schedule is not None and not lease.counts:
            to_come = self.schedule.to_come(state.base, state.shelf)  # leased early: its due time is still to come
        self.core.unsent(lease, lease.bits, to_come)
        self.partition.ride_along()
        self.on_ready()

    def move_out(self, grouped: dict[str, int]) -> None:
        """The messages behind these receipts (token → bits) move to another queue with this commit."""
        self.partition.inbox.moved(sum(bits.bit_count() for bits in grouped.values()))
        if self.schedule is None:
            return
        for token, bits in grouped.items():
            lease = self.core.leases.get(token)
            for part in lease.parts() if lease is not None else ():
                if is_scheduled(part.state.shelf):
                    self.schedule.left(part.state.base, part.bits & bits, part.state.shelf)

    def cancel(self, shelf: int, base: int, index: int, reply: SettleReply) -> bool:
        """Ends a message that is not leased, because its producer cancels it; `reply` runs once that is durable.

        Returns False, and never calls `reply`, if the message is leased or gone.
        """
        state, bit = self.find(shelf, base), 1 << index
        if state is None or not bit & state.present & ~(state.leased | state.returning):
            return False
        if isinstance(state.lane.runs, StrictRuns):
            state.lane.runs.hold(state, bit)  # newer ones of its key wait until a crash cannot bring it back
        self.end(state, bit, Reason.CANCELLED)
        self.when_durable(reply)
        return True

    def undeliverable(self, lease: Lease, bits: int | None = None, why: str | None = None) -> None:
        """Ends leased messages that cannot be sent: all of a lease, or those in `bits`. `why` is kept in their
        history."""
        bits = lease.bits if bits is None else bits & lease.bits
        if lease.receipts:
            self.core.die_held(lease, bits, Reason.UNDELIVERABLE, self.partition.steady_ms(), why)
        else:
            lease.bits ^= bits  # settled already: at most once
        lease.holder.released(bits.bit_count())
        self.partition.request()

    def end_unreadable(self, lease: Lease) -> None:
        """Ends those of a lease's messages that cannot be decoded."""
        assert lease.chunk is not None, "a lease is looked at with its chunk in memory"
        if bits := lease.chunk.unreadable & lease.bits:
            self.undeliverable(lease, bits, lease.chunk.why_unreadable)

    # ------------------------------------------------------------------------------------------------- commits

    def overlay(self) -> Overlay:
        if self.schedule is not None:
            self.schedule.staged()
        overlay = self.core.records()
        self._done = {state.base for state in overlay.done} if overlay.done else set()
        return overlay

    def committed(self, chunks: list[Chunk]) -> None:
        """Applies a commit that is durable; `chunks` are what it added to this view."""
        core = self.core
        core.committed()
        if self.schedule is not None:
            self.schedule.committed()
        if core.nacked_delayed and (wakeup_ms := core.next_wakeup_ms()) is not None:
            self.partition.wake_at(wakeup_ms)
        now_ms = self.partition.state.time_ms
        for chunk in chunks:
            if chunk.base not in self._done:
                core.came(chunk, now_ms)

        if self.expiry is not None:
            self.expiry.committed()
        if self.parking is not None:
            self.parking.committed()
            if (next_ms := self.parking.next_ms()) is not None:
                self.partition.wake_at(next_ms)

    def scheduled(self, schedules: Sequence[Scheduled]) -> None:
        """Takes scheduled messages that were just committed."""
        if self.schedule is not None:
            self.schedule.add(schedules)

    def end(self, state: ChunkState, bits: int, reason: Reason) -> None:
        """Ends messages that are not leased."""
        if is_scheduled(state.shelf) and self.schedule is not None:
            self.schedule.ended(state.base, bits, state.shelf)
        self.core.die(state, bits, reason, self.partition.steady_ms())
        self.partition.request()

    def drop_all(self, floor: Offset) -> None:
        """Drops everything below `floor`, and tells the holders of it that their receipts are void."""
        held = [(one.holder, receipts_of(one.token, one.bits)) for one in self.core.leases.values() if one.durable]
        self.core.purge(floor)
        for holder, receipts in held:
            self.partition.tell(partial(holder.lost, ran_out=False), receipts)

    def purged(self) -> None:
        self.drop_all(Offset(self.floor))
        if self.schedule is not None:
            self.schedule.purged()
        if self.number == VIEW_MAIN and self.partition.sorting is not None:
            self.partition.sorting.purged(self)

    # ------------------------------------------------------------------------------------------------- delivery

    @property
    def has_ready(self) -> bool:
        return self.core.has_ready

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases up to `limit` messages of one chunk, or returns None. The lease's chunk is in memory on return.

        Reads a bounded number of chunks; if those hold nothing to lease, the search continues in the next turn of the
        loop.
        """
        core, partition = self.core, self.partition
        if not core.may_take(holder):
            return None
        now_ms = partition.steady_ms()
        reads, self.is_looking = 0, False
        while True:
            if core.due_waits and self.schedule is not None:
                reads += self.schedule.load()
            picked = core.lanes.pick()
            if picked is None:
                if core.due_waits and reads >= READS_PER_TAKE_MAX:
                    self._look_on()
                elif self.parking is not None:
                    self.parking.wait(now_ms)
                return None
            lane, most = picked
            if lane.more and lane.runs.wants_more:
                if reads >= READS_PER_TAKE_MAX and not lane.runs:
                    self._look_on()
                    return None
                if reads < READS_PER_TAKE_MAX:
                    self._scan_next(lane, now_ms)
                    reads += 1
                    continue
            if self.parking is not None:
                reads += self.parking.bring(lane)
            missing = lane.runs.missing()
            if missing is not None:
                self._supply(missing)
                reads += 1
                continue
            if not lane.runs:
                continue
            lease = core.take(lane, min(limit, most) if most else limit, holder, visibility_ms, now_ms)
            if core.has_deaths:
                partition.request()  # some had no attempt left, others of the same chunk may be in the lease
            if lease is not None:
                self._took(lease)
                return lease

    def _look_on(self) -> None:
        self.is_looking = True
        self.partition.look_again(self)

    def _took(self, lease: Lease) -> None:
        partition = self.partition
        if not lease.durable:
            partition.request()
        else:
            partition.ride_along()
        if lease.receipts:
            partition.wake_at(lease.deadline_ms)

    def claim(self, chunk: Chunk, bits: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases those of the messages that are free; they may be anywhere in the backlog."""
        if self.find(chunk.shelf, chunk.base) is None:
            return None  # consumed or purged since it was read
        state = self.adopt(chunk)
        lease = self.core.claim(state, bits, holder, self.partition.steady_ms() + visibility_ms)
        if lease is not None:
            self.partition.wake_at(lease.deadline_ms)
        return lease

    def free_all(self, policy: Policy) -> None:
        """Takes every message back from its lease or its delay: the queue is deleted."""
        core, now_ms = self.core, self.partition.steady_ms()
        core.policy = policy
        for lease in core.leases.values():
            receipts = receipts_of(lease.token, lease.bits)
            core.give_back(lease, lease.bits, now_ms=now_ms, outcome=Outcome.RETURNED)
            self.partition.tell(lease.holder.released, len(receipts))
            self.partition.tell(partial(lease.holder.lost, ran_out=False), receipts)
        core.wake(FOR_EVER_MS)
        if self.schedule is not None:
            while self.schedule.tick(FOR_EVER_MS):
                pass
        self.partition.request()

    def _scan_next(self, lane: Lane, now_ms: int) -> None:
        if self.partition.sorting is not None and self.number == VIEW_MAIN:
            self.partition.sorting.scan(self, lane)
            return
        chunk = self.partition.read(Offset(max(lane.next_scan, self.floor)), lane.shelf)
        if chunk is None:
            lane.more = False
            return
        self.adopt(chunk)
        self.core.scan(lane, chunk, now_ms)

    def adopt(self, chunk: Chunk) -> ChunkState:
        """Returns the chunk's state, loading its stored marks if it was not in memory."""
        known = self.core.state(chunk.base)
        if known is not None:
            if known.chunk is None:
                self.core.supply(chunk)
            return known
        stored = self.partition.progress(chunk.base, self.number)
        return self.core.adopt(chunk, settled=stored.settled, started=stored.started, attempts=stored.attempts)

    def load_for(self, grouped: dict[str, int]) -> None:
        for shelf, base in self.core.unknown_bases(grouped):
            self.find(shelf, base)

    def find(self, shelf: int, base: int) -> ChunkState | None:
        """Returns the state of a chunk of this view, read from the log if need be; None if the chunk is gone."""
        known = self.core.state(base)
        if known is not None:
            return known
        if not self.floor <= base < self.partition.state.high_watermark:
            return None
        chunk = self.partition.read(Offset(base), shelf)
        return self.adopt(chunk) if chunk is not None and chunk.base == base else None

    def _supply(self, base: int) -> None:
        state = self.core.state(base)
        assert state is not None, f"{self.partition.label}: runs name a chunk at {base} that nobody knows"
        chunk = self.partition.read(Offset(base), state.shelf)
        if chunk is not None and chunk.base == base:
            self.core.supply(chunk)
        else:
            self.lose(base)  # broken since it was last read, and put aside

    def lose(self, base: int) -> tuple[int, int] | None:
        """Gives up a damaged chunk. Returns the messages and bytes lost with it; None if the chunk was not in memory
        and no lease held any of it.
        """
        core, partition = self.core, self.partition
        state = core.state(base)
        if state is None:
            return None
        lost = core.weight_of_lost(base)
        if self.number == VIEW_MAIN and partition.sorting is not None:
            partition.sorting.left(base, state.present)
        told = core.lose(base)
        if told:
            partition.node.soon(lambda: self._tell(told))  # later, for a lease may be in the making
        partition.request()
        return lost

    def _tell(self, lost: Sequence[Lost]) -> None:
        for holder, messages, receipts in lost:
            self.partition.tell(holder.released, messages)
            if receipts:
                self.partition.tell(partial(holder.lost, ran_out=False), receipts)

    # ----------------------------------------------------------------------------------------------------- time

    def tick(self, now_ms: int) -> None:
        """Ends leases that ran out and makes messages ready that are due."""
        core = self.core
        for lease in core.leases.expired(now_ms):
            if lease.bits:
                self.decide_first()
            if not lease.bits:
                continue  # acked in time; or a lease that ran out before took it along
            if not self.comes_behind(lease, partial(self._run_out, lease, now_ms)):
                self._run_out(lease, now_ms)
        is_ready = core.wake(now_ms)
        if self.parking is not None:
            self.parking.tick()
            is_ready = True  # a lane may have paused its reading
        if self.schedule is not None:
            is_ready = self.schedule.tick(now_ms) or is_ready
        if self.expiry is not None:
            self.expiry.tick(now_ms)
        if self.number == VIEW_MAIN and self.partition.sorting is not None:
            self.partition.sorting.tick(now_ms)
        if is_ready:
            self.on_ready()

    def _run_out(self, lease: Lease, now_ms: int) -> None:
        if not lease.has_run_out:
            return  # settled or extended meanwhile
        receipts = receipts_of(lease.token, lease.bits)
        self.core.give_back(lease, lease.bits, now_ms=now_ms, outcome=Outcome.TIMED_OUT)
        self.partition.tell(lease.holder.released, len(receipts))
        self.partition.tell(lease.holder.lost, receipts)
        self.partition.request()

    def next_wakeup_ms(self) -> int | None:
        times = [self.core.next_wakeup_ms()]
        if self.schedule is not None:
            times.append(self.schedule.next_ms())
        if self.expiry is not None:
            times.append(self.expiry.next_ms())
        if self.number == VIEW_MAIN and self.partition.sorting is not None:
            times.append(self.partition.sorting.next_ms())
        return min((time for time in times if time is not None), default=None)

    def recover(self, now_ms: int, *, is_timed: bool = True) -> None:
        """Restores delays that survive a restart: such messages are not ready, wherever in the backlog they are. A
        partition that is not timed has no delays, schedules or expiry."""
        if not is_timed:
            self._rest(now_ms)
            return
        for base in self.partition.reader.delayed(now_ms, self.number):
            if base >= self.floor:
                for lane in self.core.lanes.all:
                    if self._delay_again(lane.shelf, base, now_ms):
                        break
        if self.schedule is not None:
            self.schedule.recover(now_ms)
        if (wakeup_ms := self.next_wakeup_ms()) is not None:
            self.partition.wake_at(wakeup_ms)

    def _rest(self, now_ms: int) -> None:
        if self.schedule is not None:
            self.schedule.rest(now_ms)
        if self.expiry is not None:
            self.expiry.rest()

    def _delay_again(self, shelf: int, base: int, now_ms: int) -> bool:
        for place in (shelf, SCHEDULED + shelf, SORTING) if self.number == VIEW_MAIN else (shelf,):
            if self.find(place, base) is not None:
                self.core.delay_again(base, now_ms)
                return True
        return False

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        """Restores a lease that outlived the process; None if nothing of it is left."""
        if self.find(kept.shelf, kept.base) is None:
            return None
        lease = self.core.restore(kept, holder)
        if lease is not None:
            self.partition.wake_at(lease.deadline_ms)
        return lease


_EMPTY = Tally()


def _nothing() -> None:
    """Until a listener is set."""
