"""The work-queue view of a partition: each message to one consumer, leased until it is settled.

What is handed out, settled or given back is decided here and becomes state with a commit. Until then it is an overlay:
the next decision sees it, the disk does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from backend_store.core.backlog import Backlog
from backend_store.core.bits import indexes
from backend_store.core.kept import KeptLease
from backend_store.core.leases import ChunkState, Holder, Lease, LeaseTable
from backend_store.core.limits import IN_FLIGHT_PER_QUEUE_MAX, LEASE_MS_MIN, SETTLED_TOKENS_MAX
from backend_store.core.receipts import TokenFields, make_token, read_token
from backend_store.core.records import AttemptsRecorded, ChunkDone, ChunkMarked, Record
from backend_store.model import Offset

DEFAULT_GROUP = 0


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


class WorkView(Backlog):
    """The backlog with its leases, attempts and settled bits: the default group's view of the log."""

    def __init__(self, key: ReceiptKey, *, next_scan: Offset, first_lease: int):
        super().__init__(next_scan=next_scan)
        self.key = key
        self.in_flight = 0
        self.leases = LeaseTable()
        self._lease_number = first_lease
        self._settled_tokens: OrderedDict[str, int] = OrderedDict()
        # The overlay: decided, and not yet among the records of a commit.
        self._touched: dict[int, ChunkState] = {}
        self._returned: list[Returned] = []
        self._settled_now = 0
        self._settled_late = 0
        # What the commit in flight has of it. Consumers take and go away meanwhile: that is for the next commit.
        self._in_commit: tuple[list[ChunkState], list[Returned], int] = ([], [], 0)

    def lose(self, base: int) -> None:
        self._touched.pop(base, None)
        super().lose(base)

    # ------------------------------------------------------------------------------------------------- leases

    def take(self, limit: int, holder: Holder, visibility_ms: int, now_ms: int) -> Lease | None:
        """Leases up to `limit` ready messages of one chunk."""
        limit = min(limit, IN_FLIGHT_PER_QUEUE_MAX - self.in_flight)
        visibility_ms = max(visibility_ms, LEASE_MS_MIN)
        drawn = self.draw(limit) if limit > 0 else None
        if drawn is None:
            return None
        state, bits = drawn
        return self._lease(state, bits, holder, now_ms + visibility_ms)

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
        self.leases.add(lease)
        return lease

    def _token(self, state: ChunkState, bits: int) -> str:
        key = self.key
        return make_token(
            key.secret,
            TokenFields(
                key.partition,
                key.key_id,
                key.queue_uid,
                state.epoch,
                DEFAULT_GROUP,
                state.base,
                self._lease_number,
                (bits & -bits).bit_length() - 1,
                bits.bit_length() - 1,
            ),
        )

    def unsent(self, lease: Lease, bits: int) -> None:
        """Takes an attempt back that never left for a socket: it does not count."""
        bits &= lease.bits
        if not bits:
            return  # it ran out, or was purged, before it could leave
        state = lease.state
        lease.bits ^= bits
        if not lease.bits:
            self.leases.drop_if_empty(lease.token)
        for index in indexes(bits):
            tries = state.attempts.pop(index, 1) - 1
            if tries > 1:
                state.attempts[index] = tries
            elif tries == 0:
                state.started &= ~(1 << index)
        state.leased &= ~bits
        self.in_flight -= bits.bit_count()
        self._touched[state.base] = state
        self.put_back(state, bits)

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        """Puts back a lease that a clean stop kept, as far as its messages are still free."""
        state = self._chunks[kept.base]
        bits = int.from_bytes(kept.bits, "little") & state.free
        if not bits:
            return None
        state.leased |= bits
        self.in_flight += bits.bit_count()
        lease = Lease(kept.token, state, bits, holder, kept.deadline_ms)
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
        return held

    # ---------------------------------------------------------------------------------------- decide and apply

    def unknown_bases(self, grouped: Iterable[str]) -> list[int]:
        """Chunks that genuine receipts name and that are not in memory: the shell reads them before it decides."""
        bases = []
        for token in grouped:
            if self.leases.get(token) is None and token not in self._settled_tokens:
                fields = self._genuine(token)
                if fields is not None and fields.base not in self._chunks:
                    bases.append(fields.base)
        return bases

    def _genuine(self, token: str) -> TokenFields | None:
        fields = read_token(self.key.secret, token)
        mine = fields is not None and (fields.queue_uid, fields.partition) == (self.key.queue_uid, self.key.partition)
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

    def _settle_leased(self, lease: Lease, bits: int) -> None:
        state = lease.state
        lease.bits ^= bits
        state.leased &= ~bits
        state.settling |= bits
        self._touched[state.base] = state
        self._settled_now += bits.bit_count()
        if not lease.bits:
            self.leases.drop_if_empty(lease.token)
        lease.holder.released(bits.bit_count())

    def _settle_expired(self, token: str, bits: int) -> int:
        """A receipt whose lease is gone still acks while nobody else holds the message."""
        fields = self._genuine(token) if bits else None
        state = self._chunks.get(fields.base) if fields is not None else None
        if fields is None or state is None or state.epoch != fields.epoch:
            return 0
        won = bits & fields.bits & state.full & ~(state.settled | state.settling | state.leased)
        if won:
            self.delayed -= (won & state.delayed).bit_count()
            state.delayed &= ~won
            state.settling |= won
            self._settled_late += won.bit_count()
            self._touched[state.base] = state
        return won

    def _remember(self, token: str, bits: int) -> None:
        self._settled_tokens[token] = self._settled_tokens.pop(token, 0) | bits
        if len(self._settled_tokens) > SETTLED_TOKENS_MAX:
            self._settled_tokens.popitem(last=False)

    def give_back(self, lease: Lease, bits: int, due_ms: int = 0) -> int:
        """Decides that an attempt ended without an ack: the messages are free again once that is committed."""
        bits &= lease.bits
        if not bits:
            return 0
        state = lease.state
        lease.bits ^= bits
        if not lease.bits:
            self.leases.drop_if_empty(lease.token)
        state.leased &= ~bits
        state.returning |= bits
        if due_ms:
            for index in indexes(bits):
                state.due[index] = due_ms
        self._touched[state.base] = state
        self._returned.append(Returned(state, bits, due_ms))
        return bits

    @property
    def has_decided(self) -> bool:
        """Something waits for a commit that somebody waits for; started attempts alone can ride along."""
        return bool(self._returned or self._settled_now or self._settled_late)

    def records(self) -> tuple[list[Record], int, list[ChunkState]]:
        """The overlay as records of a commit, how many messages it settles, and the chunks that are done with."""
        records: list[Record] = []
        done: list[ChunkState] = []
        settled = 0
        touched = list(self._touched.values())
        self._in_commit = touched, self._returned, self._settled_now
        self._touched = {}
        self._returned = []
        self._settled_now = self._settled_late = 0
        for state in touched:
            settled += state.settling.bit_count()
            after = state.settled | state.settling
            if after == state.full:
                records.append(ChunkDone(state.base))
                done.append(state)
                continue
            records.append(ChunkMarked(state.base, state.count, after, state.started))
            if state.attempts or state.due or state.recorded:
                records.append(AttemptsRecorded(state.base, _attempt_rows(state)))
                state.recorded = True
        return records, settled, done

    def committed(self) -> None:
        """The records are on disk: they become state, and what was given back is free."""
        (touched, returned, settled), self._in_commit = self._in_commit, ([], [], 0)
        for state in touched:
            state.settled |= state.settling
            state.settling = 0
            if state.settled == state.full:
                self._forget(state)
        self.in_flight -= settled
        # The last one given back goes to the front first, so that all stand there in the order they had.
        for state, bits, due_ms in reversed(returned):
            self.in_flight -= bits.bit_count()
            state.returning &= ~bits
            free = bits & state.free
            if free and due_ms:
                self.delay(state, free, due_ms)
            elif free:
                self.put_back(state, free)

    def purge(self) -> None:
        """Forgets everything handed over so far; the rows are the shell's to delete."""
        for lease in self.leases.values():
            lease.holder.released(lease.bits.bit_count())
            lease.bits = 0
        self.leases.clear()
        self.clear()
        self._touched.clear()
        self._returned.clear()
        self._in_commit = ([], [], 0)
        self.in_flight = self._settled_now = self._settled_late = 0

    def next_wakeup_ms(self) -> int | None:
        """When `wake` or `leases.expired` next has something to do."""
        deadline = self.leases.next_deadline_ms()
        return min((t for t in (deadline, self.next_due_ms()) if t is not None), default=None)


def _attempt_rows(state: ChunkState) -> dict[int, tuple[int, int]]:
    rows = {index: (tries, state.due.get(index, 0)) for index, tries in state.attempts.items()}
    for index, due in state.due.items():
        rows.setdefault(index, (1, due))
    return rows
