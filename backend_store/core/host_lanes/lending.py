"""The owner's side of bulk leases: up to 100 messages for up to 10 s, lent to a host that delivers them.

A lane has one lender: its owner. There may be many agents, and acks arrive at any host; the receipt names the lane and
the lease. Loans and acks are decided here, and are records of the lane's log:

    MessagesLent      replicated leases only: granted when it is committed
    LeaseExtended     replicated leases only: answered when it is committed
    MessagesSettled   the ack that won; answered when it is committed
    LaneHandedOver    the loans that remain when the owner gives the lane away; nothing is lent after it

Leases rest on steady clocks, each of which may be wrong by 1 %, and never on clocks that are set. An agent's time runs
from its request, the owner's from the grant, and a little longer. An adopter cannot know how much of a lease is left
and waits for all of it, from its takeover on, which is later than the agent's request.

With memory leases the log does not have the loans. So an adopter lends no inherited message for as long as a bulk lease
can last; otherwise an agent of the last owner might deliver a message whose ack has been confirmed meanwhile. And an
owner that lends without a commit does so only while its session lasts, by its own clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple, TypeVar, assert_never

from backend_store.core.host_lanes.limits import (
    BULK_LEASE_MESSAGES_MAX,
    BULK_LEASE_MS_MAX,
    BULK_LEASES_PER_LANE_MAX,
    DRIFT_DIVISOR,
    SETTLED_LEASES_MAX,
)
from backend_store.model import VISIBILITY_MS_MAX, Epoch

LeaseMode = Literal["memory", "replicated"]


class LeaseId(NamedTuple):
    """Unique among the leases of a lane: the owner assigns the number, and each epoch has one owner."""

    lane: int
    epoch: Epoch
    number: int


class LaneReceipt(NamedTuple):
    """The receipt of one message. The shell makes a text of it that cannot be forged."""

    lease: LeaseId
    offset: int


class Waiting(NamedTuple):
    """A committed message that is not settled. `key`: in strict order one message per key is lent at a time."""

    offset: int
    key: str | None


class MessagesLent(NamedTuple):
    """Messages were lent to an agent for `lease_ms`."""

    lease: LeaseId
    agent: str
    offsets: tuple[int, ...]
    lease_ms: int


class LeaseExtended(NamedTuple):
    """The lease of one message was extended to `lease_ms` from now."""

    lease: LeaseId
    offset: int
    lease_ms: int


class MessagesSettled(NamedTuple):
    """An ack under this lease has settled messages."""

    lease: LeaseId
    offsets: tuple[int, ...]


class StillLent(NamedTuple):
    """A loan that remains at a handover, and the time left of it."""

    lease: LeaseId
    offset: int
    key: str | None
    left_ms: int


class LaneHandedOver(NamedTuple):
    """`quiet_ms`: how long messages below `inherited_below` must not be lent yet, if the owner itself was waiting."""

    leases: tuple[StillLent, ...]
    quiet_ms: int
    inherited_below: int


LeaseRecord = MessagesLent | LeaseExtended | MessagesSettled | LaneHandedOver

_Counted = TypeVar("_Counted", LeaseId, str)
_STALE_ENDS_MAX = 1_024

Verdict = MessagesSettled | Literal["settled", "already-acked", "stale-receipt"]
"""The decision about an ack. A record: append it. `settled`: an ack of this lease has won before. The answer to both,
and to `already-acked`, waits until everything appended so far is committed: before that the winning ack may vanish."""


class _Hold(NamedTuple):
    lease: LeaseId
    until_ms: int
    key: str | None


class Lender:
    """The bulk leases of one lane in one epoch. The lane's owner has it; `now_ms` is the owner's steady clock."""

    def __init__(self, lane: int, epoch: Epoch, *, mode: LeaseMode, is_strict: bool):
        self.mode = mode
        self._lane = lane
        self._epoch = epoch
        self._is_strict = is_strict
        self._number = 0
        self._out: dict[int, _Hold] = {}
        self._loans: Counter[LeaseId] = Counter()
        """The number of lent messages by lease."""
        self._ends: list[tuple[int, int]] = []
        """A heap of (time, offset) of lent messages. Outdated times of extended or settled ones remain for a while."""
        self._busy: Counter[str] = Counter()
        """Keys of messages that are lent or about to be settled."""
        self._settled: dict[int, LeaseId] = {}
        self._settling: dict[int, str | None] = {}
        """Acks that are decided but not committed: offset → key. The key is locked, and the message not lent again."""
        self._quiet_until_ms = 0
        self._inherited_below = 0
        self.has_handed_over = False

    # ---------------------------------------------------------------------------------------------------- lending

    def lend(
        self,
        waiting: Iterable[Waiting],
        agent: str,
        *,
        count: int,
        lease_ms: int,
        now_ms: int,
        session_ends_ms: int,
    ) -> MessagesLent | None:
        """Lends the first messages that are free, at most `count`. Returns None if none is free or none may be lent.

        `waiting` has all unsettled messages in ascending offsets, up to where it ends.
        """
        self._expire(now_ms)
        in_memory = self.mode == "memory"
        if self.has_handed_over or (in_memory and now_ms >= session_ends_ms):
            return None
        if len(self._loans) >= BULK_LEASES_PER_LANE_MAX:
            return None
        lease_ms = min(lease_ms, BULK_LEASE_MS_MAX)
        chosen = self._free(waiting, min(count, BULK_LEASE_MESSAGES_MAX), now_ms)
        if not chosen:
            return None
        self._number += 1
        lease = LeaseId(self._lane, self._epoch, self._number)
        until_ms = now_ms + owned_ms(lease_ms)
        for offset, key in chosen:
            self._hold(offset, _Hold(lease, until_ms, key))
        return MessagesLent(lease, agent, tuple(offset for offset, _ in chosen), lease_ms)

    def _free(self, waiting: Iterable[Waiting], count: int, now_ms: int) -> list[Waiting]:
        is_quiet = now_ms < self._quiet_until_ms
        passed: set[str] = set()
        chosen: list[Waiting] = []
        for one in waiting:
            if len(chosen) == count:
                break
            offset, key = one
            is_held = offset in self._out or offset in self._settling
            is_locked = self._is_strict and key is not None and (key in self._busy or key in passed)
            if not is_held and not is_locked and not (is_quiet and offset < self._inherited_below):
                chosen.append(one)
            if key is not None:
                passed.add(key)  # even if this one may not be lent yet: no other of its key goes before it
        return chosen

    def give_back(self, lease: LeaseId, offsets: Iterable[int]) -> None:
        """Takes back messages that an agent will not deliver. Those that were lent again since are left alone."""
        for offset in offsets:
            hold = self._out.get(offset)
            if hold is not None and hold.lease == lease:
                self._release(offset)

    def extend(self, receipt: LaneReceipt, lease_ms: int, now_ms: int) -> LeaseExtended | None:
        """Extends the lease of one message. Returns None if the receipt's lease is over, or the message settled."""
        self._expire(now_ms)
        hold = self._out.get(receipt.offset)
        if hold is None or hold.lease != receipt.lease or self.has_handed_over:
            return None
        lease_ms = min(lease_ms, VISIBILITY_MS_MAX)
        self._hold(receipt.offset, hold._replace(until_ms=max(hold.until_ms, now_ms + owned_ms(lease_ms))))
        return LeaseExtended(receipt.lease, receipt.offset, lease_ms)

    def next_wakeup_ms(self) -> int | None:
        """Returns when more may be lent than now, unless an ack or a message arrives; None: never."""
        times = [self._ends[0][0]] if self._ends else []
        return min([*times, self._quiet_until_ms] if self._quiet_until_ms else times, default=None)

    def _hold(self, offset: int, hold: _Hold) -> None:
        self._release(offset)
        self._out[offset] = hold
        self._loans[hold.lease] += 1
        if hold.key is not None:
            self._busy[hold.key] += 1
        heappush(self._ends, (hold.until_ms, offset))
        if len(self._ends) > 2 * len(self._out) + _STALE_ENDS_MAX:
            self._ends = [(held.until_ms, held_offset) for held_offset, held in self._out.items()]
            heapify(self._ends)

    def _release(self, offset: int) -> None:
        hold = self._out.pop(offset, None)
        if hold is not None:
            _count_down(self._loans, hold.lease)
            if hold.key is not None:
                _count_down(self._busy, hold.key)

    def _expire(self, now_ms: int) -> None:
        while self._ends and self._ends[0][0] <= now_ms:
            _, offset = heappop(self._ends)
            hold = self._out.get(offset)
            if hold is not None and hold.until_ms <= now_ms:
                self._release(offset)
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = 0

    # ------------------------------------------------------------------------------------------------------- acks

    def ack(self, receipt: LaneReceipt, *, key: str | None, is_there: bool, now_ms: int) -> Verdict:
        """Decides about an ack. `is_there`: the message is in the lane, and no ack of it is committed.

        A receipt stays valid after its lease and its epoch, until the message is lent again.
        """
        self._expire(now_ms)
        offset = receipt.offset
        winner = self._settled.get(offset)
        if winner is not None:
            return "settled" if winner == receipt.lease else "already-acked"
        if not is_there or offset in self._settling:
            return "already-acked"
        hold = self._out.get(offset)
        if hold is not None and hold.lease != receipt.lease:
            return "stale-receipt"
        record = MessagesSettled(receipt.lease, (offset,))
        self._settle(record)
        self._settling[offset] = key
        if key is not None:
            self._busy[key] += 1
        return record

    def committed(self, record: MessagesSettled) -> None:
        """Unlocks the keys of acks that are committed."""
        for offset in record.offsets:
            key = self._settling.pop(offset, None)
            if key is not None:
                _count_down(self._busy, key)

    def _settle(self, record: MessagesSettled) -> None:
        for offset in record.offsets:
            self._release(offset)
            self._settled[offset] = record.lease
            if len(self._settled) > SETTLED_LEASES_MAX:
                self._settled.pop(next(iter(self._settled)))

    # --------------------------------------------------------------------------------------------- change of owner

    def hand_over(self, now_ms: int) -> LaneHandedOver:
        """Stops lending. Returns the remaining loans; the lane may change its owner once that record is committed."""
        self._expire(now_ms)
        self.has_handed_over = True
        leases = tuple(
            StillLent(hold.lease, offset, hold.key, hold.until_ms - now_ms) for offset, hold in self._out.items()
        )
        return LaneHandedOver(leases, max(0, self._quiet_until_ms - now_ms), self._inherited_below)

    def inherit(
        self, epochs: Iterable[tuple[Epoch, LeaseRecord]], *, last_epoch: Epoch, below: int, now_ms: int
    ) -> None:
        """Replays the log's records, each with the epoch that wrote it. `last_epoch`: that of the previous owner, 0 if
        there was none; `below`: where the new owner's entries begin; `now_ms`: not before it took over.
        """
        handover: LaneHandedOver | None = None
        for epoch, record in epochs:
            handover = record if isinstance(record, LaneHandedOver) and epoch == last_epoch else handover
            self._take_in(record, now_ms)
        self._inherited_below = below
        if self.mode == "memory" and last_epoch:
            self._quiet_until_ms = now_ms + owned_ms(BULK_LEASE_MS_MAX)
        if handover is not None:
            self._quiet_until_ms = now_ms + owned_ms(handover.quiet_ms) if handover.quiet_ms else 0
            self._inherited_below = handover.inherited_below

    def _take_in(self, record: LeaseRecord, now_ms: int) -> None:
        match record:
            case MessagesLent():
                for offset in record.offsets:
                    self._hold(offset, _Hold(record.lease, now_ms + owned_ms(record.lease_ms), None))
            case LeaseExtended():
                hold = self._out.get(record.offset)
                if hold is not None and hold.lease == record.lease:
                    until_ms = max(hold.until_ms, now_ms + owned_ms(record.lease_ms))
                    self._hold(record.offset, hold._replace(until_ms=until_ms))
            case MessagesSettled():
                self._settle(record)
            case LaneHandedOver():
                for offset in list(self._out):
                    self._release(offset)
                for one in record.leases:
                    self._hold(one.offset, _Hold(one.lease, now_ms + owned_ms(one.left_ms), one.key))
            case _:
                assert_never(record)

    def name_keys(self, keys: Iterable[tuple[int, str | None]]) -> None:
        """Sets the keys of lent messages, which the log has only in the messages themselves."""
        for offset, key in keys:
            hold = self._out.get(offset)
            if hold is not None:
                self._hold(offset, hold._replace(key=key))


def _count_down(counts: Counter[_Counted], what: _Counted) -> None:
    counts[what] -= 1
    if not counts[what]:
        del counts[what]


def owned_ms(lease_ms: int) -> int:
    """Returns for how long, by its own clock, an owner reserves a message that it lent for `lease_ms`."""
    return lease_ms + -(-lease_ms // DRIFT_DIVISOR)
