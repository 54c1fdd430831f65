"""The work-queue view of a partition: each message to one consumer, leased until it is settled.

What is handed out, settled or given back is decided here and becomes state with a commit. Until then it is an overlay:
the next decision sees it, the disk does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from backend_store.core.backlog import Backlog
from backend_store.core.bits import indexes
from backend_store.core.chunk import Chunk
from backend_store.core.kept import KeptLease
from backend_store.core.keyed import KeyedRuns
from backend_store.core.lanes import Lane
from backend_store.core.leases import ChunkState, Holder, Lease, LeaseTable
from backend_store.core.limits import LEASE_MS_MIN, SETTLED_TOKENS_MAX
from backend_store.core.policy import HistoryRow, Outcome, Policy, Reason, noted
from backend_store.core.receipts import TokenFields, group_field, make_token, read_token
from backend_store.core.records import (
    AttemptsRecorded,
    ChunkDone,
    ChunkMarked,
    LeaseRecorded,
    Record,
    Retry,
)
from backend_store.core.runs import ArrivalRuns, Runs
from backend_store.core.shelves import VIEW_MAIN
from backend_store.model import Offset

DEFAULT_GROUP = VIEW_MAIN


class ReceiptKey(NamedTuple):
    """What a partition needs to make and check receipts."""

    secret: bytes
    key_id: int
    queue_uid: int
    partition: int


class Returned(NamedTuple):
    """Attempts that ended without an ack: free again once that is on disk, or at `due_ms`."""

    state: ChunkState
    bits: int
    due_ms: int


class Death(NamedTuple):
    """Messages that end without an ack; what becomes of them is the partition's to say."""

    state: ChunkState
    bits: int
    reason: Reason
    at_ms: int
    chunk: Chunk | None
    """Their bytes, where they were in memory: later they may not be."""


class Overlay(NamedTuple):
    """What one commit makes true of a view. `acked` counts messages, `done` has the chunks nothing is left of."""

    records: list[Record]
    settled: int
    acked: int
    done: list[ChunkState]


class _InCommit(NamedTuple):
    touched: list[ChunkState]
    returned: list[Returned]
    landed: int
    """Messages that are in flight no more."""
    awaited: list[Lease]


_NOTHING = _InCommit([], [], 0, [])


class WorkView(Backlog):
    """A backlog with its leases, attempts and settled bits."""

    def __init__(
        self,
        key: ReceiptKey,
        *,
        next_scan: Offset,
        more: bool = True,
        first_lease: int,
        view: int = VIEW_MAIN,
        policy: Policy | None = None,
        shelves: Sequence[int] = (0,),
        make_runs: Callable[[], Runs] = ArrivalRuns,
        reads_keys: bool = False,
    ):
        super().__init__(next_scan=next_scan, more=more, shelves=shelves, make_runs=make_runs, reads_keys=reads_keys)
        self.key = key
        self.number = view
        self.policy = policy or Policy()
        self.in_flight = 0
        self.leases = LeaseTable()
        self._lease_number = first_lease
        self._active: Holder | None = None
        self._settled_tokens: OrderedDict[str, int] = OrderedDict()
        # The overlay: decided, and not yet among the records of a commit.
        self._touched: dict[int, ChunkState] = {}
        self._returned: list[Returned] = []
        self._landed = 0
        self._settled_free = 0
        self._died = 0
        self._deaths: list[Death] = []
        self._awaited: list[Lease] = []
        self._lease_records: dict[int, LeaseRecorded] = {}
        # What the commit in flight has of it. Consumers take and go away meanwhile: that is for the next commit.
        self._in_commit = _NOTHING

    @property
    def is_strict(self) -> bool:
        """Whether its lanes are in order by key."""
        return isinstance(self.lanes.all[0].runs, KeyedRuns)

    def lose(self, base: int) -> None:
        self._touched.pop(base, None)
        super().lose(base)

    # ------------------------------------------------------------------------------------------------- leases

    def may_take(self, holder: Holder) -> bool:
        """Whether a consumer may get anything at all now."""
        if self.in_flight >= self.policy.in_flight_max:
            return False
        return not (self.policy.exclusive and self.in_flight and self._active is not holder)

    def take(self, lane: Lane, limit: int, holder: Holder, visibility_ms: int, now_ms: int) -> Lease | None:
        """Leases up to `limit` ready messages of one chunk. None where all that was drawn had come to its end."""
        drawn = lane.runs.draw(min(limit, self.policy.in_flight_max - self.in_flight))
        if drawn is None:
            return None
        state, bits = drawn
        self.lanes.drew(lane, bits.bit_count())
        if state.expires is not None or bits & state.started:
            bits = self._fit(state, bits, now_ms)
            if not bits:
                return None
        if self.policy.settles_first:
            return self._hand_out_for_good(state, bits, holder)
        return self._lease(state, bits, holder, now_ms + max(visibility_ms, LEASE_MS_MIN))

    def _fit(self, state: ChunkState, bits: int, now_ms: int) -> int:
        """The drawn messages that may be handed out; the others end here."""
        expired = expired_bits(state, bits, now_ms)
        if expired:
            self.die(state, expired, Reason.EXPIRED, now_ms)
            bits &= ~expired
        worn_out = self._worn_out(state, bits & state.started)
        if worn_out:
            self.die(state, worn_out, Reason.MAX_ATTEMPTS, now_ms)
            bits &= ~worn_out
        return bits

    def _worn_out(self, state: ChunkState, started: int) -> int:
        """Those of them that have had all their attempts."""
        most = self.policy.max_attempts
        if most is None or not started:
            return 0
        tries = state.attempts
        return sum(1 << index for index in indexes(started) if tries.get(index, 1) >= most)

    def _lease(self, state: ChunkState, bits: int, holder: Holder, deadline_ms: int) -> Lease:
        again = bits & state.started
        state.started |= bits
        state.leased |= bits
        if again:
            for index in indexes(again):
                state.attempts[index] = state.attempts.get(index, 1) + 1
                state.due.pop(index, None)
        self._touched[state.base] = state
        self._lease_number += 1
        self.in_flight += bits.bit_count()
        lease = Lease(self._token(state, bits), state, bits, holder, deadline_ms, state.chunk)
        if self.policy.stores_leases:
            lease.number, lease.durable = self._lease_number, False
            self._store_lease(lease)
            self._awaited.append(lease)
        self._active = holder
        self.leases.add(lease)
        return lease

    def claim(self, state: ChunkState, bits: int, holder: Holder, deadline_ms: int) -> Lease | None:
        """Leases chosen messages to somebody who is no consumer: it is no attempt. None where nobody else left any."""
        bits &= state.free
        if not bits:
            return None
        state.leased |= bits
        state.lane.runs.hold(state, bits)
        self._touched[state.base] = state
        self._lease_number += 1
        self.in_flight += bits.bit_count()
        lease = Lease(self._token(state, bits), state, bits, holder, deadline_ms, state.chunk)
        lease.counts = False
        self.leases.add(lease)
        return lease

    def _hand_out_for_good(self, state: ChunkState, bits: int, holder: Holder) -> Lease:
        """At most once: settled with the next commit, and only then sent."""
        state.started |= bits
        state.settling |= bits
        self._settled_free += bits.bit_count()
        self._touched[state.base] = state
        lease = Lease("", state, bits, holder, 0, state.chunk)
        lease.durable = lease.receipts = False
        self._awaited.append(lease)
        return lease

    def _store_lease(self, lease: Lease) -> None:
        whole = self.leases.get(lease.token) or lease
        parts = [part for part in whole.parts() if part.bits]
        bits = 0
        for part in parts:
            bits |= part.bits
        deadline_ms = max((part.deadline_ms for part in parts), default=0)
        self._lease_records[lease.number] = LeaseRecorded(
            self.number, lease.number, lease.token, Offset(lease.state.base), bits, deadline_ms
        )

    def _token(self, state: ChunkState, bits: int) -> str:
        key = self.key
        return make_token(
            key.secret,
            TokenFields(
                key.partition,
                key.key_id,
                key.queue_uid,
                state.epoch,
                group_field(self.number, state.shelf),
                state.base,
                self._lease_number,
                (bits & -bits).bit_length() - 1,
                bits.bit_length() - 1,
            ),
        )

    def unsent(self, lease: Lease, bits: int) -> None:
        """Takes an attempt back that never left for a socket: it does not count."""
        bits &= lease.bits
        if not bits or not lease.receipts:
            return  # it ran out, or was purged, before it could leave; or it is settled for good
        state = lease.state
        lease.bits ^= bits
        self._drop_if_empty(lease)
        for index in indexes(bits) if lease.counts else ():
            tries = state.attempts.pop(index, 1) - 1
            if tries > 1:
                state.attempts[index] = tries
            elif tries == 0:
                state.started &= ~(1 << index)
        state.leased &= ~bits
        self.in_flight -= bits.bit_count()
        self._touched[state.base] = state
        state.lane.runs.freed(state, bits)
        self.put_back(state, bits)

    def _drop_if_empty(self, lease: Lease) -> None:
        if lease.bits:
            return
        if lease.number:
            self._store_lease(lease)
        self.leases.drop_if_empty(lease.token)

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        """Puts back a lease that outlived the process, as far as its messages are still free."""
        state = self._chunks[kept.base]
        bits = int.from_bytes(kept.bits, "little") & state.free
        if not bits:
            return None
        state.leased |= bits
        state.lane.runs.hold(state, bits)
        self.in_flight += bits.bit_count()
        lease = Lease(kept.token, state, bits, holder, kept.deadline_ms)
        lease.number = kept.number
        known = self.leases.get(kept.token)
        if known is None:
            self.leases.add(lease)
        else:
            self.leases.join(known, lease)
            self.leases.schedule(lease)
        return lease

    def extend(self, grouped: dict[str, int], visibility_ms: int, now_ms: int) -> dict[str, int]:
        """Moves deadlines; the answer has the bits that are held."""
        held: dict[str, int] = {}
        deadline_ms = now_ms + visibility_ms
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            for part in list(lease.parts()) if lease is not None else ():
                mine = part.bits & bits
                if not mine:
                    continue
                held[token] = held.get(token, 0) | mine
                if part.deadline_ms == deadline_ms:
                    continue
                moved = part if mine == part.bits else self.leases.split(part, mine)
                moved.deadline_ms = deadline_ms
                self.leases.schedule(moved)
                if moved.number:
                    self._store_lease(moved)
        return held

    # ---------------------------------------------------------------------------------------- decide and apply

    def unknown_bases(self, grouped: Iterable[str]) -> list[tuple[int, int]]:
        """(shelf, base) of chunks that genuine receipts name and that are not in memory: the shell reads them before
        it decides.
        """
        places = []
        for token in grouped:
            if self.leases.get(token) is None and token not in self._settled_tokens:
                fields = self._genuine(token)
                if fields is not None and fields.base not in self._chunks:
                    places.append((fields.shelf, fields.base))
        return places

    def _genuine(self, token: str) -> TokenFields | None:
        fields = read_token(self.key.secret, token)
        mine = fields is not None and (fields.queue_uid, fields.partition, fields.view) == (
            self.key.queue_uid,
            self.key.partition,
            self.number,
        )
        return fields if mine else None

    def settle(self, grouped: dict[str, int]) -> dict[str, int]:
        """Decides an ack: token → the bits that are settled by it. One ack wins; the others find nothing."""
        settled = {}
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            won = 0
            for part in list(lease.parts()) if lease is not None else ():
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
        """Whether `settle` would settle all of them now, by leases that still run."""
        for token, bits in grouped.items():
            lease = self.leases.get(token)
            held = 0
            for part in lease.parts() if lease is not None else ():
                held |= part.bits
            if bits & ~held or not bits:
                return False
        return True

    def won(self, grouped: dict[str, int]) -> dict[str, int]:
        """Token → the bits that were settled by it, as far as that is remembered."""
        return {token: self._settled_tokens.get(token, 0) & bits for token, bits in grouped.items()}

    def _settle_leased(self, lease: Lease, bits: int) -> None:
        state = lease.state
        lease.bits ^= bits
        state.leased &= ~bits
        state.settling |= bits
        self._touched[state.base] = state
        self._landed += bits.bit_count()
        self._drop_if_empty(lease)
        lease.holder.released(bits.bit_count())

    def _settle_expired(self, token: str, bits: int) -> int:
        """A receipt whose lease is gone still acks while nobody else holds the message."""
        fields = self._genuine(token) if bits else None
        state = self._chunks.get(fields.base) if fields is not None else None
        if fields is None or state is None or state.epoch != fields.epoch:
            return 0
        won = bits & fields.bits & state.present & ~state.leased
        if won:
            self.settle_free(state, won)
        return won

    def settle_free(self, state: ChunkState, bits: int) -> None:
        """Settles messages that nobody holds."""
        self.undelay(state, bits)
        state.settling |= bits
        self._settled_free += bits.bit_count()
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
    ) -> int:
        """Decides that an attempt ended without an ack: the messages are free again once that is committed.

        Those that have had all their attempts end here. `due_ms` 0: at once; None: as the queue's back-off says.
        """
        bits &= lease.bits
        if not bits:
            return 0
        state = lease.state
        lease.bits ^= bits
        self._drop_if_empty(lease)
        state.leased &= ~bits
        self._note(state, bits, (now_ms, outcome, reason))
        ended = expired_bits(state, bits, now_ms) if state.expires is not None else 0
        if ended:
            self._die_leased(state, ended, Reason.EXPIRED, now_ms)
        worn_out = self._worn_out(state, bits & ~ended)
        if worn_out:
            self._die_leased(state, worn_out, Reason.MAX_ATTEMPTS, now_ms)
        self._touched[state.base] = state
        if back := bits & ~(ended | worn_out):
            self._return(state, back, due_ms, now_ms, outcome)
        return bits

    def _return(self, state: ChunkState, bits: int, due_ms: int | None, now_ms: int, outcome: Outcome) -> None:
        state.returning |= bits
        if due_ms is not None or not self.policy.backoff_ms or outcome == Outcome.RETURNED:
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

    # ------------------------------------------------------------------------------------------------- the end

    def die(self, state: ChunkState, bits: int, reason: Reason, now_ms: int) -> None:
        """Ends messages that nobody holds."""
        self.undelay(state, bits)
        state.settling |= bits
        self._died += bits.bit_count()
        self._touched[state.base] = state
        self._deaths.append(Death(state, bits, reason, now_ms, state.chunk))

    def _die_leased(self, state: ChunkState, bits: int, reason: Reason, now_ms: int) -> None:
        self.die(state, bits, reason, now_ms)
        self._landed += bits.bit_count()

    def die_held(self, lease: Lease, bits: int, reason: Reason, now_ms: int) -> None:
        """Ends messages that were just leased: they cannot be handed out."""
        bits &= lease.bits
        lease.bits ^= bits
        self._drop_if_empty(lease)
        lease.state.leased &= ~bits
        self._die_leased(lease.state, bits, reason, now_ms)

    def take_deaths(self) -> list[Death]:
        deaths, self._deaths = self._deaths, []
        return deaths

    @property
    def has_deaths(self) -> bool:
        return bool(self._deaths)

    # -------------------------------------------------------------------------------------------------- commits

    @property
    def has_decided(self) -> bool:
        """Something waits for a commit that somebody waits for; started attempts alone can ride along."""
        return bool(self._returned or self._landed or self._settled_free or self._died)

    @property
    def awaits_commit(self) -> bool:
        """Leases wait for the disk before their bytes may leave."""
        return bool(self._awaited)

    def records(self) -> Overlay:
        """The overlay as records of a commit."""
        records: list[Record] = []
        done: list[ChunkState] = []
        settled = 0
        touched = list(self._touched.values())
        for state in touched:
            settled += state.settling.bit_count()
            state.committing, state.settling = state.settling, 0
            after = state.settled | state.committing
            if after == state.full:
                records.append(self._done(state))
                done.append(state)
                continue
            records.append(ChunkMarked(self.number, state.base, state.count, after, state.started))
            if state.attempts or state.due or state.history or state.recorded:
                records.append(AttemptsRecorded(self.number, state.base, _retries(state)))
                state.recorded = True
        records.extend(self._lease_records.values())
        overlay = Overlay(records, settled, settled - self._died, done)
        self._in_commit = _InCommit(touched, self._returned, self._landed, self._awaited)
        self._touched, self._returned, self._awaited, self._lease_records = {}, [], [], {}
        self._landed = self._settled_free = self._died = 0
        return overlay

    def _done(self, state: ChunkState) -> Record:
        return ChunkDone(self.number, state.shelf, state.base)

    def committed(self) -> None:
        """The records are on disk: they become state, and what was given back is free."""
        (touched, returned, landed, awaited), self._in_commit = self._in_commit, _NOTHING
        for state in touched:
            if state.committing:
                settled, state.committing = state.committing, 0
                state.settled |= settled
                state.lane.runs.freed(state, settled)
                if state.settled == state.full:
                    self._forget(state)
        self.in_flight -= landed
        # The last one given back goes to the front first, so that all stand there in the order they had.
        for state, bits, due_ms in reversed(returned):
            self.in_flight -= bits.bit_count()
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
        """Forgets everything handed over so far; the rows are the shell's to delete."""
        for lease in self.leases.values():
            lease.holder.released(lease.bits.bit_count())
            lease.bits = 0
        self.leases.clear()
        self.clear(floor)
        self._touched.clear()
        self._returned.clear()
        self._deaths.clear()
        awaited, self._awaited = self._awaited + self._in_commit.awaited, []
        for lease in awaited:
            lease.bits = 0
        self._in_commit = _NOTHING
        self.in_flight = self._landed = self._settled_free = self._died = 0

    def next_wakeup_ms(self) -> int | None:
        """When `wake` or `leases.expired` next has something to do."""
        deadline = self.leases.next_deadline_ms()
        return min((t for t in (deadline, self.next_due_ms()) if t is not None), default=None)


def expired_bits(state: ChunkState, bits: int, now_ms: int) -> int:
    """Those of the messages whose time to live is over."""
    expires = state.expires
    if expires is None:
        return 0
    return sum(1 << index for index in indexes(bits) if 0 < (expires[index] or 0) <= now_ms)


def _retries(state: ChunkState) -> dict[int, Retry]:
    attempts, due, history = state.attempts, state.due, state.history
    return {
        index: Retry(attempts.get(index, 1), due.get(index, 0), history.get(index, []))
        for index in sorted({*attempts, *due, *history})
    }
