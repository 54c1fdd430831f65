"""The owner's side of bulk leases: up to 100 messages for up to 10 s, lent to a host that hands them out.

A lane has one lender: its owner. Agents may be many, and acks come back from any host; the receipt says which lane and
which lease. What is lent, what is settled and by whom is decided here, and is a record of the lane's log:

    MessagesLent      replicated leases only: granted when it is committed
    LeaseExtended     replicated leases only: answered when it is committed
    MessagesSettled   the ack that won; answered when it is committed
    LaneHandedOver    what is still lent when the owner gives the lane away; nothing is lent after it

Whose lease it is hangs on steady clocks that may each go wrong by 1 %, and on nothing that is set. An agent counts
from when it asked, the owner from when it granted, and a little longer. An adopter cannot know how much of a lease is
left and waits all of it out, from when it took over: it begins to count after the agent did.

With memory leases the log does not say what is lent. So an adopter lends nothing of what it inherits for as long as a
bulk lease can last; otherwise an agent of the last owner might hand out a message whose ack has been confirmed
meanwhile. And an owner that lends without a commit does so only while its session lasts, by its own count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, assert_never

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
    """No two leases of a lane have the same: a number is its owner's, an owner's epoch is its own."""

    lane: int
    epoch: Epoch
    number: int


class LaneReceipt(NamedTuple):
    """What a holder of one message shows. The shell makes a text of it that cannot be forged."""

    lease: LeaseId
    offset: int


class Waiting(NamedTuple):
    """A committed message that is not settled. `key`: in strict order one of a key is lent at a time."""

    offset: int
    key: str | None


class MessagesLent(NamedTuple):
    lease: LeaseId
    agent: str
    offsets: tuple[int, ...]
    lease_ms: int


class LeaseExtended(NamedTuple):
    """Of one message; in milliseconds from now."""

    lease: LeaseId
    offset: int
    lease_ms: int


class MessagesSettled(NamedTuple):
    lease: LeaseId
    offsets: tuple[int, ...]


class StillLent(NamedTuple):
    lease: LeaseId
    offset: int
    key: str | None
    left_ms: int


class LaneHandedOver(NamedTuple):
    """`quiet_ms`: how long what lies below `inherited_below` must not be lent, if the owner had waited itself."""

    leases: tuple[StillLent, ...]
    quiet_ms: int
    inherited_below: int


LeaseRecord = MessagesLent | LeaseExtended | MessagesSettled | LaneHandedOver

Verdict = MessagesSettled | Literal["settled", "already-acked", "stale-receipt"]
"""Of an ack. A record: append it. `settled`: this lease's ack has won before. Both are told when all that is appended
by then is committed, and so is `already-acked`: until then the ack that won may vanish."""


class _Hold(NamedTuple):
    lease: LeaseId
    until_ms: int
    key: str | None


class Lender:
    """One lane's leases in one epoch. `now_ms` is the owner's steady clock."""

    def __init__(self, lane: int, epoch: Epoch, *, mode: LeaseMode, is_strict: bool):
        self.mode = mode
        self._lane = lane
        self._epoch = epoch
        self._is_strict = is_strict
        self._number = 0
        self._out: dict[int, _Hold] = {}
        self._settled: dict[int, LeaseId] = {}
        self._settling: dict[int, str | None] = {}
        """Decided and not committed: the message is not lent again, and its key is not free."""
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
        """Lends the first messages that are free, at most `count`; None when there are none, or nothing may be lent.

        `waiting` rises by offset, and has all that waits up to where it ends.
        """
        self._expire(now_ms)
        in_memory = self.mode == "memory"
        if self.has_handed_over or (in_memory and now_ms >= session_ends_ms):
            return None
        if len({hold.lease for hold in self._out.values()}) >= BULK_LEASES_PER_LANE_MAX:
            return None
        lease_ms = min(lease_ms, BULK_LEASE_MS_MAX)
        chosen = self._free(waiting, min(count, BULK_LEASE_MESSAGES_MAX), now_ms)
        if not chosen:
            return None
        self._number += 1
        lease = LeaseId(self._lane, self._epoch, self._number)
        until_ms = now_ms + owned_ms(lease_ms)
        for offset, key in chosen:
            self._out[offset] = _Hold(lease, until_ms, key)
        return MessagesLent(lease, agent, tuple(offset for offset, _ in chosen), lease_ms)

    def _free(self, waiting: Iterable[Waiting], count: int, now_ms: int) -> list[Waiting]:
        busy = {hold.key for hold in self._out.values()} | set(self._settling.values()) if self._is_strict else set()
        busy.discard(None)
        is_quiet = now_ms < self._quiet_until_ms
        chosen: list[Waiting] = []
        for one in waiting:
            if len(chosen) == count:
                break
            is_held = one.offset in self._out or one.offset in self._settling
            if not is_held and one.key not in busy and not (is_quiet and one.offset < self._inherited_below):
                chosen.append(one)
            if self._is_strict and one.key is not None:
                busy.add(one.key)  # also where this one may not go yet: none of its key goes before it
        return chosen

    def give_back(self, lease: LeaseId, offsets: Iterable[int]) -> None:
        """An agent says that it has not handed these out, and will not. What was lent anew since is left alone."""
        for offset in offsets:
            hold = self._out.get(offset)
            if hold is not None and hold.lease == lease:
                del self._out[offset]

    def extend(self, receipt: LaneReceipt, lease_ms: int, now_ms: int) -> LeaseExtended | None:
        """Lengthens the hold of one message; None where the receipt's lease is over, or its message is settled."""
        self._expire(now_ms)
        hold = self._out.get(receipt.offset)
        if hold is None or hold.lease != receipt.lease or self.has_handed_over:
            return None
        lease_ms = min(lease_ms, VISIBILITY_MS_MAX)
        until_ms = max(hold.until_ms, now_ms + owned_ms(lease_ms))
        self._out[receipt.offset] = hold._replace(until_ms=until_ms)
        return LeaseExtended(receipt.lease, receipt.offset, lease_ms)

    def next_wakeup_ms(self) -> int | None:
        """When something may be lent that may not be now, unless an ack or a message comes."""
        times = [hold.until_ms for hold in self._out.values()]
        return min([*times, self._quiet_until_ms] if self._quiet_until_ms else times, default=None)

    def _expire(self, now_ms: int) -> None:
        over = [offset for offset, hold in self._out.items() if hold.until_ms <= now_ms]
        for offset in over:
            del self._out[offset]
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = 0

    # ------------------------------------------------------------------------------------------------------- acks

    def ack(self, receipt: LaneReceipt, *, key: str | None, is_there: bool, now_ms: int) -> Verdict:
        """Decides about an ack. `is_there`: the message is in the lane, and no ack of it is committed.

        A receipt outlives its lease and its epoch, until the message is lent to somebody else.
        """
        self._expire(now_ms)
        offset = receipt.offset
        winner = self._settled.get(offset)
        if winner is not None:
            return "settled" if winner == receipt.lease else "already-acked"
        if not is_there:
            return "already-acked"
        hold = self._out.get(offset)
        if hold is not None and hold.lease != receipt.lease:
            return "stale-receipt"
        record = MessagesSettled(receipt.lease, (offset,))
        self._settle(record)
        self._settling[offset] = key
        return record

    def committed(self, record: MessagesSettled) -> None:
        """The acks are committed: their keys are free."""
        for offset in record.offsets:
            self._settling.pop(offset, None)

    def _settle(self, record: MessagesSettled) -> None:
        for offset in record.offsets:
            self._out.pop(offset, None)
            self._settled[offset] = record.lease
            if len(self._settled) > SETTLED_LEASES_MAX:
                self._settled.pop(next(iter(self._settled)))

    # ----------------------------------------------------------------------------------------- from owner to owner

    def hand_over(self, now_ms: int) -> LaneHandedOver:
        """Stops lending and says what is still lent. The lane may change its owner once this is committed."""
        self._expire(now_ms)
        self.has_handed_over = True
        leases = tuple(
            StillLent(hold.lease, offset, hold.key, hold.until_ms - now_ms) for offset, hold in self._out.items()
        )
        return LaneHandedOver(leases, max(0, self._quiet_until_ms - now_ms), self._inherited_below)

    def inherit(
        self, epochs: Iterable[tuple[Epoch, LeaseRecord]], *, last_epoch: Epoch, below: int, now_ms: int
    ) -> None:
        """Takes in the log's records, each with the epoch that wrote it. `last_epoch`: of the owner before this one,
        0 if there was none; `below`: where this one's own entries begin; `now_ms`: not before it took over."""
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
                    self._out[offset] = _Hold(record.lease, now_ms + owned_ms(record.lease_ms), None)
            case LeaseExtended():
                hold = self._out.get(record.offset)
                if hold is not None and hold.lease == record.lease:
                    until_ms = max(hold.until_ms, now_ms + owned_ms(record.lease_ms))
                    self._out[record.offset] = hold._replace(until_ms=until_ms)
            case MessagesSettled():
                self._settle(record)
            case LaneHandedOver():
                held = {one.offset: _Hold(one.lease, now_ms + owned_ms(one.left_ms), one.key) for one in record.leases}
                self._out = {offset: hold for offset, hold in held.items() if offset not in self._settled}
            case _:
                assert_never(record)

    def name_keys(self, keys: Iterable[tuple[int, str | None]]) -> None:
        """The keys of messages that are lent, which the log has with the messages alone."""
        for offset, key in keys:
            hold = self._out.get(offset)
            if hold is not None:
                self._out[offset] = hold._replace(key=key)


def owned_ms(lease_ms: int) -> int:
    """How long an owner keeps a message for whoever it lent it to for `lease_ms`, by a clock of its own."""
    return lease_ms + -(-lease_ms // DRIFT_DIVISOR)
