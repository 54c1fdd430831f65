"""Reads ranges of partitions at a backend. Chunks come as they are stored, and the gateway opens them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from backend_store.client.ranges import PartitionOffsets, RangePage, Render
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, CorruptEntry, decode_chunk
from backend_store.model import Unavailable
from backend_store.service.ranges import LookAtOffsets, Piece, Pieces, ReadRange
from backend_store.wire.store_frames import to_bits

if TYPE_CHECKING:
    from backend_store.remote.queues.queue import RemoteQueue

_offsets = msgspec.msgpack.Decoder(list[PartitionOffsets]).decode
_pieces = msgspec.msgpack.Decoder(Pieces).decode


class Ranges:
    """The part of a remote queue's interface that reads by offset."""

    def offsets_of(self) -> list[PartitionOffsets]:
        """The offsets of each partition. Raises `LookingUp`."""
        queue: RemoteQueue = self  # type: ignore[assignment]

        return queue.known(f"the offsets of {queue.name!r}", "offsets", self.asked_offsets, is_used_up=True)

    async def asked_offsets(self) -> list[PartitionOffsets]:
        """As `offsets_of`, asked now. Raises `PushqError`."""
        queue: RemoteQueue = self  # type: ignore[assignment]
        return _offsets(await queue.ask(LookAtOffsets(queue.place_there), may_repeat=True))

    async def read_range(
        self, number: int, start: int, until: int | None, *, messages_max: int, bytes_max: int, render: Render
    ) -> RangePage:
        queue: Any = self
        asked = ReadRange(queue.place_there, number, start, until, messages_max, bytes_max)
        found = _pieces(await queue.ask(asked, may_repeat=True))
        await queue.learnt([piece.chunk for piece in found.pieces])
        messages: list[bytes] = []
        for piece in found.pieces:
            messages += render(opened(queue, piece), list(indexes(to_bits(piece.bits))))
        return RangePage(messages, found.next, found.at)


def opened(queue: RemoteQueue, piece: Piece) -> Chunk:
    """Decodes a chunk for readers here. Raises `Unavailable` if it was damaged on the way."""
    try:
        return queue.opened(decode_chunk(piece.chunk, seed=piece.seed), piece.partition)
    except CorruptEntry as error:
        raise Unavailable(f"queue {queue.name!r}: a chunk was broken on its way: {error}") from None
