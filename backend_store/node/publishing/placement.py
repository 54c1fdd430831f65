"""Assigns a cycle's messages their offsets, and makes the index rows that find them: by due time, by id, by expiry.

Publishing takes this step after it decided what is stored, and before the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from backend_store.core.log.chunk import Chunk, clear_column, holes
from backend_store.core.log.records import ExpirySet, Record, Scheduled
from backend_store.model import Block

if TYPE_CHECKING:
    from backend_store.node.commit.publish_call import Call

EXPIRY_STEP_MS = 250
"""Chunks are checked for expired messages at multiples of this: within the promised second, and not more often."""


class Placed(NamedTuple):
    """A block on its way to a shelf: (call, number of the block in the call, block)."""

    call: int
    number: int
    block: Block


class Places:
    """The offsets of a cycle's blocks; -1 for blocks that are not stored."""

    def __init__(self, calls: Sequence[Call]):
        self._calls = calls
        self._bases: dict[tuple[int, int], int] = {}

    def put(self, placed: Sequence[Placed], offset: int) -> None:
        """Places blocks one after the other from an offset on."""
        for one in placed:
            self._bases[one.call, one.number] = offset
            offset += one.block.count

    def base(self, call: int, block: int) -> int:
        return self._bases.get((call, block), -1)

    def together(self, call: int) -> int | None:
        """The offset of a call's first message, if all its messages are contiguous and in the call's order; else
        None."""
        blocks = self._calls[call].blocks
        first, lane = self.base(call, 0), (blocks[0].priority, blocks[0].due_ms)
        at = first
        for number, block in enumerate(blocks):
            if at < 0 or self.base(call, number) != at or (block.priority, block.due_ms) != lane:
                return None
            at += block.count
        return first

    def offset(self, call: int, message: int) -> int:
        first = 0
        for number, block in enumerate(self._calls[call].blocks):
            if message < first + block.count:
                base = self.base(call, number)
                return base + message - first if base >= 0 else -1
            first += block.count
        raise AssertionError(f"call {call} has {first} messages, and no message {message}")

    def among(self, chunks: Sequence[Chunk], messages: Sequence[tuple[int, int]]) -> list[tuple[Chunk, int]]:
        """The bits of messages, given as (call, message), by new chunk; messages in none of the chunks are left out."""
        bits: dict[int, int] = {}
        for call, message in messages:
            at = self.offset(call, message)
            chunk = next((c for c in chunks if c.base <= at < c.base + c.count), None)
            if chunk is not None:
                bits[chunk.base] = bits.get(chunk.base, 0) | 1 << (at - chunk.base)
        return [(c, bits[c.base]) for c in chunks if c.base in bits]

    def schedules(
        self, shelf: int, placed: Sequence[Placed], chunks: Sequence[Chunk], doomed: Sequence[tuple[int, int]]
    ) -> Iterator[Scheduled]:
        """The due times of a shelf's new chunks. Messages that end at once (`doomed`) are left out."""
        times: dict[int, dict[int, int]] = {chunk.base: {} for chunk in chunks}
        ended = {chunk.base: bits for chunk, bits in self.among(chunks, doomed)}
        remaining = iter(chunks)
        chunk = next(remaining)
        for one in placed:
            base = self.base(one.call, one.number)
            while base >= chunk.base + chunk.count:
                chunk = next(remaining)
            due = times[chunk.base]
            bits = ((1 << one.block.count) - 1) << (base - chunk.base)
            due[one.block.due_ms] = due.get(one.block.due_ms, 0) | bits
        for chunk in chunks:
            # Holes, which stand for repeats and refused messages, are left out too, and so are their ids.
            gone = holes(chunk) | ended.get(chunk.base, 0)
            dues = [(due_ms, bits & ~gone) for due_ms, bits in times[chunk.base].items() if bits & ~gone]
            ids = enumerate(clear_column(chunk, "id") or ())
            names = [(name_of(one), index) for index, one in ids if one and not gone >> index & 1]
            yield Scheduled(shelf, chunk.base, dues, names)


def name_of(message_id: str) -> bytes:
    """The 16-byte hash by which a scheduled message is found again."""
    return blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def expiries(chunks: Sequence[Chunk]) -> list[Record]:
    """When chunks must be checked for expired messages."""
    records: list[Record] = []
    for chunk in chunks:
        earliest = min((at for at in clear_column(chunk, "exp") or () if at), default=0)
        if earliest:
            records.append(ExpirySet(chunk.shelf, chunk.base, 0, expiry_step(earliest)))
    return records


def expiry_step(at_ms: int) -> int:
    return -(-at_ms // EXPIRY_STEP_MS) * EXPIRY_STEP_MS
