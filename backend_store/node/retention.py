"""What a stream does not keep: messages that are too old, or too many, go from its beginning, a few chunks a commit.

It asks nobody: a group that has not come so far loses them too, and its consumers are told. Whole chunks go for age and
for bytes; a stream that drops its oldest messages when it is full drops them one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from backend_store.core.bits import lowest
from backend_store.core.chunk import Chunk, holes
from backend_store.core.groups import below
from backend_store.core.log import Append
from backend_store.core.records import ChunkDone, PartitionState, Record
from backend_store.core.shelves import MAIN, VIEW_MAIN
from backend_store.model import Offset, QueueConfig
from backend_store.node.limits import RETENTION_CHUNKS_PER_COMMIT, RETENTION_STEP_MS

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

RETENTION: Final = "retention"
OVERFLOW: Final = "overflow"


class Gone(NamedTuple):
    """Messages of a chunk that go now; nobody can read them any more."""

    chunk: Chunk
    bits: int
    reason: str


class Retention:
    def __init__(self, partition: Partition):
        self._partition = partition
        self._oldest_ms: int | None = None
        """When the oldest chunk was stored; None where there is none."""
        self._has_more = False

    def recover(self) -> None:
        first = self._partition.read(0)
        self._oldest_ms = first.time_ms if first is not None else None

    def configured(self) -> None:
        """The limits have changed."""
        self._partition.request()

    # ------------------------------------------------------------------------------------------------- commits

    def decide(self, plan: Append, records: list[Record]) -> list[Gone]:
        """Moves the floor of the state after this commit over what is not kept."""
        after, config = plan.state, self._partition.config
        now_ms = self._partition.steady_ms()
        found: list[Gone] = []
        self._has_more = False
        if not (_is_too_much(after, config) or self._is_due(now_ms)):
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
        elif (next_ms := self.next_ms()) is not None:
            partition.wake_at(next_ms)

    def next_ms(self) -> int | None:
        """When the oldest message is too old, by steps."""
        keeps_ms = self._partition.config.retention_ms
        if keeps_ms is None or self._oldest_ms is None:
            return None
        return -(-(self._oldest_ms + keeps_ms) // RETENTION_STEP_MS) * RETENTION_STEP_MS

    def tick(self, now_ms: int) -> None:
        if self._is_due(now_ms):
            self._partition.request()

    def _is_due(self, now_ms: int) -> bool:
        next_ms = self.next_ms()
        return next_ms is not None and next_ms <= now_ms

    # ------------------------------------------------------------------------------------------------- one chunk

    def _first(self, plan: Append) -> Chunk | None:
        """The chunk at the floor; the last ones are those of this commit."""
        low, partition = plan.state.low, self._partition
        found = partition.reader.first(low, partition.state.high_watermark)
        if found is not None:
            return found
        return next((chunk for chunk in plan.chunks if chunk.shelf == MAIN and chunk.base >= low), None)

    def _share(self, chunk: Chunk, after: PartitionState, config: QueueConfig, now_ms: int) -> Gone | None:
        """What goes of the first chunk."""
        there = ((1 << chunk.count) - 1) & ~below(chunk, after.floor) & ~holes(chunk)
        if config.retention_ms is not None and chunk.time_ms + config.retention_ms <= now_ms:
            return Gone(chunk, there, RETENTION)
        is_last = there.bit_count() == after.live
        if config.retention_bytes is not None and after.live_bytes > config.retention_bytes and not is_last:
            return Gone(chunk, there, RETENTION)
        if config.overflow != "drop_oldest":
            return None
        if config.max_bytes is not None and after.live_bytes > config.max_bytes and not is_last:
            return Gone(chunk, there, OVERFLOW)
        over = after.live - config.max_messages if config.max_messages is not None else 0
        return Gone(chunk, lowest(there, over), OVERFLOW) if over > 0 else None

    def _drop(self, gone: Gone, after: PartitionState, records: list[Record]) -> None:
        chunk, bits, reason = gone
        end = chunk.base + chunk.count
        messages = bits.bit_count()
        after.live -= messages
        after.count_ended(reason, messages)
        left = ((1 << chunk.count) - 1) & ~below(chunk, after.floor) & ~holes(chunk) & ~bits
        if left:
            first = (left & -left).bit_length() - 1
            after.floor, after.inside = chunk.base + first, first
            return
        # Not the next chunk's base: a decision may stand between them, and no reader has missed that.
        after.floor, after.inside = end, 0
        after.live_bytes -= len(chunk.data)
        records.append(ChunkDone(VIEW_MAIN, MAIN, Offset(chunk.base)))


def _is_too_much(state: PartitionState, config: QueueConfig) -> bool:
    if config.retention_bytes is not None and state.live_bytes > config.retention_bytes:
        return True
    if config.overflow != "drop_oldest":
        return False
    is_full = config.max_messages is not None and state.live > config.max_messages
    return is_full or (config.max_bytes is not None and state.live_bytes > config.max_bytes)
