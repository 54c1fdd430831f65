"""Leases of a remote queue at its gateway: what has come and nobody has yet, and who holds what.

The backend leases to the gateway; here a lease is cut into parts, one for each consumer, all with its token. What
becomes of them is said by token and bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from backend_store.core.chunk import ENTRY_HEADER, ENTRY_HEADER_BYTES, Chunk
from backend_store.core.leases import ChunkState, Holder, Lease, holding
from backend_store.core.receipts import SUFFIXES
from backend_store.core.sealing import blocks_in


class Unassigned:
    """A lease's messages that no consumer has."""

    __slots__ = ("bits", "chunk", "has_receipts", "state", "token")

    def __init__(self, token: str, state: ChunkState, chunk: Chunk, bits: int, *, has_receipts: bool):
        self.token = token
        self.state = state
        self.chunk = chunk
        self.bits = bits
        self.has_receipts = has_receipts


class Stock:
    """See the file's first sentence. All of one place."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Unassigned]] = {}
        """By visibility time."""
        self._held: dict[str, list[Lease]] = {}
        self.active: Holder | None = None
        """Who was given something last."""

    @property
    def waiting(self) -> int:
        return sum(one.bits.bit_count() for some in self._waiting.values() for one in some)

    def waiting_for(self, visibility_ms: int) -> int:
        return sum(one.bits.bit_count() for one in self._waiting.get(visibility_ms, ()))

    @property
    def times(self) -> list[int]:
        """The visibility times for which something has come that nobody has yet."""
        return list(self._waiting)

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    def came(self, visibility_ms: int, one: Unassigned) -> None:
        self._waiting.setdefault(visibility_ms, deque()).append(one)

    def take(self, visibility_ms: int, limit: int, holder: Holder) -> Lease | None:
        """Up to `limit` messages of one chunk, in their order."""
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
        """What a consumer is given next of what waits."""
        return line[0]

    def void(self, token: str, bits: int) -> None:
        """What nobody has yet of a lease must not be given to anybody any more."""
        for visibility_ms, line in list(self._waiting.items()):
            for one in [one for one in line if one.token == token]:
                one.bits &= ~bits
                if not one.bits:
                    line.remove(one)
            if not line:
                del self._waiting[visibility_ms]

    def clear_waiting(self, visibility_ms: int | None = None) -> list[tuple[str, int]]:
        """What nobody took, by token; it is not here any more."""
        times = list(self._waiting) if visibility_ms is None else [visibility_ms]
        found = [(one.token, one.bits) for time in times for one in self._waiting.pop(time, ()) if one.has_receipts]
        return found[::-1]

    def clear_rest(self, visibility_ms: int, token: str) -> int:
        """What nobody took of one lease; it is not here any more."""
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

    def parts(self, token: str) -> list[Lease]:
        return self._held.get(token, [])

    def holding(self, partition: int, offset: int, *, most: int) -> Lease | None:
        """The lease that has a message, if it is among the first `most`."""
        parts = (part for some in self._held.values() for part in some if part.state.partition == partition)
        return holding(parts, offset, most=most)

    def ended(self, token: str, bits: int, told: Callable[[Holder, int], None] | None = None) -> bool:
        """Messages are nobody's any more: their holders have credit again. Whether anything was held of them."""
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
        return changed


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
