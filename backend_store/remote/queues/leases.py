"""Leases of a remote queue at its gateway: those that have arrived and wait for a consumer, and those that consumers
hold.

The backend leases to the gateway, which cuts a lease into parts, one for each consumer, all with the same token. Both
sides name messages by token and bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from backend_store.core.leases.leases import ChunkState, Holder, Lease, holding
from backend_store.core.leases.receipts import SUFFIXES, claimed_fields
from backend_store.core.log.chunk import ENTRY_HEADER, ENTRY_HEADER_BYTES, Chunk
from backend_store.core.log.sealed_block import blocks_in
from backend_store.model import Epoch, Offset


class Unassigned:
    """The messages of a lease that no consumer has yet."""

    __slots__ = ("bits", "chunk", "has_receipts", "state", "token")

    def __init__(self, token: str, state: ChunkState, chunk: Chunk, bits: int, *, has_receipts: bool):
        self.token = token
        self.state = state
        self.chunk = chunk
        self.bits = bits
        self.has_receipts = has_receipts


class Stock:
    """The leases of one queue at one shard; its `RemoteQueue` owns it."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Unassigned]] = {}
        """By visibility timeout in ms."""
        self._held: dict[str, list[Lease]] = {}
        self._detached: dict[str, int] = {}
        """Token → bits of held messages that stay leased when this gateway ends."""
        self.active: Holder | None = None
        """The consumer that got a lease last."""

    @property
    def waiting(self) -> int:
        return sum(one.bits.bit_count() for some in self._waiting.values() for one in some)

    def waiting_for(self, visibility_ms: int) -> int:
        return sum(one.bits.bit_count() for one in self._waiting.get(visibility_ms, ()))

    @property
    def times(self) -> list[int]:
        """The visibility timeouts (ms) with messages that no consumer has yet."""
        return list(self._waiting)

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    def came(self, visibility_ms: int, one: Unassigned) -> None:
        self._waiting.setdefault(visibility_ms, deque()).append(one)

    def take(self, visibility_ms: int, limit: int, holder: Holder) -> Lease | None:
        """Leases up to `limit` messages of one chunk to `holder`, in their order; None if there are none for it."""
        line = self._waiting.get(visibility_ms)
        head = self._next(line, holder) if line else None
        if line is None or head is None:
            return None
        bits = head.bits
        if bits.bit_count() > limit:
            bits = lowest_bits(bits, limit)
        head.bits ^= bits
        if not head.bits:
            line.remove(head)
            if not line:
                del self._waiting[visibility_ms]
        lease = Lease(head.token, head.state, bits, holder, 0, head.chunk)
        lease.receipts = head.has_receipts
        if lease.receipts:
            self._held.setdefault(lease.token, []).append(lease)
        self.active = holder
        return lease

    def _next(self, line: Sequence[Unassigned], holder: Holder) -> Unassigned | None:
        """The waiting lease that a consumer gets next; None if none is for it."""
        return line[0]

    def hold(self, lease: Lease) -> None:
        """Adds a lease that a consumer of another gateway held until now."""
        self._held.setdefault(lease.token, []).append(lease)

    def void(self, token: str, bits: int) -> None:
        """Drops messages of a lease that no consumer has yet: they must not be delivered any more."""
        for visibility_ms, line in list(self._waiting.items()):
            for one in [one for one in line if one.token == token]:
                one.bits &= ~bits
                if not one.bits:
                    line.remove(one)
            if not line:
                del self._waiting[visibility_ms]

    def clear_waiting(self, visibility_ms: int | None = None) -> list[tuple[str, int]]:
        """Removes the messages that no consumer took. Returns (token, bits) of those with receipts, last first."""
        times = list(self._waiting) if visibility_ms is None else [visibility_ms]
        found = [(one.token, one.bits) for time in times for one in self._waiting.pop(time, ()) if one.has_receipts]
        return found[::-1]

    def clear_rest(self, visibility_ms: int, token: str) -> int:
        """Removes the messages of one lease that no consumer took, and returns them as bits."""
        line = self._waiting.get(visibility_ms, ())
        bits = 0
        for one in line:
            if one.token == token:
                bits |= one.bits
        if bits:
            self.void(token, bits)
        return bits

    def held(self) -> Iterable[tuple[str, int]]:
        for token, parts in self._held.items():
            bits = 0
            for part in parts:
                bits |= part.bits
            if bits:
                yield token, bits

    def detach(self, token: str, bits: int) -> None:
        if token in self._held:
            self._detached[token] = self._detached.get(token, 0) | bits

    def detached(self) -> dict[str, int]:
        """Token → bits of the messages that stay leased when this gateway ends."""
        held = {token: sum(part.bits for part in self._held[token]) & bits for token, bits in self._detached.items()}
        return {token: bits for token, bits in held.items() if bits}

    def parts(self, token: str) -> list[Lease]:
        return self._held.get(token, [])

    def holding(self, partition: int, offset: int, *, most: int) -> Lease | None:
        """The lease that holds a message, if it is among the first `most`; else None."""
        parts = (part for some in self._held.values() for part in some if part.state.partition == partition)
        return holding(parts, offset, most=most)

    def ended(self, token: str, bits: int, told: Callable[[Holder, int], None] | None = None) -> bool:
        """Ends leases of messages and gives their holders credit back. Returns whether any of them was held here.
        `told` gets each holder and its messages as bits."""
        changed = False
        parts = self._held.get(token, [])
        for part in parts:
            if mine := part.bits & bits:
                part.bits ^= mine
                changed = True
                part.holder.released(mine.bit_count())
                if told is not None:
                    told(part.holder, mine)
        if parts and not any(part.bits for part in parts):
            del self._held[token]
            self._detached.pop(token, None)
        return changed


def far_lease(token: str, bits: int, holder: Holder) -> Lease:
    """A lease that another gateway had: of its chunk only that is known here which its token says."""
    fields = claimed_fields(token)
    assert fields is not None, "a backend knows the lease by this token"
    unread, count = bytes(ENTRY_HEADER_BYTES), bits.bit_length()
    chunk = Chunk(unread, epoch=Epoch(fields.epoch), base=Offset(fields.base), time_ms=0, count=count, blocks=0)
    chunk.partition = fields.partition
    state = ChunkState(chunk)
    state.chunk = None
    return Lease(token, state, bits, holder, 0)


def lowest_bits(bits: int, count: int) -> int:
    found = 0
    for _ in range(count):
        low = bits & -bits
        found |= low
        bits ^= low
    return found


def keys_of(chunks: Iterable[bytes]) -> set[int]:
    """Ids of the data keys that stored chunks are sealed with."""
    found: set[int] = set()
    for data in chunks:
        count: int = ENTRY_HEADER.unpack_from(data)[8]
        found.update(key_id for key_id, _, _ in blocks_in(data, ENTRY_HEADER_BYTES, count) if key_id)
    return found


def receipts_of(token: str, bits: int) -> list[str]:
    return [token + SUFFIXES[n] for n in range(bits.bit_length()) if bits >> n & 1]
