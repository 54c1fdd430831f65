"""Chunks in memory whose messages have keys and no content, for what hands them out."""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.core.bits import indexes
from backend_store.core.chunk import ENTRY_HEADER_BYTES, Chunk
from backend_store.core.leases import ChunkState
from backend_store.model import Epoch, Offset


def chunk_state(base: int, keys: Sequence[str | None], *, settled: int = 0) -> ChunkState:
    """A chunk with a message for each key."""
    state = ChunkState(any_chunk(base, len(keys)), settled=settled)
    state.keys = list(keys)
    return state


def any_chunk(base: int, count: int) -> Chunk:
    return Chunk(bytes(ENTRY_HEADER_BYTES), epoch=Epoch(1), base=Offset(base), time_ms=0, count=count, blocks=0)


def numbers(drawn: tuple[ChunkState, int] | None) -> list[int]:
    """The offsets of the messages that a draw gave out."""
    return [] if drawn is None else [drawn[0].base + index for index in indexes(drawn[1])]
