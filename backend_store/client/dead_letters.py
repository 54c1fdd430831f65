"""Finds the dead letters that a redrive is asked for, and where each of them goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from backend_store.client.messages import headers_of, message_id_of
from backend_store.client.states import shelves_of
from backend_store.core.bits import indexes
from backend_store.core.chunk import Chunk, holes
from backend_store.core.policy import Reason
from backend_store.core.shelves import VIEW_MAIN
from backend_store.node.burying import origins

if TYPE_CHECKING:
    from backend_store.node.view import View

Wanted = Callable[[Chunk, int, dict[str, Any]], bool]
"""(chunk, index, what the message says of its end) → whether it goes back."""


class LetterFilter(msgspec.Struct, frozen=True):
    """A `Wanted` that can be sent: all that is given must hold. `before_ms`: the message ended earlier."""

    reason: str | None = None
    ids: frozenset[str] | None = None
    before_ms: int | None = None
    headers: dict[str, str] = {}

    def __call__(self, chunk: Chunk, index: int, end: dict[str, Any]) -> bool:
        if self.reason is not None and end.get("reason") != self.reason:
            return False
        if self.before_ms is not None and int(end.get("at", 0)) >= self.before_ms:
            return False
        if self.ids is not None and message_id_of(chunk, index) not in self.ids:
            return False
        if not self.headers:
            return True
        headers = headers_of(chunk, index)
        return all(headers.get(name) == value for name, value in self.headers.items())


class Letters(NamedTuple):
    """Which dead letters: those of some views that are wanted. `to`: where all go, in place of where each came from.

    `inherited`: of the messages that are ready in the queue itself, also those that a deleted queue left to it.
    """

    views: Sequence[View]
    wanted: Wanted
    to: str | None
    inherited: bool = True


class Batch(NamedTuple):
    """Messages of one chunk that go to one queue with one priority."""

    view: View
    chunk: Chunk
    bits: int
    target: str
    priority: int
    at_once: int
    """Those that wait for no time where they go, though they did where they are."""


class Spot(NamedTuple):
    """A chunk that was looked at. They are looked at in the order of this."""

    view: int
    partition: int
    shelf: int
    """Which of the view's shelves, in the order in which they are read."""
    base: int


def walk(letters: Letters, after: Spot | None = None) -> Iterator[tuple[Spot, list[Batch]]]:
    """What is to be moved, chunk by chunk, in the order in which the messages died; an empty list where it is nothing.

    Those that a consumer holds stay. So do those that name no queue they came from, unless `to` names one. What waits
    only because the dead-letter queue has a delay is taken, too.
    """
    for view in letters.views:
        for number, shelf in enumerate(shelves_of(view.number)):
            here = Spot(view.number, view.partition.index, number, -1)
            if after is not None and here[:3] < after[:3]:
                continue
            start = after.base + 1 if after is not None and here[:3] == after[:3] else 0
            chunk = view.partition.read(max(view.floor, start), shelf)
            while chunk is not None:
                yield here._replace(base=chunk.base), _split(view, chunk, letters)
                chunk = view.partition.read(chunk.base + 1, shelf)


def batches(letters: Letters) -> Iterator[list[Batch]]:
    """The same without the places."""
    for _, found in walk(letters):
        yield found


def count(letters: Letters, after: Spot | None = None) -> Generator[None, bool, tuple[Counter[str], Spot | None]]:
    """How many messages would go where, of those behind a place. Yields after each chunk; told that its time is up it
    answers with the last place that it looked at.
    """
    found: Counter[str] = Counter()
    for spot, some in walk(letters, after):
        for batch in some:
            found[batch.target] += batch.bits.bit_count()
        if (yield):
            return found, spot
    return found, None


def _split(view: View, chunk: Chunk, letters: Letters) -> list[Batch]:
    ends = origins(chunk)
    if not ends:
        return []
    free, at_once = _free(view, chunk), 0
    found: dict[tuple[str, int], int] = {}
    for index, end in ends.items():
        target = letters.to or end.get("from")
        if not free >> index & 1 or target is None or not letters.wanted(chunk, index, end):
            continue
        is_inherited = end.get("reason") == Reason.QUEUE_DELETED
        if not letters.inherited and view.number == VIEW_MAIN and is_inherited:
            continue
        if not is_inherited:  # what was for later in a queue that was deleted still is
            at_once |= 1 << index
        place = str(target), int(end.get("priority", 0))
        found[place] = found.get(place, 0) | 1 << index
    return [Batch(view, chunk, bits, target, priority, at_once) for (target, priority), bits in found.items()]


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
