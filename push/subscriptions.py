"""What a session holds of one queue: leases and credit on a work queue, a position on a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from backend_store.client import SUFFIXES, Gap, Lease, Queue, Start, indexes
from push.feeder import Feeder
from push.limits import LAPSE_MS_MIN
from push.tails import Reading

LEASES_BEFORE_PRUNING = 64


class Outlet(Protocol):
    """Where a subscription's messages leave: a WebSocket session or an SSE stream."""

    @property
    def writable(self) -> bool:
        """False while the peer does not read fast enough."""

    def flush_soon(self) -> None:
        """Writes what subscriptions have pending, in this turn of the loop."""

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        """Says that leases ran out."""


class Away:
    """The outlet of a session that was cut: nothing leaves, and what is lost is kept for its return."""

    writable = False

    def __init__(self, lost: list[str]):
        self._lost = lost

    def flush_soon(self) -> None: ...

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        self._lost += receipts


class WorkSubscription:
    """A consumer of a work queue. `outstanding` counts messages sent and neither settled nor given back."""

    gateway = ""
    __slots__ = (
        "_gaps",
        "auto",
        "credit",
        "feeder",
        "gaps_since",
        "in_doubt",
        "in_ring",
        "is_withheld",
        "lapsed",
        "leases",
        "messages_sent",
        "number",
        "outlet",
        "outstanding",
        "pending",
        "pending_bytes",
        "pending_bytes_max",
        "queue",
        "returned",
        "returned_before",
        "taken",
        "tells_begun",
        "unread",
        "unread_since",
        "visibility_ms",
    )

    def __init__(
        self,
        outlet: Outlet,
        number: int,
        queue: Queue,
        feeder: Feeder,
        *,
        credit: int,
        auto: bool,
        visibility_ms: int,
        pending_bytes_max: int,
        tells_begun: bool = False,
    ):
        self.outlet = outlet
        self.number = number
        self.queue = queue
        self.feeder = feeder
        self.credit = credit
        self.auto = auto
        self.visibility_ms = visibility_ms
        self.pending_bytes_max = pending_bytes_max
        self.tells_begun = tells_begun
        """The client says `begin`: what it has not begun with when it leaves was no attempt."""
        self.outstanding = 0
        self.messages_sent = 0
        self.in_ring = False
        self.is_withheld = False
        """Its client does not read: it gets nothing more."""
        self.returned = self.taken = 0
        """How many messages it holds no more, and how many of those were taken from it, as at the end of a lease."""
        self.lapsed = self.returned_before = 0
        """Of how many the lease ran out since it settled some, and how many it held no more then."""
        self._gaps: dict[int | None, Gap] = {}
        self.gaps_since = -1
        """When the client was heard before it was told of `gaps`. Over SSE it is heard by what it has `settled`."""
        self.unread: list[Lease] = []
        """What was sent and left since the client was heard; which time that was is `unread_since`."""
        self.unread_since = -1
        self.pending: list[Lease] = []
        self.pending_bytes = 0
        self.leases: list[Lease] = []
        self.in_doubt: dict[str, int] = {}
        """Of a group with offsets: what was sent over a connection that was cut, by token. Nobody knows if it came, and
        an ack of anything newer would settle it too."""

    def wants(self) -> int:
        if self.pending_bytes >= self.pending_bytes_max or self.is_withheld or not self.outlet.writable:
            return 0
        if self.in_doubt and self._is_in_doubt():
            return 0
        credit = 1 if self._lets_all_lapse else self.credit
        if shift := self.feeder.intake.credit_shift:
            credit = max(1, credit >> shift)  # less is on its way while the process has too much to do
        return credit - self.outstanding

    def deliver(self, lease: Lease) -> None:
        count = lease.bits.bit_count()
        self.outstanding += count
        self.pending.append(lease)
        self.pending_bytes += lease.state.size * count // lease.state.count
        self.outlet.flush_soon()

    @property
    def may_send(self) -> bool:
        """Something is pending that does not wait for the disk."""
        return any(lease.durable for lease in self.pending)

    def take_pending(self) -> list[Lease]:
        """The leases whose bytes leave now. Those that wait for the disk stay."""
        pending, self.pending = self.pending, []
        if any(not lease.durable for lease in pending):
            self.pending = [lease for lease in pending if not lease.durable]
            pending = [lease for lease in pending if lease.durable]
        if self.pending_bytes >= self.pending_bytes_max:
            # It left the line because of big messages, not for want of credit; nobody else would put it back.
            self.feeder.add(self)
        self.pending_bytes = 0
        if not self.auto:
            if self.tells_begun:
                for lease in pending:
                    lease.untried = lease.bits
            self.leases.extend(lease for lease in pending if lease.receipts)
            if len(self.leases) > LEASES_BEFORE_PRUNING:
                self.leases = [lease for lease in self.leases if any(part.bits for part in lease.parts())]
        return pending

    def sent(self, leases: list[Lease]) -> None:
        """The bytes have left for the socket: with automatic acks that settles them."""
        for lease in leases:
            count = lease.bits.bit_count()
            self.messages_sent += count
            if not lease.receipts:
                # Nobody acks it, so no commit deals out what its credit may take next.
                self.outstanding -= count
                self.feeder.add(self)
            elif self.auto:
                self.queue.settle_lease(lease)

    def sent_since(self, leases: list[Lease], heard: int) -> None:
        """The bytes have left, and nothing was heard of the client since `heard`."""
        if self.unread_since != heard:
            self.unread_since = heard
            self.unread.clear()
        if not self.auto:
            self.unread += [lease for lease in leases if lease.receipts]

    def missed(self, gaps: Sequence[Gap], heard: int) -> None:
        """Its client is told of these, and nothing was heard of it since `heard`."""
        if self.gaps_since != heard:
            self.gaps_since = heard
            self._gaps = {}
        for gap in gaps:
            self._gaps[gap.partition] = self._gaps.get(gap.partition, gap).and_also(gap)

    @property
    def gaps(self) -> list[Gap]:
        """What it was told to have missed since the client was heard, of each partition from the first to the last."""
        return [*self._gaps.values()]

    @property
    def settled(self) -> int:
        """How many messages its client has settled; where it need not, how many have left for the socket."""
        if self.auto or self.queue.config.delivery == "at_most_once":
            return self.messages_sent
        return self.returned - self.taken

    def withhold(self) -> None:
        """The client does not read. What it was sent goes to others as no attempt, but for the first of all that it
        holds: it may be at work on that, and stand still because of it."""
        self.is_withheld = True
        first = self._first()
        receipts: list[str] = []
        for part in [part for lease in self.unread for part in lease.parts()]:
            bits = part.bits & (part.untried if self.tells_begun else -1)
            if part is first:
                bits &= ~(part.bits & -part.bits)
            receipts += [part.token + SUFFIXES[index] for index in indexes(bits)]
        self.unread.clear()
        if receipts:
            self.queue.give_back(receipts, None, _unheard, tried=False)
            self.outlet.tell_lost(self.number, receipts)

    def restore(self) -> None:
        """The client was heard again."""
        self.is_withheld = False
        self.feeder.add(self)

    def _first(self) -> Lease | None:
        """Of what it holds the lease that was sent first."""
        return next((part for lease in self.leases for part in lease.parts() if part.bits), None)

    @property
    def _lets_all_lapse(self) -> bool:
        """As many leases as it has credit for ran out, and it settled nothing meanwhile: until it does it gets messages
        one by one."""
        is_all = 0 < self.lapsed == self.returned - self.returned_before and self.lapsed >= self.credit
        return is_all and self.visibility_ms >= LAPSE_MS_MIN

    def released(self, count: int) -> None:
        self.outstanding -= count
        self.returned += count
        self.feeder.line_up(self)

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Leases ended whose messages were `released` just now. That they were taken back is not the client's doing."""
        self.taken += len(receipts)
        self.lapsed += len(receipts) if ran_out else 0
        if self.lapsed != self.returned - self.returned_before:
            self.lapsed = 0  # it has settled some: whether it goes on to is counted from here
            self.returned_before = self.returned
        self.outlet.tell_lost(self.number, receipts)

    def sendable(self) -> None:
        self.outlet.flush_soon()

    def grant(self, credit: int) -> None:
        """Sets how many messages may be outstanding."""
        self.credit = credit
        self.feeder.add(self)

    def more(self) -> None:
        """The socket takes bytes again."""
        self.feeder.add(self)

    def adopt(self, leases: list[Lease]) -> None:
        """Goes on with the leases of a session that came back."""
        for lease in leases:
            for part in lease.parts():
                part.holder = self
                self.outstanding += part.bits.bit_count()
        self.leases.extend(leases)

    def doubt(self, leases: list[Lease], within_ms: int) -> None:
        """What the session was sent before it was cut comes again if its client does not show within `within_ms` that
        it has it. Nothing newer is taken until then."""
        receipts: list[str] = []
        for part in [part for lease in leases for part in lease.parts() if part.bits]:
            self.in_doubt[part.token] = self.in_doubt.get(part.token, 0) | part.bits
            receipts += [part.token + SUFFIXES[index] for index in indexes(part.bits)]
        if receipts:
            self.queue.extend(receipts, min(within_ms, self.visibility_ms), _unheard)

    def vouched(self, grouped: Mapping[str, int]) -> None:
        """The client has the messages of these receipts, and holds on to them."""
        for token, bits in grouped.items():
            if token in self.in_doubt:
                self.in_doubt[token] &= ~bits
        self.feeder.add(self)

    def begun(self, grouped: Mapping[str, int]) -> None:
        """A handler has begun with these messages, by token."""
        for lease in self.leases:
            if bits := grouped.get(lease.token):
                for part in lease.parts():
                    part.untried &= ~bits

    def doubt_oldest(self) -> None:
        """The connection was cut, maybe by the crash of the consumer, and its last word with it: what it was sent first
        of all that it holds counts as begun. Or a message that kills whoever begins with it would never be counted."""
        if (first := self._first()) is not None:
            first.untried &= ~(first.bits & -first.bits)

    def _is_in_doubt(self) -> bool:
        """Whether some of it is neither settled, nor vouched for, nor back in its place."""
        parts = (part for lease in self.leases for part in lease.parts())
        if any(part.bits & self.in_doubt.get(part.token, 0) for part in parts):
            return True
        self.in_doubt = {}
        return False

    def held(self) -> list[Lease]:
        return [lease for lease in self.leases if any(part.bits for part in lease.parts())]

    def one_of_each_lease(self) -> list[str]:
        """A receipt of each lease that it holds, in the same order."""
        parts = (part for lease in (*self.leases, *self.pending) if lease.receipts for part in lease.parts())
        return [part.token + SUFFIXES[(part.bits & -part.bits).bit_length() - 1] for part in parts if part.bits]

    def stop(self) -> None:
        """Takes no more; what was not sent goes back uncounted. `leases` stay for the caller to keep or give back."""
        self.feeder.remove(self)
        self.queue.consumers -= 1
        for lease in reversed(self.take_unsent()):
            self.queue.unsent(lease)  # the last one first: each goes to the front of what is ready

    def take_unsent(self) -> list[Lease]:
        pending, self.pending = self.pending, []
        self.pending_bytes = 0
        return pending

    def give_back(self) -> None:
        """Returns what is still held: the attempt counts, of what was begun."""
        leases, self.leases = self.leases, []
        self.credit = 0
        for lease in leases:
            for part in list(lease.parts()):
                self.queue.give_back_lease(part)


def _unheard(result: object) -> None:
    """Nobody asked for it: what could not be extended ends by itself."""


class StreamSubscription:
    """A reader of a stream: places that move on as frames leave. Without credit the outbox is the bound."""

    __slots__ = (
        "credit",
        "feeding",
        "key",
        "live",
        "messages_sent",
        "number",
        "outlet",
        "queue",
        "reading",
        "since_ms",
        "stopped",
    )

    def __init__(self, outlet: Outlet, number: int, queue: Queue, *, start: Start, credit: int | None, key: str):
        self.outlet = outlet
        self.number = number
        self.queue = queue
        self.reading = Reading(start.places, start.epochs)
        """Where it stands while it is not live; live ones stand where the fan-out does."""
        self.credit = credit
        self.key = key
        self.live = False
        self.since_ms = time.time_ns() // 1_000_000
        """What was published before, it did not wait for."""
        self.messages_sent = 0
        self.feeding = False
        self.stopped = False
