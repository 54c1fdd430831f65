"""The work-queue view of a partition: acks, nacks and the commits that make them state.

Each message goes to one consumer and is leased until it is settled. A decision is an overlay until its commit: the next
decision sees it, the disk does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backend_store.core.leases.leases import ChunkState, Lease
from backend_store.core.leases.leasing import Ends, Leasing, ReceiptKey, expired_bits, uncount
from backend_store.core.limits import SETTLED_TOKENS_MAX
from backend_store.core.log.bits import indexes
from backend_store.core.log.records import AttemptsRecorded, ChunkDone, ChunkMarked, Record, Retry
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.ready.attempt_policy import HistoryRow, Outcome, Reason, noted
from backend_store.model import Offset

DEFAULT_GROUP = VIEW_MAIN


class Returned(NamedTuple):
    """Messages whose attempt ended without an ack: free again once that is committed, or at `due_ms` if it is not 0."""

    state: ChunkState
    bits: int
    due_ms: int


class Overlay(NamedTuple):
    """What one commit changes in a view. `settled` and `acked` count messages; `done` has the fully settled chunks."""

    records: list[Record]
    settled: int
    acked: int
    done: list[ChunkState]


class _InCommit(NamedTuple):
    touched: list[ChunkState]
    returned: list[Returned]
    landed: int
    """Messages that are no longer in flight."""
    awaited: list[Lease]


_NOTHING = _InCommit([], [], 0, [])
_UNCHANGED = Overlay([], 0, 0, [])
_NO_BACKOFF = (Outcome.RETURNED, Outcome.UNTRIED)
"""Outcomes that are not a failure of the message."""


class WorkView(Leasing):
    """A backlog with its leases, attempts and settled bits. The partition's writer owns it."""

    came_back = 0
    """Messages given back after an attempt and due for redelivery, since the process started. A class attribute until
    the first one: an object with 30 attributes takes five times the memory of one with 29, and most queues are idle."""

    def __init__(self, key: ReceiptKey, **settings: Any):
        super().__init__(key, **settings)
        self._returned: list[Returned] = []
        # The part of the overlay in the running commit. What consumers do meanwhile belongs to the next commit.
        self._in_commit = _NOTHING

    # ---------------------------------------------------------------------------------------- decide and apply

    def settle(self, grouped: dict[str, int]) -> dict[str, int]:
        """Decides an ack. Returns token → the bits it settled: of several receipts of one message, one wins."""
        settled = {}
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            won = 0
            for part in lease.parts() if lease is not None else ():
                if mine := part.bits & bits:
                    won |= mine
                    self._settle_leased(part, mine)
            if won != bits:
                won |= self._settled_tokens.get(token, 0) & bits
                won |= self._settle_expired(token, bits & ~won)
            if won:
                self._remember(token, won)
            settled[token] = won
        return settled

    def holds(self, grouped: dict[str, int]) -> bool:
        """Whether `settle` would settle all of these receipts now, by leases that still run."""
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            held = 0
            for part in lease.parts() if lease is not None else ():
                held |= part.bits
            if bits & ~held or not bits:
                return False
        return True

    def won(self, grouped: dict[str, int]) -> dict[str, int]:
        """Returns token → the bits it settled earlier, as far as that is remembered."""
        return {token: self._settled_tokens.get(token, 0) & bits for token, bits in grouped.items()}

    def _settle_leased(self, lease: Lease, bits: int) -> None:
        state = lease.state
        lease.bits ^= bits
        state.leased &= ~bits
        state.settling |= bits
        self._touched[state.base] = state
        self._ends.landed += bits.bit_count()
        if not lease.bits:
            self._drop_if_empty(lease)
        lease.holder.released(bits.bit_count())

    def _settle_expired(self, token: str, bits: int) -> int:
        """Acks by a receipt whose lease has ended: valid while no other consumer holds the message."""
        fields = self._genuine(token) if bits else None
        state = self._chunks.get(fields.base) if fields is not None else None
        if fields is None or state is None or state.epoch != fields.epoch:
            return 0
        won = bits & fields.bits & state.present & ~state.leased
        if won:
            self.settle_free(state, won)
        return won

    def settle_free(self, state: ChunkState, bits: int) -> None:
        """Settles messages that are not leased."""
        self.undelay(state, bits)
        state.settling |= bits
        self._ends.free += bits.bit_count()
        self._touched[state.base] = state

    def _remember(self, token: str, bits: int) -> None:
        self._settled_tokens[token] = self._settled_tokens.pop(token, 0) | bits
        if len(self._settled_tokens) > SETTLED_TOKENS_MAX:
            self._settled_tokens.popitem(last=False)

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
        """Decides that an attempt ended without an ack; the messages are free again once that is committed. The attempt
        does not count for those in `untried`. Messages that have had all their attempts, or have expired, end here.

        `due_ms`: when the messages are ready again; 0: at once; None: after the queue's back-off. Returns the bits that
        were given back.
        """
        bits &= lease.bits
        if not bits:
            return 0
        state = lease.state
        lease.bits ^= bits
        self._shrunk(lease)
        state.leased &= ~bits
        untried = bits if outcome == Outcome.UNTRIED else bits & untried
        uncount(state, untried)
        self._note(state, bits & ~untried, (now_ms, outcome, reason))
        ended = expired_bits(state, bits, now_ms) if state.expires is not None else 0
        if ended:
            self._die_leased(state, ended, Reason.EXPIRED, now_ms)
        worn_out = self._worn_out(state, bits & state.started & ~ended)
        if worn_out:
            self._die_leased(state, worn_out, Reason.MAX_ATTEMPTS, now_ms)
        self._touched[state.base] = state
        if back := bits & ~(ended | worn_out):
            self.came_back += (back & ~untried).bit_count()
            self._return(state, back, due_ms, now_ms, outcome)
        return bits

    def _return(self, state: ChunkState, bits: int, due_ms: int | None, now_ms: int, outcome: Outcome) -> None:
        state.returning |= bits
        if due_ms is not None or not self.policy.backoff_ms or outcome in _NO_BACKOFF:
            due_ms = due_ms or 0
            if due_ms:
                for index in indexes(bits):
                    state.due[index] = due_ms
            self._returned.append(Returned(state, bits, due_ms))
            return
        for index in indexes(bits):
            state.due[index] = due = now_ms + self.policy.backoff(state.attempts.get(index, 1))
            self._returned.append(Returned(state, 1 << index, due))

    def _note(self, state: ChunkState, bits: int, ended: tuple[int, str, str | None]) -> None:
        at_ms, outcome, reason = ended
        for index in indexes(bits):
            row: HistoryRow = (state.attempts.get(index, 1), at_ms, str(outcome), reason)
            state.history[index] = noted(state.history.get(index), row)

    # -------------------------------------------------------------------------------------- end without an ack

    def _die_leased(self, state: ChunkState, bits: int, reason: Reason, now_ms: int) -> None:
        self.die(state, bits, reason, now_ms)
        self._ends.landed += bits.bit_count()

    def die_held(self, lease: Lease, bits: int, reason: Reason, now_ms: int, why: str | None = None) -> None:
        """Ends messages that were just leased but cannot be delivered. `why` goes into their history."""
        bits &= lease.bits
        if not bits:
            return  # purged, or the lease ran out
        lease.bits ^= bits
        self._drop_if_empty(lease)
        lease.state.leased &= ~bits
        if why is not None:
            self._note(lease.state, bits, (now_ms, str(reason), why))
        self._die_leased(lease.state, bits, reason, now_ms)

    # -------------------------------------------------------------------------------------------------- commits

    @property
    def has_decided(self) -> bool:
        """Whether a decision needs a commit of its own; attempts that only started ride along with another one."""
        ends = self._ends
        return bool(self._returned or ends.landed or ends.free or ends.died)

    @property
    def awaits_commit(self) -> bool:
        """Whether leases must be on disk before their messages may be sent."""
        return bool(self._awaited)

    def ending(self) -> tuple[int, int]:
        """Returns (messages, bytes) whose end, by an ack or without, is decided but not yet in a commit's records."""
        messages = size = 0
        for state in self._touched.values():
            if state.settling:
                messages += state.settling.bit_count()
                gone = state.settled | state.committing | state.settling
                size += state.size * gone.bit_count() // state.count - state.ended_bytes
        return messages, size

    def in_hands(self) -> tuple[int, int]:
        """Returns the number of messages in flight and the bytes that would remain if all others ended. A message that
        was given back and acked all the same does not count.
        """
        messages = size = 0
        for state in self.states() if self.in_flight else ():
            if bits := (state.leased | state.returning) & ~state.settling:
                messages += bits.bit_count()
                size += state.size - state.size * (state.count - bits.bit_count()) // state.count
        return messages, size

    def held_by(self, grouped: dict[str, int]) -> tuple[int, int]:
        """Returns (messages, bytes) held by receipts, which are given as token → bits."""
        messages = size = 0
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            for part in lease.parts() if lease is not None else ():
                if mine := part.bits & bits:
                    messages += mine.bit_count()
                    size += part.state.weight(mine)
        return messages, size

    def records(self) -> Overlay:
        """Returns the overlay as records of one commit, and starts a new overlay."""
        if not (self._touched or self._awaited or self._lease_records or self.has_decided):
            return _UNCHANGED  # the case of each publish to a queue without a consumer
        records: list[Record] = []
        done: list[ChunkState] = []
        settled = 0
        touched = list(self._touched.values())
        for state in touched:
            settled += state.settling.bit_count()
            state.committing, state.settling = state.settling, 0
            after = state.settled | state.committing
            if after == state.full:
                self._count_ended(state, 0)
                records.append(self._done(state))
                done.append(state)
                continue
            self._count_ended(state, after)
            records.append(ChunkMarked(self.number, state.base, state.count, after, state.started))
            if state.attempts or state.due or state.history or state.recorded:
                records.append(AttemptsRecorded(self.number, state.base, _retries(state)))
                state.recorded = True
        records.extend(self._lease_records.values())
        overlay = Overlay(records, settled, settled - self._ends.died, done)
        self._in_commit = _InCommit(touched, self._returned, self._ends.landed, self._awaited)
        self._touched, self._returned, self._awaited, self._lease_records = {}, [], [], {}
        self._ends = Ends()
        return overlay

    def _done(self, state: ChunkState) -> Record:
        """Returns the record of a chunk whose messages are all settled."""
        return ChunkDone(self.number, state.shelf, state.base)

    def committed(self) -> None:
        """Applies the records once they are on disk: settled bits become state, and what was given back is free."""
        if self._in_commit is _NOTHING:
            return
        (touched, returned, landed, awaited), self._in_commit = self._in_commit, _NOTHING
        for state in touched:
            if state.committing:
                settled, state.committing = state.committing, 0
                state.settled |= settled
                state.lane.runs.freed(state, settled)
                if state.settled == state.full:
                    self._forget(state)
        self.in_flight -= landed
        # In reverse, each to the front, so that the messages keep the order in which they were given back.
        for state, bits, due_ms in reversed(returned):
            self.in_flight -= bits.bit_count()
            self._note_free(state)
            state.returning &= ~bits
            free = bits & state.free
            if free and due_ms:
                self.delay(state, free, due_ms)
            elif free:
                state.lane.runs.freed(state, free)
                self.put_back(state, free)
        for lease in awaited:
            lease.durable = True
            lease.holder.sendable()

    def purge(self, floor: Offset) -> None:
        """Forgets everything in memory and reads on at `floor`. The shell deletes the rows."""
        for lease in self.leases.values():
            lease.holder.released(lease.bits.bit_count())
            lease.bits = 0
        self.leases.clear()
        self.clear(floor)
        self._touched.clear()
        self._returned.clear()
        self._deaths.clear()
        awaited, self._awaited = self._awaited + self._in_commit.awaited, []
        self._in_commit = _NOTHING
        self._lease_records.clear()
        for lease in awaited:
            if not lease.receipts:
                lease.holder.released(lease.bits.bit_count())
            # None of it is sent any more, and a holder that waits for it must not wait for ever.
            lease.bits, lease.durable = 0, True
            lease.holder.sendable()
        self.in_flight, self._ends = 0, Ends()

    def next_wakeup_ms(self) -> int | None:
        """Returns when `wake` or `leases.expired` next has something to do; None: never."""
        deadline = self.leases.next_deadline_ms()
        return min((t for t in (deadline, self.next_due_ms()) if t is not None), default=None)


def _retries(state: ChunkState) -> dict[int, Retry]:
    attempts, due, history = state.attempts, state.due, state.history
    return {
        index: Retry(attempts.get(index, 1), due.get(index, 0), history.get(index, []))
        for index in sorted({*attempts, *due, *history})
    }
