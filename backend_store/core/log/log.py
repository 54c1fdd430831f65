"""The log of one partition: the append step gives messages their offsets and merges a cycle's publishes into chunks."""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.core.log.chunk import ENTRY_CHUNK, Chunk, encode_entry, holes, plan_chunks
from backend_store.core.log.records import ChunkAppended, PartitionState
from backend_store.core.log.sealed_block import Seal
from backend_store.core.log.sublogs import view_of
from backend_store.model import Block, Offset


class LogTime:
    """The clock of a log: it advances with the node's steady clock, from the latest time in the log.

    It never goes back and never stops. Otherwise, if the wall clock was set back by hours before a start, all messages
    of the next hours would be stored with one time, and would begin to age only once the clock has caught up.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self, steady_ms: int, latest_ms: int):
        """`latest_ms` is the latest time in the log."""
        self.ahead_ms = max(0, latest_ms - steady_ms)
        """Lead over the steady clock."""

    def at(self, steady_ms: int, latest_ms: int) -> int:
        """Returns the log's time now. Entries from another log may have moved `latest_ms` ahead."""
        if latest_ms > steady_ms + self.ahead_ms:
            self.ahead_ms = latest_ms - steady_ms
        return steady_ms + self.ahead_ms


class Append:
    """What one commit cycle appends: the chunks, the records that store them, and the state after them.

    Messages get consecutive offsets from `state.end` on, in order. Time in a log never goes back.
    """

    __slots__ = ("_partition", "_seal", "_seed", "_uid", "chunks", "now_ms", "records", "state")

    def __init__(
        self,
        state: PartitionState,
        *,
        seed: int,
        now_ms: int,
        partition: int = 0,
        seal: Seal | None = None,
        uid: int = 0,
    ):
        self.state = state.copy()
        self.now_ms = max(now_ms, state.time_ms)
        self.chunks: list[Chunk] = []
        self.records: list[ChunkAppended] = []
        self._seed = seed
        self._partition = partition
        self._seal = seal
        self._uid = uid

    def add(self, blocks: Sequence[Block], shelf: int = 0) -> list[Chunk]:
        """Appends the messages of `blocks` to one shelf. Returns the new chunks."""
        after, epoch = self.state, self.state.epoch
        tally = after.tally(view_of(shelf)) if shelf else after
        now_ms = self.now_ms
        if blocks:
            after.time_ms = now_ms
        added = []
        for plan in plan_chunks(blocks):
            base = Offset(after.end)
            data, after.prev_crc = encode_entry(
                ENTRY_CHUNK,
                plan.blocks,
                seed=self._seed,
                epoch=epoch,
                offset=base,
                time_ms=now_ms,
                count=plan.messages,
                shelf=shelf,
                prev_crc=after.prev_crc,
            )
            chunk = Chunk(
                data, epoch=epoch, base=base, time_ms=now_ms, count=plan.messages, shelf=shelf, blocks=len(plan.blocks)
            )
            chunk.partition = self._partition
            chunk.seal = self._seal
            chunk.uid = self._uid
            added.append(chunk)
            self.records.append(ChunkAppended(shelf, base, data))
            after.end = base + plan.messages
            present = plan.messages - (holes(chunk).bit_count() if chunk.clear else 0)
            tally.live += present
            tally.live_bytes += len(data)
            tally.published_total += present
        self.chunks += added
        return added
