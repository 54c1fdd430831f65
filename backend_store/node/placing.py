"""Where a cycle's messages stand in the log, and the rows by which they are found again: by time, by id, at their end.

The step of a publish between the decision what is stored and its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from backend_store.core.chunk import Chunk, clear_column, holes
from backend_store.core.records import ExpirySet, Record, Scheduled
from backend_store.model import Block

if TYPE_CHECKING:
    from backend_store.node.calls import Call

EXPIRY_STEP_MS = 250
"""Chunks are looked at for expired messages at multiples of this: within a second, as promised, and not more often."""


class Placed(NamedTuple):
    """Where a shelf's blocks are to go: (call, block in the call, the block)."""

    call: int
    number: int
    block: Block


class Places:
    """The offsets of a cycle's blocks. What is not stored stands at -1."""

    def __init__(self, calls: Sequence[Call]):
        self._calls = calls
        self._bases: dict[tuple[int, int], int] = {}

    def put(self, placed: Sequence[Placed], offset: int) -> None:
        """Blocks that stand one behind the other from an offset on."""
        for one in placed:
            self._bases[one.call, one.number] = offset
            offset += one.block.count

    def base(self, call: int, block: int) -> int:
        return self._bases.get((call, block), -1)

    def together(self, call: int) -> int | None:
        """The offset of a call's first message, where all stand one behind the other in the order of the call."""
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
        """Where messages, as (call, message), lie among new chunks, as far as they do."""
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
        """When which messages of a shelf's chunks become ready. Those that end at once are nobody's to wait for."""
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
            # Nor are repeats and refused ones, or theirs to cancel.
            gone = holes(chunk) | ended.get(chunk.base, 0)
            dues = [(due_ms, bits & ~gone) for due_ms, bits in times[chunk.base].items() if bits & ~gone]
            ids = enumerate(clear_column(chunk, "id") or ())
            names = [(name_of(one), index) for index, one in ids if one and not gone >> index & 1]
            yield Scheduled(shelf, chunk.base, dues, names)


def name_of(message_id: str) -> bytes:
    """The 16 bytes by which a message is found again that was published for later."""
    return blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def expiries(chunks: Sequence[Chunk]) -> list[Record]:
    """When chunks must be looked at for messages that expire."""
    records: list[Record] = []
    for chunk in chunks:
        earliest = min((at for at in clear_column(chunk, "exp") or () if at), default=0)
        if earliest:
            records.append(ExpirySet(chunk.shelf, chunk.base, 0, expiry_step(earliest)))
    return records


def expiry_step(at_ms: int) -> int:
    return -(-at_ms // EXPIRY_STEP_MS) * EXPIRY_STEP_MS
