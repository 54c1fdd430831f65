"""Peek: messages as they lie, without a lease, an attempt or any other trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass

from backend_store.client.messages import full_message
from backend_store.core.chunk import Chunk
from backend_store.core.cursor import decode_cursor, encode_cursor
from backend_store.model import CHUNK_MESSAGES_MAX, Offset, Peeked, PeekPage
from backend_store.node.limits import PEEK_MESSAGES_MAX
from backend_store.node.partition import Partition

CHUNKS_PER_TURN = 4


@dataclass(frozen=True, slots=True)
class PeekFilter:
    """What to show: messages in one state, perhaps of one id or key, from a place on."""

    state: str = "ready"
    limit: int = 100
    cursor: str | None = None
    from_seq: int | None = None
    id: str | None = None
    key: str | None = None


async def peek(partition: Partition, wanted: PeekFilter) -> PeekPage:
    """A page of messages in log order; everybody else gets a turn between chunks."""
    walk = look(partition, wanted)
    while True:
        try:
            next(walk)
        except StopIteration as end:
            page: PeekPage = end.value
            return page
        await asyncio.sleep(0)


def look(partition: Partition, wanted: PeekFilter) -> Generator[None, None, PeekPage]:
    """Yields after each few chunks. Looks at no more than `PEEK_MESSAGES_MAX`, then answers with a cursor."""
    offset = decode_cursor(wanted.cursor)[1] if wanted.cursor else (wanted.from_seq or 0)
    offset = max(offset, partition.state.floor)
    items: list[Peeked] = []
    scanned = chunks = 0
    chunk = partition.read(Offset(max(partition.state.floor, offset - CHUNK_MESSAGES_MAX + 1)))
    while chunk is not None:
        settled, attempts = _progress(partition, chunk)
        for index in range(max(0, offset - chunk.base), chunk.count):
            if len(items) >= wanted.limit or scanned >= PEEK_MESSAGES_MAX:
                return PeekPage(items, encode_cursor(partition.state.epoch, chunk.base + index), scanned)
            if settled >> index & 1:
                continue
            scanned += 1
            shown = _shown(partition, chunk, index, wanted)
            if shown is not None:
                shown.message["attempt"] = attempts(index)
                items.append(shown)
        chunks += 1
        if chunks % CHUNKS_PER_TURN == 0:
            yield
        chunk = partition.read(Offset(chunk.base + 1))
    return PeekPage(items, None, scanned)


def _progress(partition: Partition, chunk: Chunk) -> tuple[int, Callable[[int], int]]:
    """The settled bits, and a function from a message to its attempts so far: 0 for one never handed out."""
    if partition.main is None:
        return 0, lambda index: 0
    known = partition.main.core.progress(chunk.base)
    if known is not None:
        settled, started, tries = known
    else:
        settled, started, rows = partition.progress(chunk.base)
        tries = {index: retry.tries for index, retry in rows.items()}
    return settled, lambda index: tries.get(index, started >> index & 1)


def _shown(partition: Partition, chunk: Chunk, index: int, wanted: PeekFilter) -> Peeked | None:
    state = partition.main.core.state_of(chunk.base, index) if partition.main is not None else "ready"
    if state != wanted.state:
        return None
    message = full_message(chunk, index)
    if wanted.id is not None and message["id"] != wanted.id:
        return None
    if wanted.key is not None and message["key"] != wanted.key:
        return None
    return Peeked(message, state)
