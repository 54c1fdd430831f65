"""Leases of one view: which holder has which messages until when.

The table is in memory only. A receipt outlives it, because its MAC proves the lease.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, Protocol

from backend_store.core.leases.receipts import SUFFIXES
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk


class Holder(Protocol):
    """The owner of leases: a subscription or a long-poll request. It is notified when it holds fewer messages."""

    @property
    def gateway(self) -> str:
        """The name of the holder's gateway if that is another process, else ""."""

    def released(self, count: int) -> None:
        """`count` of its messages were settled or given back; as many more may be sent."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Leases ended before an ack: they `ran_out`, or their messages were revoked or deleted."""

    def sendable(self) -> None:
        """Leases that waited for the disk may be sent now."""


class ChunkState:
    """The state of one chunk in one view, one bit per message.

    Invariant: leased, delayed and settled are disjoint. `settling` and `returning` are decided; `committing` is on its
    way to the disk. The chunk's bytes may be dropped from memory while its messages are leased, or ten thousand slow
    leases would pin ten thousand chunks.
    """

    __slots__ = (
        "attempts",
        "base",
        "chunk",
        "committing",
        "count",
        "delayed",
        "due",
        "ended_bytes",
        "epoch",
        "expires",
        "full",
        "history",
        "keys",
        "lane",
        "late",
        "leased",
        "partition",
        "recorded",
        "returning",
        "settled",
        "settling",
        "shelf",
        "size",
        "started",
        "turns",
    )

    def __init__(self, chunk: Chunk, *, settled: int = 0, started: int = 0):
        self.chunk: Chunk | None = chunk
        self.base = chunk.base
        self.epoch = chunk.epoch
        self.shelf = chunk.shelf
        self.partition = chunk.partition
        self.size = len(chunk.data)
        self.count = chunk.count
        self.full = (1 << chunk.count) - 1
        self.ended_bytes = 0
        """Bytes of its ended messages that the backlog has already subtracted: see `weight`."""
        self.settled = settled
        self.settling = 0
        self.committing = 0
        self.started = started
        self.leased = 0
        self.returning = 0
        self.delayed = 0
        self.attempts: dict[int, int] = {}
        self.due: dict[int, int] = {}
        self.history: dict[int, list[Any]] = {}
        self.recorded = False
        """True if attempts or due times are on disk, so that a later empty set must be written, too."""
        self.keys: Sequence[str | None] | None = None
        self.expires: Sequence[int] | None = None
        self.late = 0
        """Messages that a queue in strict order delivers before the later ones of their keys."""
        self.lane: Any = None
        """The lane whose runs its messages are in."""
        self.turns: list[int] | None = None
        """In a queue that sorts: the messages released together, as bits, in the order of release so far."""

    @property
    def had_turns(self) -> int:
        """In a queue that sorts: the messages whose rows of the release order were read."""
        return reduce(or_, self.turns or (), 0)

    def in_turns(self, bits: int) -> list[int]:
        """Splits messages into parts that are delivered one after the other, each part in stored order."""
        if self.turns is None:
            return [bits]
        parts = []
        for turn in self.turns:
            if own := turn & bits:
                parts.append(own)
                bits ^= own
        return [bits, *parts] if bits else parts

    @property
    def free(self) -> int:
        """Messages that are neither leased, delayed, given back, nor settled or about to be."""
        taken = self.settled | self.settling | self.committing | self.leased | self.returning | self.delayed
        return self.full & ~taken

    @property
    def present(self) -> int:
        """Messages that are neither settled nor decided to be."""
        return self.full & ~(self.settled | self.settling | self.committing)

    def weight(self, bits: int) -> int:
        """Returns by how many bytes the chunk's size counts for less when these of its present messages end. All
        messages of a chunk count alike, since the lengths of sealed ones cannot be read; in whatever order they end,
        the sum is the chunk's size.
        """
        gone = self.settled | self.settling | self.committing
        return self.size * (gone | bits).bit_count() // self.count - self.size * gone.bit_count() // self.count


class Lease:
    """One delivery batch: some messages of one chunk, held by one holder until `deadline_ms`.

    When only some of its messages are extended, the lease is split: `rest` is another part under the same token with a
    deadline of its own. `chunk` is kept until the messages are encoded, because one turn may take more leases than
    there are chunks that stay loaded.
    """

    __slots__ = (
        "bits",
        "chunk",
        "counts",
        "deadline_ms",
        "durable",
        "gateway",
        "holder",
        "number",
        "receipts",
        "rest",
        "state",
        "token",
        "untried",
    )

    def __init__(
        self, token: str, state: ChunkState, bits: int, holder: Holder, deadline_ms: int, chunk: Chunk | None = None
    ):
        self.number = 0
        """Key of its stored row if leases outlive a crash; 0 if they do not."""
        self.durable = True
        """False while the commit that must precede the sending is on its way to the disk."""
        self.gateway = ""
        """The holder's gateway, for a lease with a row: after a crash that gateway says which leases reached it."""
        self.counts = True
        """False if the server itself holds the messages, which is no attempt."""
        self.receipts = True
        """False if the messages are settled before they are sent, so that there is nothing to ack."""
        self.untried = 0
        """Messages that the holder has not begun with, if it reports that: given back, they do not count an attempt."""
        self.token = token
        self.state = state
        self.chunk = chunk
        self.bits = bits
        self.holder = holder
        self.deadline_ms = deadline_ms
        self.rest: Lease | None = None

    def parts(self) -> Sequence[Lease]:
        """Returns the lease and the parts split off it: nearly always the lease alone."""
        rest = self.rest
        if rest is None:
            return (self,)
        parts = [self]
        while rest is not None:
            parts.append(rest)
            rest = rest.rest
        return parts

    def attempt_of(self, index: int) -> int:
        return self.state.attempts.get(index, 1)

    @property
    def has_run_out(self) -> bool:
        """Whether the deadline has passed and its messages are not given back yet."""
        return self.deadline_ms == _RAN_OUT and self.bits != 0


_RAN_OUT = -1
"""Deadline of a lease that `expired` has returned: a second heap entry of that lease is void."""


class LeaseTable:
    """The leases of a view by token, with a heap of their deadlines."""

    def __init__(self) -> None:
        self._by_token: dict[str, Lease] = {}
        self.get: Callable[[str], Lease | None] = self._by_token.get
        """Returns the lease of a token. Called for every receipt: a method around it would cost more than the look-up.
        """
        self._split_parts = 0
        self._heap: list[tuple[int, int, Lease]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._by_token)

    def values(self) -> list[Lease]:
        return [part for lease in self._by_token.values() for part in lease.parts() if part.bits]

    def holding(self, offset: int, *, most: int) -> Lease | None:
        """Returns the lease that has a message, if it is among the first `most`."""
        parts = (part for lease in self._by_token.values() for part in lease.parts())
        return holding(parts, offset, most=most)

    def add(self, lease: Lease) -> None:
        self._by_token[lease.token] = lease
        self.schedule(lease)

    def split(self, lease: Lease, bits: int) -> Lease:
        """Moves `bits` to a new part of the lease and returns the part; the other messages stay in the lease."""
        part = Lease(lease.token, lease.state, lease.bits & bits, lease.holder, lease.deadline_ms, lease.chunk)
        part.number, part.durable, part.untried = lease.number, lease.durable, lease.untried
        part.gateway = lease.gateway
        lease.bits &= ~bits
        self.join(lease, part)
        return part

    def join(self, lease: Lease, part: Lease) -> None:
        """Adds a part to a lease of the same token."""
        part.rest, lease.rest = lease.rest, part
        self._split_parts += 1

    def schedule(self, lease: Lease) -> None:
        """Adds the deadline to the heap; call it again when a deadline moves. Entries with an old deadline are void."""
        self._number += 1
        heapq.heappush(self._heap, (lease.deadline_ms, self._number, lease))
        self._sweep()

    def drop_if_empty(self, token: str) -> None:
        parts = self._by_token[token].parts()
        if any(part.bits for part in parts):
            return
        del self._by_token[token]
        self._split_parts -= len(parts) - 1
        self._sweep()

    def _sweep(self) -> None:
        """Drops void entries before they outnumber valid ones: a lease extended for ever must not fill the memory."""
        if len(self._heap) > 2 * (len(self._by_token) + self._split_parts) + 64:
            self._heap = [e for e in self._heap if e[2].bits and e[0] == e[2].deadline_ms]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._by_token.clear()
        self._split_parts = 0
        self._heap.clear()

    def expired(self, now_ms: int) -> list[Lease]:
        """Returns the leases that ended at or before `now_ms`. The caller gives their messages back."""
        out = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline, _, lease = heapq.heappop(self._heap)
            if lease.bits and lease.deadline_ms == deadline:
                lease.deadline_ms = _RAN_OUT
                out.append(lease)
        return out

    def next_deadline_ms(self) -> int | None:
        while self._heap:
            deadline, _, lease = self._heap[0]
            if lease.bits and lease.deadline_ms == deadline:
                return deadline
            heapq.heappop(self._heap)
        return None


def holding(leases: Iterable[Lease], offset: int, *, most: int) -> Lease | None:
    """Returns the lease that has a message, if it is among the first `most`."""
    for lease in islice(leases, most):
        if lease.state.base <= offset and lease.bits >> (offset - lease.state.base) & 1:
            return lease
    return None


def receipts_of(token: str, bits: int) -> list[str]:
    return [token + SUFFIXES[index] for index in indexes(bits)]
