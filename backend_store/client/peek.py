"""Peek: messages as they lie, without a lease, an attempt or any other trace."""

from __future__ import annotations

from dataclasses import dataclass

from backend_store.client.messages import full_message
from backend_store.core.chunk import Chunk
from backend_store.core.cursor import decode_cursor, encode_cursor
from backend_store.core.work import DEFAULT_GROUP
from backend_store.model import Offset, Peeked, PeekPage
from backend_store.node.limits import PEEK_MESSAGES_MAX
from backend_store.node.partition import Partition
from backend_store.node.rows import decode_mark
from backend_store.storage.engine import Table
from backend_store.storage.keys import mark_key


@dataclass(frozen=True, slots=True)
class PeekFilter:
    """What to show: messages in one state, perhaps of one id or key, from a place on."""

    state: str = "ready"
    limit: int = 100
    cursor: str | None = None
    from_seq: int | None = None
    id: str | None = None
    key: str | None = None


def peek(partition: Partition, wanted: PeekFilter) -> PeekPage:
    """A page of messages in log order. Looks at no more than `PEEK_MESSAGES_MAX`, then answers with a cursor."""
    offset = decode_cursor(wanted.cursor)[1] if wanted.cursor else (wanted.from_seq or 0)
    offset = max(offset, partition.state.floor)
    items: list[Peeked] = []
    scanned = 0
    chunk = partition.read(Offset(max(partition.state.floor, offset - 255)))
    while chunk is not None:
        settled = _settled(partition, chunk)
        for index in range(max(0, offset - chunk.base), chunk.count):
            if len(items) >= wanted.limit or scanned >= PEEK_MESSAGES_MAX:
                return PeekPage(items, encode_cursor(partition.state.epoch, chunk.base + index), scanned)
            if settled >> index & 1:
                continue
            scanned += 1
            shown = _shown(partition, chunk, index, wanted)
            if shown is not None:
                items.append(shown)
        chunk = partition.read(Offset(chunk.base + 1))
    return PeekPage(items, None, scanned)


def _settled(partition: Partition, chunk: Chunk) -> int:
    if partition.view is None:
        return 0
    key = mark_key(partition.replica, DEFAULT_GROUP, chunk.base)
    return decode_mark(partition.node.engine.get(Table.MARKS, key))[0]


def _shown(partition: Partition, chunk: Chunk, index: int, wanted: PeekFilter) -> Peeked | None:
    state = partition.view.state_of(chunk.base, index) if partition.view is not None else "ready"
    if state != wanted.state:
        return None
    message = full_message(chunk, index)
    if wanted.id is not None and message["id"] != wanted.id:
        return None
    if wanted.key is not None and message["key"] != wanted.key:
        return None
    return Peeked(message, state)
