"""Reads ranges of partitions for gateways: returns chunks as stored, as only a gateway can decrypt them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.ranges import PartitionOffsets, offsets_of, take_range
from backend_store.core.log.chunk import Chunk
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.service.limits import RANGE_BYTES_PER_ASK_MAX, RANGE_SECONDS_MAX
from backend_store.wire.store_frames import Bits, of_bits


class Piece(NamedTuple):
    """A chunk, and which of its messages are in the range, as bits. `seed`: of the chunk's checksum."""

    chunk: bytes
    seed: int
    partition: int
    bits: Bits


class Pieces(NamedTuple):
    """A part of a range. `next`: where the next part begins; the end of the range if this part is the last."""

    pieces: list[Piece]
    next: int
    at: PartitionOffsets


class LookAtOffsets(AtPlace, frozen=True):
    """See `client.ranges.offsets_of`."""


class ReadRange(AtPlace, frozen=True):
    """See `client.ranges.read_range`."""

    partition: int
    start: int
    until: int | None
    messages_max: int
    bytes_max: int


async def offsets(store: EmbeddedStore, asked: LookAtOffsets) -> list[PartitionOffsets]:
    return offsets_of(queue_at(store, asked.place))


async def read(store: EmbeddedStore, asked: ReadRange) -> Pieces:
    queue = queue_at(store, asked.place)
    seeds = {partition.index: partition.replica for partition in queue.partitions}
    found: list[Piece] = []

    def take(chunk: Chunk, numbers: Sequence[int]) -> tuple[int, int]:
        bits = sum(1 << number for number in numbers)
        found.append(Piece(chunk.data, seeds[chunk.partition], chunk.partition, of_bits(bits)))
        return len(numbers), len(chunk.data)

    following, at = await take_range(
        queue,
        asked.partition,
        asked.start,
        asked.until,
        messages_max=asked.messages_max,
        bytes_max=min(asked.bytes_max, RANGE_BYTES_PER_ASK_MAX),
        take=take,
        seconds_max=RANGE_SECONDS_MAX,
    )
    return Pieces(found, following, at)


HANDLERS: dict[type[Asked], Any] = {LookAtOffsets: offsets, ReadRange: read}
