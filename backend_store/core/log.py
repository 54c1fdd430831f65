"""The log of one partition: gives messages their offsets and merges a cycle's publishes into chunks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backend_store.core.chunk import ENTRY_CHUNK, Chunk, encode_entry, plan_chunks
from backend_store.core.records import ChunkAppended, PartitionState
from backend_store.model import Block, Offset


class Append:
    """What one cycle adds: the chunks, the records that store them, and the state after it."""

    __slots__ = ("chunks", "records", "state")

    def __init__(self, state: PartitionState):
        self.state = msgspec.structs.replace(state)
        self.chunks: list[Chunk] = []
        self.records: list[ChunkAppended] = []


def append(state: PartitionState, blocks: Sequence[Block], *, seed: int, now_ms: int) -> Append:
    """Decides where the messages of `blocks` stand: from `state.end` on, in order, without holes.

    Time in a log never goes back, whatever the wall clock did.
    """
    out = Append(state)
    after = out.state
    epoch = state.epoch
    if blocks:
        after.time_ms = now_ms = max(now_ms, state.time_ms)
    for plan in plan_chunks(blocks):
        base = Offset(after.end)
        data, after.prev_crc = encode_entry(
            ENTRY_CHUNK,
            plan.blocks,
            seed=seed,
            epoch=epoch,
            offset=base,
            time_ms=now_ms,
            count=plan.messages,
            prev_crc=after.prev_crc,
        )
        out.chunks.append(
            Chunk(data, epoch=epoch, base=base, time_ms=now_ms, count=plan.messages, lane=0, blocks=len(plan.blocks))
        )
        out.records.append(ChunkAppended(base, data))
        after.end = base + plan.messages
        after.live += plan.messages
        after.live_bytes += len(data)
        after.published_total += plan.messages
    return out
