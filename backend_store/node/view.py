"""One view of a partition, run: hands messages out of memory and disk, and takes receipts back in.

The view's core decides; here are the reads it needs, the requests that wait for the next commit, and who is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from backend_store.core.chunk import Chunk
from backend_store.core.kept import KeptLease
from backend_store.core.lanes import Lane
from backend_store.core.leases import ChunkState, Holder, Lease, receipts_of
from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.policy import Outcome, Policy, Reason
from backend_store.core.records import PartitionState, Scheduled, Tally
from backend_store.core.shelves import SCHEDULED, SORTING, VIEW_MAIN, is_scheduled
from backend_store.core.work import Overlay, WorkView
from backend_store.model import Offset, Overloaded, PushqError
from backend_store.node.clockwork import Expiry, Schedule
from backend_store.node.limits import READS_PER_TAKE_MAX, STRANGE_RECEIPTS_PER_CYCLE
from backend_store.node.parking import Parking

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

FOR_EVER_MS = 1 << 61

SettleReply = Callable[[dict[str, int] | PushqError], None]


class Return(NamedTuple):
    """A nack that waits for its commit."""

    grouped: dict[str, int]
    due_ms: int | None
    reason: str | None
    reply: SettleReply


class View:
    """See the file's first sentence. `core` is the decisions; `number` says which of the partition's views it is."""

    def __init__(self, partition: Partition, core: WorkView):
        self.partition = partition
        self.core = core
        self.number = core.number
        self.on_ready: Callable[[], None] = _nothing
        self._settles: list[tuple[dict[str, int], dict[str, int], SettleReply]] = []
        """(token → bits to be decided, token → bits decided so far, who is answered)."""
        self._settled: list[tuple[Callable[[Any], None], dict[str, int]]] = []
        """Decided in this cycle, by a step that publishes too."""
        self._returns: list[Return] = []
        self._done: set[int] = set()
        """Chunks that nothing is left of with the commit in flight; they may be new with it."""
        self.schedule = Schedule(self) if core.number == VIEW_MAIN else None
        self.parking = Parking(self) if core.is_strict else None
        self.expiry = Expiry(self) if core.number == VIEW_MAIN else None

    @property
    def tally(self) -> PartitionState | Tally:
        """Committed counts."""
        state = self.partition.state
        return state if self.number == VIEW_MAIN else state.views.get(self.number, _EMPTY)

    @property
    def ready(self) -> int:
        return max(0, self.tally.live - self.core.in_flight - self.core.delayed)

    @property
    def floor(self) -> int:
        return self.tally.floor

    # ------------------------------------------------------------------------------------------------ commands

    def settle(self, grouped: dict[str, int], reply: SettleReply) -> None:
        """Acks; `reply` gets token → the bits that are settled."""
        if self.partition.closed:
            reply(self.partition.deleted())
            return
        self._settles.append((grouped, {}, reply))
        self.partition.request()

    def settle_again(self, grouped: dict[str, int], reply: Callable[[dict[str, int]], None]) -> None:
        """Token → the bits that these very receipts have settled before, once that is durable."""
        self._settled.append((reply, self.core.won(grouped)))
        self.partition.request()

    def settle_soon(self, grouped: dict[str, int]) -> None:
        """Acks whose outcome nobody waits for."""
        self._settles.append((grouped, {}, _no_answer))
        self.partition.request_soon()

    def give_back(self, grouped: dict[str, int], due_ms: int | None, reason: str | None, reply: SettleReply) -> None:
        """Nacks: the attempt counts, the messages are free again once that is durable: at once (0), at `due_ms`, or
        after the queue's back-off (None).
        """
        if self.partition.closed:
            reply(self.partition.deleted())
            return
        self._returns.append(Return(grouped, due_ms, reason, reply))
        self.partition.request()

    def give_back_lease(self, lease: Lease) -> None:
        """Returns what a holder that went away still held."""
        if self.core.give_back(lease, lease.bits, now_ms=self.partition.steady_ms(), outcome=Outcome.RETURNED):
            self.partition.request()

    def unsent(self, lease: Lease) -> None:
        """Takes back what was leased and never left: the attempt does not count."""
        self.core.unsent(lease, lease.bits)
        self.partition.ride_along()
        self.on_ready()

    def cancel(self, shelf: int, base: int, index: int, reply: SettleReply) -> bool:
        """Ends a message that nobody holds, because its producer says so; `reply` runs once that is durable.

        False, and no reply, when somebody holds it, or it is gone.
        """
        state, bit = self.find(shelf, base), 1 << index
        if state is None or not bit & state.present & ~(state.leased | state.returning):
            return False
        self.end(state, bit, Reason.CANCELLED)
        self._settles.append(({}, {}, reply))
        return True

    def undeliverable(self, lease: Lease) -> None:
        """Ends messages that were leased and cannot be sent to anybody."""
        if not lease.receipts:
            return  # settled already: at most once
        self.core.die_held(lease, lease.bits, Reason.UNDELIVERABLE, self.partition.steady_ms())
        self.partition.request()

    def extend(self, grouped: dict[str, int], visibility_ms: int, reply: SettleReply) -> None:
        """Moves deadlines. Where leases are memory that is at once; where they are stored, when it is durable."""
        now_ms = self.partition.steady_ms()
        held = self.core.extend(grouped, visibility_ms, now_ms)
        self.partition.wake_at(now_ms + visibility_ms)
        if self.core.policy.stores_leases and held:
            self._settles.append(({}, {}, lambda done: reply(done if isinstance(done, PushqError) else held)))
            self.partition.request()
        else:
            reply(held)

    def take_waiting(self) -> list[Callable[[Any], None]]:
        """Whoever waits for an answer, when the queue is deleted."""
        settles, self._settles = self._settles, []
        returns, self._returns = self._returns, []
        settled, self._settled = self._settled, []
        return [*(reply for _, _, reply in settles), *(reply for reply, _ in settled), *(one.reply for one in returns)]

    # ------------------------------------------------------------------------------------------------- commits

    def decide(self, answers: list[tuple[Callable[[Any], None], Any]]) -> None:
        """Decides the receipts that wait."""
        self.decide_settles()
        answers += self._settled
        self._settled = []
        returns, self._returns = self._returns, []
        now_ms = self.partition.steady_ms()
        answers += [(one.reply, self._decide_return(one, now_ms)) for one in returns]

    def decide_settles(self) -> None:
        """Decides the acks that wait; they are answered with the commit of this cycle."""
        budget = STRANGE_RECEIPTS_PER_CYCLE
        while self._settles and budget > 0:
            grouped, done, reply = self._settles.pop(0)
            strange = sum(map(self.core.is_strange, grouped))
            later: dict[str, int] = {}
            if strange > budget:
                # Each may be a chunk to read: everybody else has a turn before the rest.
                first = dict(islice(grouped.items(), budget))
                later = {token: bits for token, bits in grouped.items() if token not in first}
                grouped = first
            budget -= strange
            self.load_for(grouped)
            done = {**done, **self.core.settle(grouped)}
            if later:
                self._settles.insert(0, (later, done, reply))
            else:
                self._settled.append((reply, done))
        if self._settles:
            self.partition.request()

    def _decide_return(self, one: Return, now_ms: int) -> dict[str, int] | PushqError:
        core = self.core
        if (one.due_ms or (one.due_ms is None and core.policy.backoff_ms)) and not core.can_delay:
            return Overloaded(
                f"queue {self.partition.label!r}: {DELAYED_RUNS_MAX} delays wait already, the most a queue keeps"
            )
        returned: dict[str, int] = {}
        for token, bits in one.grouped.items():
            lease = core.leases.get(token)
            for part in list(lease.parts()) if lease is not None else ():
                given = core.give_back(
                    part, bits, due_ms=one.due_ms, now_ms=now_ms, outcome=Outcome.NACKED, reason=one.reason
                )
                if given:
                    returned[token] = returned.get(token, 0) | given
                    part.holder.released(given.bit_count())
        return returned

    def overlay(self) -> Overlay:
        if self.schedule is not None:
            self.schedule.staged()
        overlay = self.core.records()
        self._done = {state.base for state in overlay.done}
        return overlay

    def committed(self, chunks: list[Chunk]) -> None:
        """The commit has landed; `chunks` are what it added to this view."""
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
        """Messages for later that were just committed."""
        if schedules and self.schedule is not None:
            self.schedule.add(schedules)

    def end(self, state: ChunkState, bits: int, reason: Reason) -> None:
        """Ends messages that nobody holds."""
        if is_scheduled(state.shelf) and self.schedule is not None:
            self.schedule.ended(state.base, bits, state.shelf)
        self.core.die(state, bits, reason, self.partition.steady_ms())
        self.partition.request()

    def purged(self) -> None:
        self.core.purge(Offset(self.floor))
        if self.schedule is not None:
            self.schedule.purged()
        if self.number == VIEW_MAIN and self.partition.sorting is not None:
            self.partition.sorting.purged(self)

    # ------------------------------------------------------------------------------------------------- delivery

    @property
    def has_ready(self) -> bool:
        return self.core.has_ready

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases up to `limit` messages of one chunk, or nothing. The lease's chunk is in memory when this returns.

        Reads a bounded number of chunks; where that found nothing, the rest is looked at in the next turn.
        """
        core, partition = self.core, self.partition
        if not core.may_take(holder):
            return None
        now_ms = partition.steady_ms()
        reads = 0
        while True:
            if core.due_waits and self.schedule is not None:
                reads += self.schedule.load()
            picked = core.lanes.pick()
            if picked is None:
                if self.parking is not None:
                    self.parking.wait(now_ms)
                return None
            lane, most = picked
            if lane.more and lane.runs.wants_more:
                if reads >= READS_PER_TAKE_MAX and not lane.runs:
                    partition.look_again(self)
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
            if lease is not None:
                self._took(lease)
                return lease
            if core.has_deaths:
                partition.request()

    def _took(self, lease: Lease) -> None:
        partition = self.partition
        if not lease.durable:
            partition.request()
        else:
            partition.ride_along()
        if lease.receipts:
            partition.wake_at(lease.deadline_ms)

    def claim(self, chunk: Chunk, bits: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases those of the messages that nobody holds; they may lie anywhere in the backlog."""
        if self.find(chunk.shelf, chunk.base) is None:
            return None  # consumed or purged since it was read
        state = self.adopt(chunk)
        lease = self.core.claim(state, bits, holder, self.partition.steady_ms() + visibility_ms)
        if lease is not None:
            self.partition.wake_at(lease.deadline_ms)
        return lease

    def free_all(self, policy: Policy) -> None:
        """Takes every message back from whoever holds it or from what it waits for: the queue is deleted."""
        core, now_ms = self.core, self.partition.steady_ms()
        core.policy = policy
        for lease in core.leases.values():
            receipts = receipts_of(lease.token, lease.bits)
            core.give_back(lease, lease.bits, now_ms=now_ms, outcome=Outcome.RETURNED)
            lease.holder.released(len(receipts))
            lease.holder.lost(receipts)
        core.wake(FOR_EVER_MS)
        if self.schedule is not None:
            while self.schedule.tick(FOR_EVER_MS):
                pass
        self.partition.request()

    def evict(self, count: int, reason: Reason) -> int:
        """Ends up to `count` of the oldest messages that nobody holds, of the lowest priority first."""
        core, now_ms = self.core, self.partition.steady_ms()
        gone = reads = 0
        stuck: list[Lane] = []
        while gone < count and reads < READS_PER_TAKE_MAX:
            if core.due_waits and self.schedule is not None:
                reads += self.schedule.load()
            lane = next((one for one in core.lanes.all if one.waits and one not in stuck), None)
            if lane is None:
                break
            if lane.more and not lane.runs:
                self._scan_next(lane, now_ms)
                reads += 1
            elif (missing := lane.runs.missing()) is not None:
                self._supply(missing)
                reads += 1
            elif (drawn := lane.runs.draw(count - gone) if lane.runs else None) is not None:
                core.die(*drawn, reason, now_ms)
                gone += drawn[1].bit_count()
            elif lane.waits:
                stuck.append(lane)
        return gone

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
        """The chunk's state, with its stored marks where it was not in memory."""
        known = self.core.state(chunk.base)
        if known is not None:
            if known.chunk is None:
                self.core.supply(chunk)
            return known
        stored = self.partition.progress(chunk.base, self.number)
        return self.core.adopt(chunk, settled=stored.settled, started=stored.started, attempts=stored.attempts)

    def load_for(self, grouped: dict[str, int]) -> None:
        """Reads the chunks that receipts from before a restart name."""
        for shelf, base in self.core.unknown_bases(grouped):
            self.find(shelf, base)

    def find(self, shelf: int, base: int) -> ChunkState | None:
        """The state of a chunk of this view, read if it has to be."""
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
            self.core.lose(base)  # broken since it was last read, and put aside

    # ----------------------------------------------------------------------------------------------------- time

    def tick(self, now_ms: int) -> None:
        """Ends leases that ran out and wakes messages that became due."""
        core = self.core
        for lease in core.leases.expired(now_ms):
            if not lease.bits:
                continue  # another one that ran out took it along
            receipts = receipts_of(lease.token, lease.bits)
            core.give_back(lease, lease.bits, now_ms=now_ms, outcome=Outcome.TIMED_OUT)
            lease.holder.released(len(receipts))
            lease.holder.lost(receipts)
            self.partition.request()
        is_ready = core.wake(now_ms)
        if self.parking is not None:
            self.parking.tick()
            is_ready = True  # a lane may have held back from reading on
        if self.schedule is not None:
            is_ready = self.schedule.tick(now_ms) or is_ready
        if self.expiry is not None:
            self.expiry.tick(now_ms)
        if self.number == VIEW_MAIN and self.partition.sorting is not None:
            self.partition.sorting.tick(now_ms)
        if is_ready:
            self.on_ready()

    def next_wakeup_ms(self) -> int | None:
        times = [self.core.next_wakeup_ms()]
        if self.schedule is not None:
            times.append(self.schedule.next_ms())
        if self.expiry is not None:
            times.append(self.expiry.next_ms())
        if self.number == VIEW_MAIN and self.partition.sorting is not None:
            times.append(self.partition.sorting.next_ms())
        return min((time for time in times if time is not None), default=None)

    def recover(self, now_ms: int) -> None:
        """Takes up the delays that outlast a restart: such messages are not ready, wherever in the backlog they lie."""
        for base in self.partition.reader.delayed(now_ms, self.number):
            if base >= self.floor:
                for lane in self.core.lanes.all:
                    if self._delay_again(lane.shelf, base, now_ms):
                        break
        if self.schedule is not None:
            self.schedule.recover(now_ms)
        if (wakeup_ms := self.next_wakeup_ms()) is not None:
            self.partition.wake_at(wakeup_ms)

    def _delay_again(self, shelf: int, base: int, now_ms: int) -> bool:
        for place in (shelf, SCHEDULED + shelf, SORTING) if self.number == VIEW_MAIN else (shelf,):
            if self.find(place, base) is not None:
                self.core.delay_again(base, now_ms)
                return True
        return False

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        """Takes up a lease that outlived the process."""
        if self.find(kept.shelf, kept.base) is None:
            return None
        lease = self.core.restore(kept, holder)
        if lease is not None:
            self.partition.wake_at(lease.deadline_ms)
        return lease


_EMPTY = Tally()


def _no_answer(done: dict[str, int] | PushqError) -> None:
    """Nobody waits for this answer."""


def _nothing() -> None:
    """Nobody listens yet."""
