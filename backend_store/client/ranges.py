"""Reads ranges of offsets of one partition, for readers that keep their own offsets and read in batches.

Streams are read so, and companions of queues, whose messages have offsets too. Nothing is leased or counted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal, NamedTuple, Protocol

from backend_store.client.queue import EmbeddedQueue
from backend_store.client.states import chunk_at, shelves_of, shown
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.model import FieldError, InvalidRequest, QueueConfig
from backend_store.node.limits import PEEK_SECONDS_MAX
from backend_store.node.log.seek import read_at
from backend_store.node.partition import Partition

Kind = Literal["stream", "companion", "work"]
Render = Callable[[Chunk, Sequence[int]], list[bytes]]
"""Renders some messages of a chunk, given by index, to bytes. Leaves out messages that cannot be read."""


Take = Callable[[Chunk, Sequence[int]], tuple[int, int]]
"""Takes some messages of a chunk, given by index; returns how many messages and bytes that makes."""


class PartitionOffsets(NamedTuple):
    """Everything below `first` is gone; `next` is the next message's offset. Not every offset has a message."""

    partition: int
    first: int
    next: int
    epoch: int


class RangePage(NamedTuple):
    """`next`: where to continue; the end of the range if all of it was read."""

    messages: list[bytes]
    next: int
    at: PartitionOffsets


class RangesElsewhere(Protocol):
    """A queue in another process; see the functions of the same names. Offsets may need a look-up there."""

    @property
    def is_companion(self) -> bool: ...
    @property
    def config(self) -> QueueConfig: ...
    def offsets_of(self) -> list[PartitionOffsets]: ...
    async def read_range(
        self, number: int, start: int, until: int | None, *, messages_max: int, bytes_max: int, render: Render
    ) -> RangePage: ...


def kind_of(queue: EmbeddedQueue | RangesElsewhere) -> Kind:
    if queue.is_companion:
        return "companion"
    return "stream" if queue.config.kind == "stream" else "work"


def offsets_of(queue: EmbeddedQueue | RangesElsewhere) -> list[PartitionOffsets]:
    """Offsets of each partition, by number."""
    if not isinstance(queue, EmbeddedQueue):
        return queue.offsets_of()
    return [_offsets(queue, partition) for partition in queue._partitions.all]


async def read_range(
    queue: EmbeddedQueue | RangesElsewhere,
    number: int,
    start: int,
    until: int | None,
    *,
    messages_max: int,
    bytes_max: int,
    render: Render,
) -> RangePage:
    """The messages from `start` up to but without `until`; without `until`, up to what is stored by now.

    A page has at most `messages_max` messages, and ends with the chunk that reaches `bytes_max`. Raises
    `InvalidRequest`.
    """
    if not isinstance(queue, EmbeddedQueue):
        return await queue.read_range(
            number, start, until, messages_max=messages_max, bytes_max=bytes_max, render=render
        )
    found: list[bytes] = []

    def take(chunk: Chunk, numbers: Sequence[int]) -> tuple[int, int]:
        rendered = render(chunk, numbers)
        found.extend(rendered)
        return len(rendered), sum(map(len, rendered))

    following, at = await take_range(
        queue, number, start, until, messages_max=messages_max, bytes_max=bytes_max, take=take
    )
    return RangePage(found, following, at)


async def take_range(
    queue: EmbeddedQueue,
    number: int,
    start: int,
    until: int | None,
    *,
    messages_max: int,
    bytes_max: int,
    take: Take,
    seconds_max: float = PEEK_SECONDS_MAX,
) -> tuple[int, PartitionOffsets]:
    """Passes the messages of a range to `take`. Returns the offset to continue at, and the partition's offsets. Raises
    `InvalidRequest`."""
    partition = next((one for one in queue._partitions.all if one.index == number), None)
    if partition is None:
        there = ", ".join(str(one.index) for one in queue._partitions.all)
        detail = f"queue {queue.name!r} has no partition {number}, only {there}"
        raise InvalidRequest(detail, errors=(FieldError("/path/partition", detail),))
    look = _look(queue, partition, start, until, messages_max, bytes_max, take)
    following = await queue._node.turnstile.through(look, seconds_max=seconds_max)
    if partition.closed:
        raise queue.gone
    return following, _offsets(queue, partition)


def _offsets(queue: EmbeddedQueue, partition: Partition) -> PartitionOffsets:
    state = partition.state
    first = partition.floor_of(queue._number) if queue.is_companion else int(state.floor)
    return PartitionOffsets(partition.index, first, int(state.high_watermark), int(state.epoch))


def _look(
    queue: EmbeddedQueue,
    partition: Partition,
    start: int,
    until: int | None,
    messages_max: int,
    bytes_max: int,
    take: Take,
) -> Generator[None, bool, int]:
    """Yields after each chunk; ends when told that its time is up."""
    at = _offsets(queue, partition)
    end = at.next if until is None else min(until, at.next)
    place = max(start, at.first)
    found = size = 0
    while place < end and found < messages_max and size < bytes_max:
        chunk = _chunk_at(queue._number, partition, place)
        if chunk is None or chunk.base >= end:
            place = end
            break
        low, high = max(0, place - chunk.base), min(chunk.count, end - chunk.base)
        numbers = _there(queue._number, partition, chunk, low, high)
        room = messages_max - found
        if len(numbers) > room:
            numbers = numbers[:room]
            high = numbers[-1] + 1
        if numbers:
            messages, taken = take(chunk, numbers)
            found += messages
            size += taken
        place = chunk.base + high
        if (yield):
            break
    return max(start, place)


def _chunk_at(view: int, partition: Partition, offset: int) -> Chunk | None:
    if view == VIEW_MAIN:
        return read_at(partition, offset)
    return chunk_at(partition, shelves_of(view)[0], offset)


def _there(view: int, partition: Partition, chunk: Chunk, low: int, high: int) -> Sequence[int]:
    if view == VIEW_MAIN:
        return range(low, high)
    return [number for number in indexes(shown(partition, view, chunk).present) if low <= number < high]
