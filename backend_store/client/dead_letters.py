"""Finds the dead letters that a redrive is asked for, and where each of them goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from backend_store.client.states import shelves_of
from backend_store.core.bits import indexes
from backend_store.core.chunk import Chunk, holes
from backend_store.core.shelves import is_scheduled
from backend_store.node.burying import origins

if TYPE_CHECKING:
    from backend_store.node.view import View

Wanted = Callable[[Chunk, int, dict[str, Any]], bool]
"""(chunk, index, what the message says of its end) → whether it goes back."""


class Letters(NamedTuple):
    """Which dead letters: those of some views that are wanted. `to`: where all go, in place of where each came from."""

    views: Sequence[View]
    wanted: Wanted
    to: str | None


class Batch(NamedTuple):
    """Messages of one chunk that go to one queue with one priority."""

    view: View
    chunk: Chunk
    bits: int
    target: str
    priority: int


def batches(letters: Letters) -> Iterator[list[Batch]]:
    """What is to be moved, chunk by chunk, in the order in which the messages died; an empty list where it is nothing.

    Those that a consumer holds stay. So do those that name no queue they came from, unless `to` names one.
    """
    for view in letters.views:
        for shelf in shelves_of(view.number):
            if is_scheduled(shelf):
                continue
            chunk = view.partition.read(view.floor, shelf)
            while chunk is not None:
                yield _split(view, chunk, letters)
                chunk = view.partition.read(chunk.base + 1, shelf)


def count(letters: Letters) -> Generator[None, bool, Counter[str]]:
    """How many messages would go where. Yields after each chunk."""
    found: Counter[str] = Counter()
    for some in batches(letters):
        for batch in some:
            found[batch.target] += batch.bits.bit_count()
        yield
    return found


def _split(view: View, chunk: Chunk, letters: Letters) -> list[Batch]:
    ends = origins(chunk)
    if not ends:
        return []
    free = _free(view, chunk)
    found: dict[tuple[str, int], int] = {}
    for index, end in ends.items():
        target = letters.to or end.get("from")
        if not free >> index & 1 or target is None or not letters.wanted(chunk, index, end):
            continue
        place = str(target), int(end.get("priority", 0))
        found[place] = found.get(place, 0) | 1 << index
    return [Batch(view, chunk, bits, target, priority) for (target, priority), bits in found.items()]


def _free(view: View, chunk: Chunk) -> int:
    """The messages that nobody holds and nobody settled."""
    state = view.core.state(chunk.base)
    if state is not None:
        return state.free
    settled = view.partition.progress(chunk.base, view.number).settled
    return ((1 << chunk.count) - 1) & ~(settled | holes(chunk))


def portions(batch: Batch, most: int | None) -> Iterator[Batch]:
    """The same messages, at most so many at a time."""
    if most is None or batch.bits.bit_count() <= most:
        yield batch
        return
    part = 0
    for index in indexes(batch.bits):
        part |= 1 << index
        if part.bit_count() == most:
            yield batch._replace(bits=part)
            part = 0
    if part:
        yield batch._replace(bits=part)
