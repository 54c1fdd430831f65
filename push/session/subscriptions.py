"""A consumer's subscription to one queue: leases and credit on a work queue, a position on a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from backend_store.client import SUFFIXES, Gap, Lease, Queue, Start, indexes
from push.delivery.feeder import Feeder
from push.delivery.stream_reader import Reading
from push.limits import LAPSE_MS_MIN

LEASES_BEFORE_PRUNING = 64


class Outlet(Protocol):
    """Where a subscription's messages are sent: a WebSocket session or an SSE stream."""

    @property
    def writable(self) -> bool:
        """False while the peer does not read fast enough."""

    def flush_soon(self) -> None:
        """Writes what subscriptions have pending, in this turn of the loop."""

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        """Tells the client that leases ended."""


class Away:
    """The outlet of a session that was cut: sends nothing, and keeps the lost receipts for its return."""

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
        """The client sends `begin`: messages that it has not begun with when it leaves do not count as attempted."""
        self.outstanding = 0
        self.messages_sent = 0
        self.in_ring = False
        self.is_withheld = False
        """The client does not read: it gets nothing more."""
        self.returned = self.taken = 0
        """How many messages it no longer holds, and how many of those were taken from it, as at the end of a lease."""
        self.lapsed = self.returned_before = 0
        """Messages whose lease ran out since the client last settled some, and the value of `returned` at that time."""
        self._gaps: dict[int | None, Gap] = {}
        self.gaps_since = -1
        """How often the client had been heard when it was told of `gaps`. Over SSE the count is `settled`."""
        self.unread: list[Lease] = []
        """Leases sent since the client was last heard; `unread_since` is its count of frames heard at that time."""
        self.unread_since = -1
        self.pending: list[Lease] = []
        self.pending_bytes = 0
        self.leases: list[Lease] = []
        self.in_doubt: dict[str, int] = {}
        """For a group with offsets: messages sent over a connection that was cut, as bits by token. They may not have
        reached the client, and an ack of anything newer would settle them too."""

    def wants(self) -> int:
        if self.pending_bytes >= self.pending_bytes_max or self.is_withheld or not self.outlet.writable:
            return 0
        if self.in_doubt and self._is_in_doubt():
            return 0
        credit = 1 if self._lets_all_lapse else self.credit
        if shift := self.feeder.intake.credit_shift:
            credit = max(1, credit >> shift)  # less is in flight while the process is overloaded
        return credit - self.outstanding

    def deliver(self, lease: Lease) -> None:
        count = lease.bits.bit_count()
        self.outstanding += count
        self.pending.append(lease)
        self.pending_bytes += lease.state.size * count // lease.state.count
        self.outlet.flush_soon()

    @property
    def may_send(self) -> bool:
        """Whether anything is pending that does not wait for the disk."""
        return any(lease.durable for lease in self.pending)

    def take_pending(self) -> list[Lease]:
        """Takes the leases whose bytes are sent now. Leases that wait for the disk stay."""
        pending, self.pending = self.pending, []
        if any(not lease.durable for lease in pending):
            self.pending = [lease for lease in pending if not lease.durable]
            pending = [lease for lease in pending if lease.durable]
        if self.pending_bytes >= self.pending_bytes_max:
            # It left the ring because of big messages, not for want of credit; nothing else would put it back.
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
        """Notes that the bytes were written to the socket: automatic acks settle them here."""
        for lease in leases:
            count = lease.bits.bit_count()
            self.messages_sent += count
            if not lease.receipts:
                # No ack follows, so no commit dispatches what its credit may take next.
                self.outstanding -= count
                self.feeder.add(self)
            elif self.auto:
                self.queue.settle_lease(lease)

    def sent_since(self, leases: list[Lease], heard: int) -> None:
        """Notes leases whose bytes were written; `heard` is the count of frames heard from the client by then."""
        if self.unread_since != heard:
            self.unread_since = heard
            self.unread.clear()
        if not self.auto:
            self.unread += [lease for lease in leases if lease.receipts]

    def missed(self, gaps: Sequence[Gap], heard: int) -> None:
        """Notes gaps that the client is told of; `heard` is the count of frames heard from the client by then."""
        if self.gaps_since != heard:
            self.gaps_since = heard
            self._gaps = {}
        for gap in gaps:
            self._gaps[gap.partition] = self._gaps.get(gap.partition, gap).and_also(gap)

    @property
    def gaps(self) -> list[Gap]:
        """Gaps that the client was told of since it was last heard, merged into one for each partition."""
        return [*self._gaps.values()]

    @property
    def settled(self) -> int:
        """How many messages the client has settled; if it need not settle, how many were written to the socket."""
        if self.auto or self.queue.config.delivery == "at_most_once":
            return self.messages_sent
        return self.returned - self.taken

    def withhold(self) -> None:
        """Stops delivery to a client that does not read. What it was sent goes to other consumers and does not count as
        attempted, but for the first message of all that it holds: the client may be processing that one, and hang
        because of it."""
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
        """Resumes delivery: the client was heard again."""
        self.is_withheld = False
        self.feeder.add(self)

    def _first(self) -> Lease | None:
        """The lease that was sent first of those that it still holds."""
        return next((part for lease in self.leases for part in lease.parts() if part.bits), None)

    @property
    def _lets_all_lapse(self) -> bool:
        """Whether as many leases ran out as it has credit for while it settled nothing: then it gets messages one by
        one until it settles one."""
        is_all = 0 < self.lapsed == self.returned - self.returned_before and self.lapsed >= self.credit
        return is_all and self.visibility_ms >= LAPSE_MS_MIN

    def released(self, count: int) -> None:
        self.outstanding -= count
        self.returned += count
        self.feeder.line_up(self)

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Notes leases that ended; their messages were `released` just now. `ran_out`: they expired, so the client let
        them lapse."""
        self.taken += len(receipts)
        self.lapsed += len(receipts) if ran_out else 0
        if self.lapsed != self.returned - self.returned_before:
            self.lapsed = 0  # it has settled some: the count begins anew
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
        """Takes over the leases of a session that resumed."""
        for lease in leases:
            for part in lease.parts():
                part.holder = self
                self.outstanding += part.bits.bit_count()
        self.leases.extend(leases)

    def doubt(self, leases: list[Lease], within_ms: int) -> None:
        """Redelivers what the session was sent before it was cut, unless its client shows within `within_ms` that it
        has it. No newer message is taken until then."""
        receipts: list[str] = []
        for part in [part for lease in leases for part in lease.parts() if part.bits]:
            self.in_doubt[part.token] = self.in_doubt.get(part.token, 0) | part.bits
            receipts += [part.token + SUFFIXES[index] for index in indexes(part.bits)]
        if receipts:
            self.queue.extend(receipts, min(within_ms, self.visibility_ms), _unheard)

    def vouched(self, grouped: Mapping[str, int]) -> None:
        """The client has the messages of these receipts and keeps them."""
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
        """Counts the first message of all that it holds as begun, once the connection was cut: a crash of the consumer
        may have cut it, and lost its `begin`. Otherwise a message that kills its handler would never count as
        attempted."""
        if (first := self._first()) is not None:
            first.untried &= ~(first.bits & -first.bits)

    def _is_in_doubt(self) -> bool:
        """Whether any message in doubt is neither settled, nor vouched for, nor back in the queue."""
        parts = (part for lease in self.leases for part in lease.parts())
        if any(part.bits & self.in_doubt.get(part.token, 0) for part in parts):
            return True
        self.in_doubt = {}
        return False

    def held(self) -> list[Lease]:
        return [lease for lease in self.leases if any(part.bits for part in lease.parts())]

    def one_of_each_lease(self) -> list[str]:
        """One receipt of each lease that it holds, in the same order."""
        parts = (part for lease in (*self.leases, *self.pending) if lease.receipts for part in lease.parts())
        return [part.token + SUFFIXES[(part.bits & -part.bits).bit_length() - 1] for part in parts if part.bits]

    def stop(self) -> None:
        """Takes no more; what was not sent goes back without an attempt. `leases` stay, for the caller to keep or give
        back."""
        self.feeder.remove(self)
        self.queue.consumers -= 1
        for lease in reversed(self.take_unsent()):
            self.queue.unsent(lease)  # the last one first: each goes to the front of what is ready

    def take_unsent(self) -> list[Lease]:
        pending, self.pending = self.pending, []
        self.pending_bytes = 0
        return pending

    def give_back(self) -> None:
        """Returns what is still held; the messages that were begun count as attempted."""
        leases, self.leases = self.leases, []
        self.credit = 0
        for lease in leases:
            for part in list(lease.parts()):
                self.queue.give_back_lease(part)


def _unheard(result: object) -> None:
    """Ignores the result: a lease that could not be extended or given back ends by itself."""


class StreamSubscription:
    """A reader of a stream: its offsets move on as frames are sent. Without credit the outbox is the bound."""

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
        """Where it stands while it is not live; a live one stands at the fan-out's ends."""
        self.credit = credit
        self.key = key
        self.live = False
        self.since_ms = time.time_ns() // 1_000_000
        """When it subscribed; messages published before are not counted as waits."""
        self.messages_sent = 0
        self.feeding = False
        self.stopped = False
