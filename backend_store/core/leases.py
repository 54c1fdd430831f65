"""Leases of one partition: who holds which messages until when. Memory only; a receipt outlives it by its MAC."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from backend_store.core.bits import indexes
from backend_store.core.chunk import Chunk
from backend_store.core.receipts import SUFFIXES


class Holder(Protocol):
    """Who leases: a subscription or a long-poll request. It is told when it holds less."""

    @property
    def gateway(self) -> str:
        """The name of the gateway that it is at, where that is another process; else ""."""

    def released(self, count: int) -> None:
        """`count` of its messages were settled or returned; as many may be sent again."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Leases ended before they were settled: they `ran_out`, or the messages were taken back or are gone."""

    def sendable(self) -> None:
        """Leases that waited for the disk may leave now."""


class ChunkState:
    """What one view knows of one chunk: a bit a message.

    Invariant: leased, delayed and settled are disjoint. `settling` and `returning` are decided; `committing` is on its
    way to the disk. The chunk itself may be dropped from memory while somebody holds a message of it, or ten thousand
    slow leases would pin ten thousand chunks.
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
        """What its ended messages count for, as far as the backlog has taken it off: see `weight`."""
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
        """Attempts or due times are on disk: when there are none any more, that must be said there too."""
        self.keys: Sequence[str | None] | None = None
        self.expires: Sequence[int] | None = None
        self.lane: Any = None
        """The lane whose runs its messages are in."""
        self.turns: list[int] | None = None
        """Of a queue that sorts: which messages have their turn together, in the order of the turns so far."""

    def in_turns(self, bits: int) -> list[int]:
        """Some messages as parts that go one after the other, each in the order in which it lies."""
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
        """Messages nobody holds and nobody settled."""
        taken = self.settled | self.settling | self.committing | self.leased | self.returning | self.delayed
        return self.full & ~taken

    @property
    def present(self) -> int:
        """Messages that are neither settled nor decided to be."""
        return self.full & ~(self.settled | self.settling | self.committing)

    def weight(self, bits: int) -> int:
        """How many bytes fewer the chunk counts for when these of its present messages end. All of a chunk's messages
        count alike, since the lengths of sealed ones are nobody's to read; whatever the order of their ends, the sum is
        the chunk's size.
        """
        gone = self.settled | self.settling | self.committing
        return self.size * (gone | bits).bit_count() // self.count - self.size * gone.bit_count() // self.count


class Lease:
    """One delivery batch: some messages of one chunk, held by one holder until `deadline_ms`.

    When only some of its messages are extended, it is split: `rest` is the part under the same token with the old
    deadline. `chunk` is there until the messages are encoded: many leases taken in one turn may be more than the
    chunks that stay loaded.
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
        """Key of its stored row, where leases outlive a crash; 0 where they do not."""
        self.durable = True
        """False while what lets its bytes leave is on its way to the disk."""
        self.gateway = ""
        """Where its holder is, of one with a row: after a crash that gateway says what has come to it."""
        self.counts = True
        """False where the server itself holds the messages: that is no attempt."""
        self.receipts = True
        """False where everything was settled before it is sent: there is nothing to ack."""
        self.untried = 0
        """Messages that their holder has not begun with, where it tells: given back for it, they were no attempt."""
        self.token = token
        self.state = state
        self.chunk = chunk
        self.bits = bits
        self.holder = holder
        self.deadline_ms = deadline_ms
        self.rest: Lease | None = None

    def parts(self) -> Sequence[Lease]:
        """The lease and what was split off it: nearly always itself alone."""
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
        """Its time is over, and nobody gave back yet what it holds."""
        return self.deadline_ms == _RAN_OUT and self.bits != 0


_RAN_OUT = -1
"""Deadline of a lease that `expired` handed over: entries that stood for it twice are void."""


class LeaseTable:
    """Leases by token, and the next to run out."""

    def __init__(self) -> None:
        self._by_token: dict[str, Lease] = {}
        self.get: Callable[[str], Lease | None] = self._by_token.get
        """The lease of a token. Asked for every receipt, and a method of ours would take longer than the look-up."""
        self._split_parts = 0
        self._heap: list[tuple[int, int, Lease]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._by_token)

    def values(self) -> list[Lease]:
        return [part for lease in self._by_token.values() for part in lease.parts() if part.bits]

    def holding(self, offset: int, *, most: int) -> Lease | None:
        """The lease that has a message, if it is among the first `most`."""
        parts = (part for lease in self._by_token.values() for part in lease.parts())
        return holding(parts, offset, most=most)

    def add(self, lease: Lease) -> None:
        self._by_token[lease.token] = lease
        self.schedule(lease)

    def split(self, lease: Lease, bits: int) -> Lease:
        """Makes `bits` a part of their own; the others keep what the lease has."""
        part = Lease(lease.token, lease.state, lease.bits & bits, lease.holder, lease.deadline_ms, lease.chunk)
        part.number, part.durable, part.untried = lease.number, lease.durable, lease.untried
        part.gateway = lease.gateway
        lease.bits &= ~bits
        self.join(lease, part)
        return part

    def join(self, lease: Lease, part: Lease) -> None:
        """Puts a part beside a lease of the same token."""
        part.rest, lease.rest = lease.rest, part
        self._split_parts += 1

    def schedule(self, lease: Lease) -> None:
        """Called again when a deadline moves; an entry whose deadline is not the lease's own is void."""
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
        """Drops void entries before they outnumber the others: a lease extended for ever must not fill the memory."""
        if len(self._heap) > 2 * (len(self._by_token) + self._split_parts) + 64:
            self._heap = [e for e in self._heap if e[2].bits and e[0] == e[2].deadline_ms]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._by_token.clear()
        self._split_parts = 0
        self._heap.clear()

    def expired(self, now_ms: int) -> list[Lease]:
        """The leases that ended at or before `now_ms`; whoever asks gives them back."""
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
    """The lease that has a message, of the first `most`."""
    for lease in islice(leases, most):
        if lease.state.base <= offset and lease.bits >> (offset - lease.state.base) & 1:
            return lease
    return None


def receipts_of(token: str, bits: int) -> list[str]:
    return [token + SUFFIXES[index] for index in indexes(bits)]
