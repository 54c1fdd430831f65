"""Retention: trims the beginning of a stream's log, oldest chunks first, by age, count and bytes, a few chunks per
commit.

Consumer groups do not hold retention back: a group that has not reached the messages loses them, and its consumers are
told. Age and bytes drop whole chunks; a stream with `drop_oldest` that is full by count drops single messages.

Age is decided per partition. Limits are the stream's: the partition with the oldest chunk drops it, and a partition
that finds the limit exceeded asks that one to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from backend_store.core.groups import below
from backend_store.core.log.bits import lowest
from backend_store.core.log.chunk import Chunk, holes
from backend_store.core.log.log import Append
from backend_store.core.log.records import ChunkDone, PartitionState, Record
from backend_store.core.log.sublogs import MAIN, VIEW_MAIN
from backend_store.model import Offset, QueueConfig
from backend_store.node.limits import RETENTION_CHUNKS_PER_COMMIT, RETENTION_STEP_MS

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

RETENTION: Final = "retention"
OVERFLOW: Final = "overflow"


class Gone(NamedTuple):
    """Messages of a chunk that are dropped now and can no longer be read."""

    chunk: Chunk
    bits: int
    reason: str


class Held(NamedTuple):
    """What all partitions of the stream hold with this commit."""

    messages: int
    size: int


class Retention:
    """The retention of one stream partition, which owns the object."""

    def __init__(self, partition: Partition):
        self._partition = partition
        self._oldest_ms: int | None = None
        """When the oldest chunk was stored; None if there is none."""
        self._has_more = False
        self._elder: Partition | None = None
        """A partition with older messages than this one's, which should drop some."""

    def recover(self) -> None:
        first = self._partition.read(0)
        self._oldest_ms = first.time_ms if first is not None else None

    def configured(self) -> None:
        """The limits have changed."""
        self._partition.request()

    # ------------------------------------------------------------------------------------------------- commits

    def decide(self, plan: Append, records: list[Record]) -> list[Gone]:
        """Moves the floor of the state after this commit past what is dropped; returns what is."""
        after, config = plan.state, self._partition.config
        now_ms = plan.now_ms
        found: list[Gone] = []
        self._has_more, self._elder = False, None
        if not (self._is_too_much(after, config) or self._is_due(now_ms)):
            if self._oldest_ms is None:
                self._oldest_ms = next((chunk.time_ms for chunk in plan.chunks if chunk.shelf == MAIN), None)
            return found
        most = RETENTION_CHUNKS_PER_COMMIT + 2 * len(plan.chunks)
        while (chunk := self._first(plan)) is not None:
            gone = self._share(chunk, after, config, now_ms)
            if gone is None or len(found) == most:
                self._has_more = gone is not None
                break
            found.append(gone)
            self._drop(gone, after, records)
        self._oldest_ms = chunk.time_ms if chunk is not None else None
        return found

    def committed(self, before: PartitionState) -> None:
        partition = self._partition
        if partition.state.floor > before.floor and not partition.state.live:
            self._oldest_ms = None
        if self._has_more:
            partition.request_soon()
        elif self._elder is not None:
            self._elder.request_soon()
        if not self._has_more and (next_ms := self.next_ms()) is not None:
            partition.wake_at(next_ms)

    def next_ms(self) -> int | None:
        """When retention next has work; None if nothing ages."""
        next_ms = self._next_log_ms()
        return None if next_ms is None else self._partition.steady_of(next_ms)

    def _next_log_ms(self) -> int | None:
        """When the oldest chunk is too old, rounded up to steps; by the log's clock."""
        keeps_ms = self._partition.config.retention_ms
        if keeps_ms is None or self._oldest_ms is None:
            return None
        return -(-(self._oldest_ms + keeps_ms) // RETENTION_STEP_MS) * RETENTION_STEP_MS

    def tick(self) -> None:
        if self._is_due(self._partition.log_ms()):
            self._partition.request()

    def _is_due(self, now_ms: int) -> bool:
        next_ms = self._next_log_ms()
        return next_ms is not None and next_ms <= now_ms

    # ------------------------------------------------------------------------------------------------- one chunk

    def _first(self, plan: Append) -> Chunk | None:
        """The chunk at the floor, from disk or from this commit."""
        low, partition = plan.state.low, self._partition
        found = partition.reader.first(low, partition.state.high_watermark)
        if found is not None:
            return found
        return next((chunk for chunk in plan.chunks if chunk.shelf == MAIN and chunk.base >= low), None)

    def _share(self, chunk: Chunk, after: PartitionState, config: QueueConfig, now_ms: int) -> Gone | None:
        """What to drop of the first chunk; None for nothing."""
        there = ((1 << chunk.count) - 1) & ~below(chunk, after.floor) & ~holes(chunk)
        if config.retention_ms is not None and chunk.time_ms + config.retention_ms <= now_ms:
            return Gone(chunk, there, RETENTION)
        if not self._is_too_much(after, config):
            return None
        self._elder = self._older_than(chunk)
        if self._elder is not None:
            return None
        held = self._held(after)
        is_last = there.bit_count() == held.messages
        if config.retention_bytes is not None and held.size > config.retention_bytes and not is_last:
            return Gone(chunk, there, RETENTION)
        if config.overflow != "drop_oldest":
            return None
        if config.max_bytes is not None and held.size > config.max_bytes and not is_last:
            return Gone(chunk, there, OVERFLOW)
        over = held.messages - config.max_messages if config.max_messages is not None else 0
        return Gone(chunk, lowest(there, over), OVERFLOW) if over > 0 else None

    def _held(self, after: PartitionState) -> Held:
        others = [sibling.decided for sibling in self._partition.siblings()]
        return Held(after.live + sum(o.live for o in others), after.live_bytes + sum(o.live_bytes for o in others))

    def _is_too_much(self, after: PartitionState, config: QueueConfig) -> bool:
        drops = config.overflow == "drop_oldest"
        if config.retention_bytes is None and not drops:
            return False
        held = self._held(after)
        if config.retention_bytes is not None and held.size > config.retention_bytes:
            return True
        is_full = config.max_messages is not None and held.messages > config.max_messages
        return drops and (is_full or (config.max_bytes is not None and held.size > config.max_bytes))

    def _older_than(self, chunk: Chunk) -> Partition | None:
        """The partition with the oldest first chunk, if that is older than this partition's."""
        first, found = (chunk.time_ms, self._partition.index), None
        for sibling in self._partition.siblings():
            oldest_ms = sibling.retention._oldest_ms if sibling.retention is not None else None
            if oldest_ms is not None and (oldest_ms, sibling.index) < first:
                first, found = (oldest_ms, sibling.index), sibling
        return found

    def _drop(self, gone: Gone, after: PartitionState, records: list[Record]) -> None:
        chunk, bits, reason = gone
        end = chunk.base + chunk.count
        messages = bits.bit_count()
        after.live -= messages
        after.dropped_ms = chunk.time_ms
        after.count_ended(reason, messages)
        if reason == OVERFLOW:
            after.ledger.overflowed += messages
        else:
            after.ledger.retired += messages
        left = ((1 << chunk.count) - 1) & ~below(chunk, after.floor) & ~holes(chunk) & ~bits
        if left:
            first = (left & -left).bit_length() - 1
            after.floor, after.inside = chunk.base + first, first
            return
        # Not the next chunk's base: a decision may stand between them, which no reader has missed.
        after.floor, after.inside = end, 0
        after.live_bytes -= len(chunk.data)
        records.append(ChunkDone(VIEW_MAIN, MAIN, Offset(chunk.base)))
