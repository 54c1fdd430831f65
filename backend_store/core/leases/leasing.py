"""Leases ready messages to consumers, with their receipts, and ends messages that may not be delivered any more.

This is the first half of a view's decisions; acks and nacks are in `work_queue`. A decision is an overlay until its
commit: the next decision sees it, the disk does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from backend_store.core.leases.leases import ChunkState, Holder, Lease, LeaseTable, receipts_of
from backend_store.core.leases.receipts import TokenFields, claimed_fields, group_field, make_token, read_token
from backend_store.core.leases.session_snapshot import KeptLease
from backend_store.core.limits import CAME_FREE_MAX, LEASE_MS_MIN
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.records import LeaseRecorded
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.ready.arrival import ArrivalRuns, Runs
from backend_store.core.ready.attempt_policy import Policy, Reason
from backend_store.core.ready.backlog import Backlog
from backend_store.core.ready.priorities import Lane
from backend_store.core.ready.strict import StrictRuns
from backend_store.model import Offset


class ReceiptKey(NamedTuple):
    """What a partition needs to make and check receipts."""

    secret: bytes
    key_id: int
    queue_uid: int
    partition: int


class Death(NamedTuple):
    """Messages that end without an ack. The partition decides whether they become dead letters."""

    state: ChunkState
    bits: int
    reason: Reason
    at_ms: int
    chunk: Chunk | None
    """The chunk, if its bytes were in memory then: later they may not be."""


class Lost(NamedTuple):
    """Messages that a holder loses because their chunk is damaged, with the receipts if they were already sent."""

    holder: Holder
    messages: int
    receipts: list[str]


class Ends:
    """How many messages end with the next commit. A separate object keeps a view below 30 attributes, from which on an
    object takes five times the memory.
    """

    __slots__ = ("died", "died_bytes", "free", "landed")

    def __init__(self) -> None:
        self.landed = 0
        """Messages that are no longer in flight."""
        self.free = 0
        """Messages settled that were not in flight."""
        self.died = 0
        """Messages that ended without an ack."""
        self.died_bytes = 0


class Leasing(Backlog):
    """A backlog whose messages are leased."""

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
        is_fair: bool = False,
    ):
        super().__init__(
            next_scan=next_scan, more=more, shelves=shelves, make_runs=make_runs, reads_keys=reads_keys, is_fair=is_fair
        )
        self.key = key
        self.number = view
        self.policy = policy or Policy()
        self.in_flight = 0
        self.came_free: set[tuple[int, int]] | None = None
        """(shelf, base) of chunks that had messages given back; None: not recorded, because no caller has asked yet or
        there were too many."""
        self.leases = LeaseTable()
        self._lease_number = first_lease
        self._active: Holder | None = None
        self._settled_tokens: OrderedDict[str, int] = OrderedDict()
        """Used receipts: token → the bits it settled. A repeated ack of these needs no read."""
        # The overlay: decided, but not yet in the records of a commit.
        self._touched: dict[int, ChunkState] = {}
        self._ends = Ends()
        self._deaths: list[Death] = []
        self._awaited: list[Lease] = []
        self._lease_records: dict[int, LeaseRecorded] = {}

    @property
    def is_strict(self) -> bool:
        """Whether the lanes keep order by key."""
        return isinstance(self.lanes.all[0].runs, StrictRuns)

    def lose(self, base: int) -> list[Lost]:
        """Gives up a chunk whose stored bytes are damaged and ends its leases, because their messages could not be
        delivered again. Returns what each holder loses; the shell notifies the holders.
        """
        state = self._chunks[base]
        told: list[Lost] = []
        for lease in self.leases.values():
            if lease.state is state:
                count = lease.bits.bit_count()
                told.append(Lost(lease.holder, count, receipts_of(lease.token, lease.bits) if lease.durable else []))
                lease.bits = 0
                self.in_flight -= count
                self._drop_if_empty(lease)
        state.leased = 0
        if not state.settling:
            self._touched.pop(base, None)
        self._give_up(state)
        return told

    def weight_of_lost(self, base: int) -> tuple[int, int]:
        """Returns (messages, bytes) that would be lost with a chunk. Messages whose end is decided do not count, nor do
        the bytes of a chunk that the running commit ends.
        """
        state = self._chunks[base]
        is_done = bool(state.settling) or (state.committing and not state.present)
        return state.present.bit_count(), 0 if is_done else state.size

    def may_take(self, holder: Holder) -> bool:
        """Whether a consumer may receive messages of this view now."""
        if self.in_flight >= self.policy.in_flight_max:
            return False
        return not (self.policy.exclusive and self.in_flight and self._active is not holder)

    def take(self, lane: Lane, limit: int, holder: Holder, visibility_ms: int, now_ms: int) -> Lease | None:
        """Leases up to `limit` ready messages of one chunk. Returns None if none is ready, or all drawn ones ended."""
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
        """Returns the drawn messages that may be delivered. Ends those that expired or have had all their attempts."""
        expired = expired_bits(state, bits, now_ms)
        if expired:
            self.die(state, expired, Reason.EXPIRED, now_ms)
            bits &= ~expired
        worn_out = self._worn_out(state, bits & state.started)
        if worn_out and (unjudged := cut_off(state, worn_out)):
            self.die(state, unjudged, Reason.MAX_ATTEMPTS, now_ms)
            bits &= ~unjudged
        return bits

    def _worn_out(self, state: ChunkState, started: int) -> int:
        """Returns those of the started messages that have had all their attempts."""
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
            lease.number, lease.durable, lease.gateway = self._lease_number, False, holder.gateway
            self._store_lease(lease)
            self._awaited.append(lease)
        self._active = holder
        self.leases.add(lease)
        return lease

    def claim(self, state: ChunkState, bits: int, holder: Holder, deadline_ms: int) -> Lease | None:
        """Leases chosen messages to a holder that is no consumer, which is no attempt. Returns None if none is free."""
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
        """At most once: the messages are settled with the next commit and sent only after it."""
        state.started |= bits
        state.settling |= bits
        self._ends.free += bits.bit_count()
        self._touched[state.base] = state
        lease = Lease("", state, bits, holder, 0, state.chunk)
        lease.durable = lease.receipts = False
        self._awaited.append(lease)
        return lease

    def _store_lease(self, lease: Lease) -> None:
        self._store_row(lease, lease.number, lease.gateway)

    def _store_row(self, lease: Lease, number: int, gateway: str) -> None:
        """Stores the parts of a lease that share a row; without messages the row is deleted."""
        whole = self.leases.get(lease.token) or lease
        parts = [part for part in whole.parts() if part.bits and part.number == number]
        bits = 0
        for part in parts:
            bits |= part.bits
        deadline_ms = max((part.deadline_ms for part in parts), default=0)
        self._lease_records[number] = LeaseRecorded(
            self.number, number, lease.token, Offset(lease.state.base), bits, deadline_ms, gateway
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

    def unsent(self, lease: Lease, bits: int, to_come: int = 0) -> None:
        """Takes back an attempt that was never written to a socket, and does not count it. Messages in `to_come` were
        taken before their due time and become ready then.
        """
        bits &= lease.bits
        if not bits or not lease.receipts:
            return  # the lease ran out or was purged before it was sent, or its messages are settled already
        state = lease.state
        lease.bits ^= bits
        self._shrunk(lease)
        if lease.counts:
            uncount(state, bits)
        state.leased &= ~bits
        self.in_flight -= bits.bit_count()
        self._note_free(state)
        self._touched[state.base] = state
        state.lane.runs.freed(state, bits)
        if ready := bits & ~to_come:
            self.put_back(state, ready)

    def _note_free(self, state: ChunkState) -> None:
        """Notes that some of a chunk's messages are free again."""
        if self.came_free is not None:
            self.came_free.add((state.shelf, state.base))
            if len(self.came_free) > CAME_FREE_MAX:
                self.came_free = None  # no caller has read it for long; without a bound it would grow until one does

    def _shrunk(self, lease: Lease) -> None:
        """Stores a lease that lost messages: others may get these, so a crash must not restore them to this lease."""
        if lease.number and lease.bits:
            self._store_lease(lease)
        self._drop_if_empty(lease)

    def _drop_if_empty(self, lease: Lease) -> None:
        if lease.bits:
            return
        if lease.number:
            self._store_lease(lease)
        self.leases.drop_if_empty(lease.token)

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        """Restores a lease that outlived the process, for those of its messages that are still free."""
        state = self._chunks[kept.base]
        bits = int.from_bytes(kept.bits, "little") & state.free
        if not bits:
            return None
        state.leased |= bits
        state.lane.runs.hold(state, bits)
        self.in_flight += bits.bit_count()
        lease = Lease(kept.token, state, bits, holder, kept.deadline_ms)
        lease.number, lease.gateway = kept.number, kept.gateway
        known = self.leases.get(kept.token)
        if known is None:
            self.leases.add(lease)
        else:
            self.leases.join(known, lease)
            self.leases.schedule(lease)
        return lease

    def extend(self, grouped: dict[str, int], visibility_ms: int, now_ms: int) -> dict[str, int]:
        """Moves the deadlines of held messages to `visibility_ms` from now. Returns token → the bits that are held."""
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

    def pass_on(self, lease: Lease, bits: int, holder: Holder) -> int:
        """Moves messages of a lease to another holder; deadlines stay. Returns the bits that were held."""
        passed = 0
        for part in list(lease.parts()):
            if not (mine := part.bits & bits):
                continue
            passed |= mine
            moved = part if mine == part.bits else self.leases.split(part, mine)
            moved.holder = holder
            if moved is not part:
                self.leases.schedule(moved)
            gateway = part.gateway
            if gateway:
                moved.gateway = holder.gateway
            if number := part.number:
                self._lease_number += 1
                moved.number, moved.gateway = self._lease_number, holder.gateway
                self._store_lease(moved)
                self._store_row(lease, number, gateway)
        return passed

    def detach(self, lease: Lease, bits: int) -> bool:
        """Stores that messages of a lease do not end with their gateway. Returns whether their lease has a row."""
        found = False
        for part in list(lease.parts()):
            mine = part.bits & bits
            number, gateway = part.number, part.gateway
            if not (mine and number and gateway):
                continue
            found = True
            moved = part if mine == part.bits else self.leases.split(part, mine)
            if moved is not part:
                self.leases.schedule(moved)
            moved.gateway = ""
            if any(one.bits and one.number == number and one is not moved for one in lease.parts()):
                self._lease_number += 1
                moved.number = self._lease_number
                self._store_row(lease, number, gateway)
            self._store_lease(moved)
        return found

    def is_strange(self, token: str) -> bool:
        """Whether a receipt's token is in no table, so that it must be verified and its chunk perhaps be read."""
        return self.leases.get(token) is None and token not in self._settled_tokens

    def unknown_bases(self, grouped: Iterable[str]) -> list[tuple[int, int]]:
        """Returns (shelf, base) of chunks that genuine receipts name and that are not in memory. The shell reads them
        before it decides.
        """
        places = []
        for token in grouped:
            if self.leases.get(token) is None and token not in self._settled_tokens:
                fields = self._claimed(token)
                if fields is not None and fields.base not in self._chunks and self._is_genuine(token):
                    places.append((fields.shelf, fields.base))
        return places

    def _genuine(self, token: str) -> TokenFields | None:
        """Returns the fields of a genuine receipt of this view whose chunk is in memory, or None.

        The MAC is checked last, so that thousands of forged receipts cost one MAC each at most.
        """
        fields = self._claimed(token)
        return fields if fields is not None and fields.base in self._chunks and self._is_genuine(token) else None

    def _claimed(self, token: str) -> TokenFields | None:
        """Returns the fields of a token that claims to be of this view, without a proof; None for any other token."""
        fields = claimed_fields(token)
        mine = fields is not None and (fields.queue_uid, fields.partition, fields.view) == (
            self.key.queue_uid,
            self.key.partition,
            self.number,
        )
        return fields if mine else None

    def _is_genuine(self, token: str) -> bool:
        return read_token(self.key.secret, token) is not None

    def die(self, state: ChunkState, bits: int, reason: Reason, now_ms: int) -> None:
        """Ends messages that are not in flight, without an ack."""
        self.undelay(state, bits)
        self._ends.died_bytes += state.weight(bits)
        state.settling |= bits
        self._ends.died += bits.bit_count()
        self._touched[state.base] = state
        self._deaths.append(Death(state, bits, reason, now_ms, state.chunk))

    def take_deaths(self) -> list[Death]:
        """Returns the deaths since the last call."""
        deaths, self._deaths = self._deaths, []
        return deaths

    @property
    def dying(self) -> int:
        """Messages whose end without an ack is decided but not yet in the records of a commit."""
        return self._ends.died

    @property
    def dying_bytes(self) -> int:
        """The bytes of the `dying` messages."""
        return self._ends.died_bytes

    @property
    def has_deaths(self) -> bool:
        return bool(self._deaths)


def uncount(state: ChunkState, bits: int) -> None:
    """Subtracts the last attempt of each message."""
    for index in indexes(bits):
        tries = state.attempts.pop(index, 1) - 1
        if tries > 1:
            state.attempts[index] = tries
        elif tries == 0:
            state.started &= ~(1 << index)


def cut_off(state: ChunkState, bits: int) -> int:
    """Returns those of some started messages whose last attempt a crash ended, so that no limit was applied to it yet.

    For the others the limit of that time was applied when their attempt ended. A limit that was lowered since applies
    to later attempts: a message that it would have ended is delivered once more.
    """
    tries, history = state.attempts, state.history
    return sum(1 << n for n in indexes(bits) if not (rows := history.get(n)) or rows[-1][0] != tries.get(n, 1))


def expired_bits(state: ChunkState, bits: int, now_ms: int) -> int:
    """Returns those of the messages whose time to live is over."""
    expires = state.expires
    if expires is None:
        return 0
    return sum(1 << index for index in indexes(bits) if 0 < (expires[index] or 0) <= now_ms)
