"""Consumer groups of a stream: each group is a view of its own over the same log and removes nothing from the log.

A group with *leases* is a work queue over the stream's messages: it settles them one by one, in marks of its own. A
group with *offsets* has one cursor: it delivers to one consumer at a time, in order, and an ack settles everything up
to the acked message. Of the chunks behind it, either kind keeps a single number, the group's position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from backend_store.core.leases.leases import ChunkState, Holder, Lease, receipts_of
from backend_store.core.leases.leasing import Lost, ReceiptKey, uncount
from backend_store.core.leases.session_snapshot import KeptLease
from backend_store.core.leases.stale_receipts import GivenBack, GivenBacks, given_back, stale_from
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.records import ChunkMarked, ChunkPassed, GroupRow, Record, Retry
from backend_store.core.log.sublogs import MAIN
from backend_store.core.ready.arrival import ArrivalRuns, Runs
from backend_store.core.ready.attempt_policy import Outcome, Policy
from backend_store.core.ready.priorities import Lane
from backend_store.core.ready.work_queue import Overlay, WorkView
from backend_store.model import Offset


def below(state: ChunkState | Chunk, offset: int) -> int:
    """Returns the bits of a chunk's messages below an offset."""
    return (1 << min(max(offset - state.base, 0), state.count)) - 1


class Memory(NamedTuple):
    """What is kept of a group that is at rest, for the time when the group is opened again."""

    last_lease: int
    given_back: GivenBacks = ()


class GroupView(WorkView):
    """What both kinds of group share: which chunks are fully settled, and the position that follows from them."""

    def __init__(
        self,
        key: ReceiptKey,
        row: GroupRow,
        *,
        low: Offset,
        first_lease: int,
        policy: Policy,
        make_runs: Callable[[], Runs] = ArrivalRuns,
        reads_keys: bool = False,
    ):
        """`low` is the base of the chunk that contains the group's position, or of the next chunk after it."""
        super().__init__(
            key,
            next_scan=low,
            first_lease=first_lease,
            view=row.number,
            policy=policy,
            shelves=(MAIN,),
            make_runs=make_runs,
            reads_keys=reads_keys,
        )
        self.mode = row.mode
        self.position = Offset(row.position)
        self.low = low
        """The group reads no chunk below this offset any more."""
        self.fence: int | None = None
        """Messages from this offset on must wait for messages of another partition that the group has not settled."""
        self._order: deque[int] = deque()
        """Chunks that were read and are not behind the group, in log order; those in `_closed` are fully settled."""
        self._closed: set[int] = set()

    @property
    def lane(self) -> Lane:
        return self.lanes.all[0]

    @property
    def memory(self) -> Memory:
        """What the group needs when it is opened again, so that no receipt stands for two leases."""
        return Memory(self._lease_number)

    def go_on_from(self, memory: Memory) -> None:
        self._lease_number = max(self._lease_number, memory.last_lease)

    @property
    def is_at_rest(self) -> bool:
        """True if no message is held, none waits for a due time, and no decision waits for a commit."""
        busy = self.in_flight or self.delayed or self._touched or self._in_commit.touched or self.leases.values()
        return not (busy or self.has_decided or self.has_deaths)

    def knows_all_of(self, base: int) -> bool:
        """Whether the group has read a chunk and settled all its messages, so that it need not be read again."""
        return base in self._closed

    def adopt(self, chunk: Chunk, *, settled: int, started: int, attempts: Mapping[int, Retry]) -> ChunkState:
        settled |= below(chunk, self.position)
        return super().adopt(chunk, settled=settled, started=started, attempts=attempts)

    def fence_off(self, fence: int | None) -> bool:
        """Stops reading at an offset (None: nowhere) until the next call. Returns True if more may be readable now."""
        is_wider = self.fence is not None and (fence is None or fence > self.fence)
        self.fence = fence
        if is_wider:
            self.lane.more = True
        return is_wider

    def came(self, chunk: Chunk, now_ms: int) -> None:
        if self.fence is None or chunk.base < self.fence:
            super().came(chunk, now_ms)

    def scan(self, lane: Lane, chunk: Chunk, now_ms: int) -> None:
        super().scan(lane, chunk, now_ms)
        state = self._chunks[chunk.base]
        self._order.append(state.base)
        if state.settled == state.full:
            self._close(state)
            self._forget(state)

    def lose(self, base: int) -> list[Lost]:
        state = self._chunks[base]
        told = super().lose(base)
        self._close(state)
        return told

    def _close(self, state: ChunkState) -> None:
        if self.low <= state.base < self.lane.next_scan:
            self._closed.add(state.base)

    def _done(self, state: ChunkState) -> Record:
        """The chunk stays for other groups. This group keeps a mark for it until everything before it is settled."""
        return ChunkMarked(self.number, Offset(state.base), state.count, state.full, state.started)

    def records(self) -> Overlay:
        overlay = super().records()
        for state in overlay.done:
            self._close(state)
        return overlay._replace(records=[*overlay.records, *self._pass_chunks()])

    def committed(self) -> None:
        touched = self._in_commit.touched
        super().committed()
        for state in touched:
            if state.settled == state.full and state.base >= self.low:
                self._close(state)  # it may have been read only after it was decided

    def _pass_chunks(self) -> list[Record]:
        """Advances the position over settled chunks. Returns the records that remove the marks of those chunks."""
        passed: list[Record] = []
        order = self._order
        while order and order[0] in self._closed:
            base = order.popleft()
            self._closed.discard(base)
            passed.append(ChunkPassed(self.number, Offset(base)))
        self.low = Offset(max(self.low, order[0] if order else self.lane.next_scan))
        self.position = max(self.position, self._stands_at())
        return passed

    def _stands_at(self) -> Offset:
        """Returns the first message that is not settled, as far as chunks were read."""
        state = self._chunks.get(self._order[0]) if self._order else None
        if state is None:
            return self.low
        present = state.present
        return Offset(state.base + (present & -present).bit_length() - 1) if present else self.low

    # ---------------------------------------------------------------------------------------- purge and retention

    def purge(self, floor: Offset) -> None:
        super().purge(floor)
        self._order.clear()
        self._closed.clear()
        self.low = self.position = floor

    def cut(self, floor: Offset, low: Offset) -> None:
        """Follows retention: the stream has dropped everything below `floor`, so leases on it are revoked. `low` is the
        base of the floor's chunk.
        """
        for lease in self.leases.values():
            self._revoke(lease, lease.bits & below(lease.state, floor))
        for state in [state for state in self._chunks.values() if state.base < floor]:
            self._cut(state, below(state, floor))
        while self._order and self._order[0] < low:
            self._closed.discard(self._order.popleft())
        self.position, self.low = max(self.position, floor), max(self.low, low)
        self.lane.next_scan = max(self.lane.next_scan, low)

    def _cut(self, state: ChunkState, gone: int) -> None:
        self.undelay(state, gone)
        for returned in self._returned:
            if returned.state is state:
                self.in_flight -= (returned.bits & gone).bit_count()
        self._returned = [
            one if one.state is not state else one._replace(bits=one.bits & ~gone) for one in self._returned
        ]
        state.settling &= ~gone
        state.returning &= ~gone
        state.settled |= gone
        state.lane.runs.freed(state, gone)
        if state.settled == state.full:
            self._touched.pop(state.base, None)
            self._forget(state)
            self._close(state)

    def _revoke(self, lease: Lease, bits: int) -> None:
        """Takes leased messages away from their holder and notifies the holder."""
        if not bits:
            return
        receipts = receipts_of(lease.token, bits)
        lease.bits &= ~bits
        self._shrunk(lease)
        lease.state.leased &= ~bits
        self.in_flight -= len(receipts)
        lease.holder.released(len(receipts))
        lease.holder.lost(receipts, ran_out=False)

    def close(self) -> None:
        """Revokes all leases: the group was deleted, or continues under another number."""
        for lease in self.leases.values():
            self._revoke(lease, lease.bits)
        self.purge(self.position)


class LeasedGroup(GroupView):
    """A consumer group that is a work queue over a stream."""

    def _stands_at(self) -> Offset:
        """The position moves by whole chunks; the marks of a chunk say which of its messages are settled."""
        return self.low


class OffsetGroup(GroupView):
    """A consumer group that delivers in order to one consumer at a time.

    A message that is given back or lost makes everything behind it ready again, too.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._out: deque[Lease] = deque()
        """Leases in the order of their messages; an ended lease is removed when it comes to the front."""
        self._given_back: GivenBacks = ()
        self._first_lease = self._lease_number

    @property
    def memory(self) -> Memory:
        return Memory(self._lease_number, self._given_back)

    def go_on_from(self, memory: Memory) -> None:
        super().go_on_from(memory)
        self._given_back = memory.given_back

    def may_take(self, holder: Holder) -> bool:
        if self.in_flight >= self.policy.in_flight_max or self.nacked_delayed:
            return False
        first = self._first_out()
        return first is None or first.holder is holder

    def _first_out(self) -> Lease | None:
        """Returns the lease part that has the lowest held message."""
        while self._out:
            parts = [part for part in self._out[0].parts() if part.bits]
            if parts:
                return min(parts, key=lambda part: part.bits & -part.bits)
            self._out.popleft()
        return None

    def _lease(self, state: ChunkState, bits: int, holder: Holder, deadline_ms: int) -> Lease:
        lease = super()._lease(state, bits, holder, deadline_ms)
        self._out.append(lease)
        return lease

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        lease = super().restore(kept, holder)
        if lease is not None:
            self._out = deque(sorted([*self._out, lease], key=lambda one: one.state.base))
            self._rebuild()
        return lease

    def records(self) -> Overlay:
        """Returns no records: the group's row has the position, and nothing else is stored."""
        return super().records()._replace(records=[])

    # ------------------------------------------------------------------------------------------------------ acks

    def settle(self, grouped: dict[str, int]) -> dict[str, int]:
        """Decides an ack, which settles everything up to its last message. Returns token → the bits it settled."""
        settled = {}
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            held = 0
            for part in lease.parts() if lease is not None else ():
                held |= part.bits & bits
            if lease is not None and held:
                self._commit(lease.state.base + held.bit_length() - 1)
            won = self._settled_tokens.get(token, 0) & bits
            if won != bits:
                won |= self._settle_expired(token, bits & ~won)
            settled[token] = won
        return settled

    def _commit(self, last: int) -> None:
        """Settles everything up to and including the offset `last`."""
        for lease in self._out:
            if lease.state.base > last:
                break
            for part in list(lease.parts()):
                if mine := part.bits & below(part.state, last + 1):
                    self._settle_leased(part, mine)
                    self._remember(part.token, mine)
        for base in self._order:
            if base > last:
                break
            state = self._chunks.get(base)
            if state is not None and (free := state.present & ~state.leased & below(state, last + 1)):
                self.settle_free(state, free)

    def _settle_expired(self, token: str, bits: int) -> int:
        """Acks by a receipt whose lease has ended: valid while no consumer holds the message or an earlier one, and
        unless a consumer has given one of these back since.
        """
        fields = self._genuine(token) if bits else None
        state = self._chunks.get(fields.base) if fields is not None else None
        if fields is None or state is None or state.epoch != fields.epoch or fields.base >= self.lane.next_scan:
            return 0
        won = bits & fields.bits & state.present
        # What was given back before this process started is not known.
        stale = stale_from(self._given_back, fields.lease) if fields.lease > self._first_lease else None
        for end in (stale, self._held_from()):
            won &= below(state, end) if end is not None else state.full
        if not won:
            return 0
        self._commit(state.base + won.bit_length() - 1)
        self._remember(token, won)
        return won

    def _held_from(self) -> int | None:
        first = self._first_out()
        return None if first is None else first.state.base + (first.bits & -first.bits).bit_length() - 1

    # -------------------------------------------------------------------------------------- nack and redelivery

    def give_back(
        self,
        lease: Lease,
        bits: int,
        *,
        now_ms: int,
        outcome: Outcome,
        due_ms: int | None = None,
        reason: str | None = None,
        untried: int = 0,
    ) -> int:
        """Rewinds to the first of the messages: it and everything behind it is delivered again, and leases on these
        messages are revoked. Returns the bits that were given back.
        """
        bits &= lease.bits
        if not bits:
            return 0
        state = lease.state
        first = bits & -bits
        if outcome in (Outcome.NACKED, Outcome.UNTRIED):
            back = GivenBack(state.base + first.bit_length() - 1, self._lease_number)
            self._given_back = given_back(self._given_back, back, position=self.position)
        uncount(state, bits if outcome == Outcome.UNTRIED else bits & untried)
        if due_ms is None and outcome != Outcome.UNTRIED and outcome != Outcome.RETURNED and self.policy.backoff_ms:
            due_ms = now_ms + self.policy.backoff(state.attempts.get(first.bit_length() - 1, 1))
        self._rewind(lease, bits)
        if due_ms:
            self.delay(state, first, due_ms)
        self._rebuild()
        return bits

    def unsent(self, lease: Lease, bits: int, to_come: int = 0) -> None:
        assert not to_come, "nothing in a stream waits for a time"
        bits &= lease.bits
        if not bits:
            return
        state = lease.state
        uncount(state, bits)
        self._rewind(lease, bits)
        self._rebuild()

    def wake(self, now_ms: int) -> bool:
        is_woken = super().wake(now_ms)
        if is_woken:
            self._rebuild()  # an earlier message may have come back meanwhile
        return is_woken

    def _rewind(self, lease: Lease, bits: int) -> None:
        """Ends the leases of `bits` and of all messages behind the first of them. The caller notifies the holder of
        `bits`; the holders of the others are notified here.
        """
        at = lease.state.base + (bits & -bits).bit_length() - 1
        lease.bits ^= bits
        lease.state.leased &= ~bits
        self.in_flight -= bits.bit_count()
        for other in list(self._out):
            for part in list(other.parts()):
                self._revoke(part, part.bits & ~below(part.state, at))
        if self.leases.get(lease.token) is not None:
            self._shrunk(lease)

    def _rebuild(self) -> None:
        """Makes all free messages ready again, in log order."""
        runs = self.lane.runs
        runs.clear()
        for state in self._states():
            if free := state.free:
                runs.push(state, free)

    def _states(self) -> Iterator[ChunkState]:
        for base in self._order:
            if (state := self._chunks.get(base)) is not None:
                yield state
