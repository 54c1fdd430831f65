"""Peeks at queues of a backend: the backend returns chunks and says which of their messages to show; the gateway opens
them and filters by content.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import msgspec

from backend_store.client.filters import PeekFilter, matching
from backend_store.client.peek import Found, peeked
from backend_store.core.log.chunk import CorruptEntry, decode_chunk
from backend_store.model import PeekPage, Unavailable
from backend_store.node.limits import PEEK_MESSAGES_MAX, PEEK_SECONDS_MAX
from backend_store.service.peeks import Peek, SeenPage

if TYPE_CHECKING:
    from backend_store.core.log.chunk import Chunk
    from backend_store.remote.queues.queue import RemoteQueue
    from backend_store.service.peeks import Piece

_page = msgspec.msgpack.Decoder(SeenPage).decode


async def peek_at(queue: RemoteQueue, wanted: PeekFilter) -> PeekPage:
    """See `client.queue.EmbeddedQueue.peek`. A backend can read neither headers nor bodies of sealed messages: for an
    encrypted queue it returns all messages that may match, page by page, and the gateway filters them."""
    asked = dataclasses.replace(wanted, headers={}, contains=None) if queue.config.encrypted else wanted
    over = asyncio.get_running_loop().time() + PEEK_SECONDS_MAX
    found = PeekPage([], wanted.cursor, 0)
    while True:
        rest = dataclasses.replace(asked, limit=wanted.limit - len(found.items), cursor=found.next)
        page = _page(await queue.ask(Peek(queue.place_there, rest, with_history=True), may_repeat=True))
        await queue.learnt([piece.chunk for piece in page.pieces])
        chunks = [_opened(queue, piece) for piece in page.pieces]
        shown = [Found(chunks[one.piece], *one[1:]) for one in page.items]
        items = [peeked(one) for one in shown if matching(one.chunk, 1 << one.number, wanted)]
        found = PeekPage([*found.items, *items], page.next, found.scanned + page.scanned)
        is_whole = page.next is None or len(found.items) >= wanted.limit
        if is_whole or found.scanned >= PEEK_MESSAGES_MAX or asyncio.get_running_loop().time() >= over:
            return found


def _opened(queue: RemoteQueue, piece: Piece) -> Chunk:
    try:
        return queue.opened(decode_chunk(piece.chunk, seed=piece.seed), piece.partition)
    except CorruptEntry as error:
        raise Unavailable(f"queue {queue.name!r}: a chunk was broken on its way: {error}") from None
