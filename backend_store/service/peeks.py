"""Serves peeks to gateways: chunks as they are stored, for only a gateway can decrypt them, and which messages
match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.filters import PeekFilter
from backend_store.client.peek import Found, State
from backend_store.core.log.chunk import Chunk
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.service.limits import PEEK_BYTES_PER_ASK_MAX


class Peek(AtPlace, frozen=True):
    """See `client.peek`."""

    wanted: PeekFilter
    with_history: bool = False
    """False for gateways of earlier versions, which cannot decode it."""


class Piece(NamedTuple):
    """A chunk. `seed` is the seed of its checksum."""

    chunk: bytes
    seed: int
    partition: int


class Seen(NamedTuple):
    """A message in one of the pieces."""

    piece: int
    number: int
    attempt: int
    due_ms: int | None
    state: State
    history: Sequence[Any] = ()


class SeenPage(NamedTuple):
    pieces: list[Piece]
    items: list[Seen]
    next: str | None
    scanned: int


async def peek(store: EmbeddedStore, asked: Peek) -> SeenPage:
    queue = queue_at(store, asked.place)
    seeds = {partition.index: partition.replica for partition in queue.partitions}
    pieces: list[Piece] = []
    chunks: list[Chunk] = []
    size = 0

    def show(found: Found) -> tuple[Any, ...]:
        nonlocal size
        chunk = found.chunk
        if not chunks or chunks[-1] is not chunk:
            chunks.append(chunk)
            pieces.append(Piece(chunk.data, seeds[chunk.partition], chunk.partition))
            size += len(chunk.data)
        seen = Seen(len(pieces) - 1, *found[1:])
        return seen if asked.with_history else seen[: Seen._fields.index("history")]

    page = await queue.peek(asked.wanted, show, lambda: size >= PEEK_BYTES_PER_ASK_MAX)
    items: list[Any] = page.items
    return SeenPage(pieces, items, page.next, page.scanned)


HANDLERS: dict[type[Asked], Any] = {Peek: peek}
