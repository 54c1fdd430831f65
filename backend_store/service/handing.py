"""Delivers a queue's ready messages to the gateways that granted credit: round robin, as messages become ready, never
beyond the credit. A consumer group of a stream counts as such a queue.

A *grant* is the number of messages of a place that one gateway takes with one visibility timeout. Messages are leased
to the grant; the gateway decides which consumer gets them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backend_store.client.queue import EmbeddedQueue
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import SUFFIXES
from backend_store.model import CHUNK_MESSAGES_MAX
from backend_store.service.limits import LEASES_FRAME_BYTES_SOFT_MAX
from backend_store.wire.store_frames import Handed, Idle, Leases, Place, of_bits, to_bits

if TYPE_CHECKING:
    from backend_store.service.visitor import Visitor

_INDEX = {suffix: index for index, suffix in enumerate(SUFFIXES)}


class Grant:
    """One gateway's credit for a place and a visibility timeout; for a view, a holder of leases."""

    __slots__ = ("granted", "in_ring", "left", "most", "pending", "place", "queue", "sent", "visibility_ms", "visitor")

    def __init__(self, visitor: Visitor, place: Place, queue: EmbeddedQueue, visibility_ms: int):
        self.visitor = visitor
        self.place = place
        self.queue = queue
        self.visibility_ms = visibility_ms
        self.granted = 0
        self.left = 0
        """Messages that were sent, as the gateway counts them."""
        self.sent = 0
        """As `left`, plus messages of leases that wait for the disk."""
        self.most = CHUNK_MESSAGES_MAX
        self.in_ring = False
        self.pending: list[Lease] = []
        """Leases that wait for the disk."""

    def wants(self) -> int:
        wanted = self.granted - self.sent
        return wanted if wanted > 0 and self.visitor.has_room else 0

    def take(self, lease: Lease) -> None:
        messages = lease.bits.bit_count()
        self.sent += messages
        if lease.receipts:
            self.visitor.leases.remember(self, lease)
        if lease.durable:
            self.left += messages
            self.visitor.hand(self, lease)
        else:
            self.pending.append(lease)
            self.visitor.pending_bytes += size_of(lease)

    # The interface of a holder of leases.

    @property
    def gateway(self) -> str:
        return self.visitor.name

    def released(self, count: int) -> None:
        self.visitor.leases.released(count)

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        ended: dict[str, int] = {}
        for receipt in receipts:
            token = receipt[:-2]
            ended[token] = ended.get(token, 0) | 1 << _INDEX[receipt[-2:]]
        self.visitor.leases.ended(ended)

    def sendable(self) -> None:
        visitor, had_room = self.visitor, self.visitor.has_room
        ready = [lease for lease in self.pending if lease.durable]
        self.pending = [lease for lease in self.pending if not lease.durable]
        for lease in ready:
            visitor.pending_bytes -= size_of(lease)
            self.left += lease.bits.bit_count()
            visitor.hand(self, lease)
        counted, self.sent = self.sent, self.left + sum([lease.bits.bit_count() for lease in self.pending])
        if self.sent < counted or (visitor.has_room and not had_room):
            visitor.room_soon()  # messages purged while they waited are never sent, and others may be in their place

    def drop_pending(self) -> None:
        """Drops leases that wait for the disk, as the gateway is gone."""
        self.visitor.pending_bytes -= sum(map(size_of, self.pending))
        self.pending.clear()


class Counter:
    """One queue's ring of grants with credit, and the gateways that have consumers."""

    def __init__(self, queue: EmbeddedQueue):
        self.queue = queue
        self._ring: deque[Grant] = deque()
        self._grants: set[Grant] = set()
        queue.on_ready(self.dispatch)
        queue.on_gap(self._tell_gaps)

    @property
    def gateways_waiting(self) -> int:
        return len({grant.visitor.name for grant in self._ring})

    def enter(self, grant: Grant) -> None:
        """Registers a gateway that has consumers here; it is told of the group's gaps and end."""
        self._grants.add(grant)
        if self.queue.group is not None:
            self._tell_gaps()

    def leave(self, grant: Grant) -> None:
        self._grants.discard(grant)
        self.remove(grant)

    def close(self) -> None:
        """Called when the group was deleted."""
        grants, self._grants = self._grants, set()
        for grant in grants:
            self.remove(grant)
            grant.visitor.group_gone(grant.place)

    def _tell_gaps(self) -> None:
        """Gaps are reported once, so they are kept until a gateway has consumers."""
        if self._grants and (gaps := self.queue.take_gaps()):
            for visitor, place in {grant.visitor: grant.place for grant in self._grants}.items():
                visitor.missed(place, gaps, self.queue)

    def add(self, grant: Grant) -> None:
        if not grant.in_ring:
            grant.in_ring = True
            self._ring.append(grant)
            self.queue.touch()
        self.dispatch()
        if grant.in_ring and grant.wants() > 0 and not (grant.pending or self.queue.is_looking):
            grant.visitor.idle(grant)

    def remove(self, grant: Grant) -> None:
        if grant.in_ring:
            grant.in_ring = False
            self._ring.remove(grant)
            self.queue.touch()
            self._count()

    def _count(self) -> None:
        """A group without waiting consumers leaves memory after a while, and then gets no news of commits."""
        if self.queue.group is not None:
            self.queue.consumers = self.gateways_waiting

    def dispatch(self) -> None:
        self._deal()
        self._count()

    def _deal(self) -> None:
        """Leases ready messages to the grants in turn until there is no more credit or no message."""
        ring, queue = self._ring, self.queue
        share = turns = refused = 0
        while ring:
            if turns <= 0:
                turns = len(ring)
                share = max(1, -(-queue.ready // turns))
            turns -= 1
            grant = ring[0]
            wanted = grant.wants()
            if wanted <= 0:
                ring.popleft()
                grant.in_ring = False
                queue.touch()
                continue
            lease = queue.take(min(wanted, share, grant.most), grant, grant.visibility_ms)
            if lease is None:
                refused += 1
                if not queue.one_at_a_time or refused >= len(ring):
                    return
                ring.rotate(-1)
                continue
            refused = 0
            ring.rotate(-1)
            grant.take(lease)


def size_of(lease: Lease) -> int:
    """Bytes that are sent to the gateway with a lease."""
    return 0 if lease.chunk is None else len(lease.chunk.data)


def frames_of(handed: list[Handed], idle: list[Idle]) -> Iterator[Leases]:
    """Splits leases into several frames where they have many bytes: a gateway takes no frame beyond
    `STORE_FRAME_BYTES_MAX`."""
    some: list[Handed] = []
    size = 0
    for one in handed:
        some.append(one)
        size += len(one.chunk)
        if size >= LEASES_FRAME_BYTES_SOFT_MAX:
            yield Leases(some, [])
            some, size = [], 0
    if some or idle:
        yield Leases(some, idle)


def counter_of(queue: EmbeddedQueue) -> Counter:
    """The queue's one counter in this process."""
    found: Counter | None = queue.extras.get("counter")
    if found is None:
        found = queue.extras["counter"] = Counter(queue)
    return found


def live_bits(lease: Lease) -> int:
    """The bits of a lease that are neither settled nor returned."""
    if lease.rest is None:
        return lease.bits
    bits = 0
    for part in lease.parts():
        bits |= part.bits
    return bits


__all__ = ["Counter", "Grant", "counter_of", "frames_of", "live_bits", "of_bits", "size_of", "to_bits"]
