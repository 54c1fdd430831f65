"""Finds the dead letters that a redrive asks for, and the target of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from backend_store.client.messages import headers_of, message_id_of
from backend_store.client.states import shelves_of
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, holes
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.core.ready.attempt_policy import Reason
from backend_store.node.transfer.dead_letters import origins

if TYPE_CHECKING:
    from backend_store.node.views.view import View

Wanted = Callable[[Chunk, int, dict[str, Any]], bool]
"""(chunk, index, the message's recorded end) → whether to redrive it."""


class LetterFilter(msgspec.Struct, frozen=True):
    """A `Wanted` that can be sent over the wire: all given conditions must hold. `before_ms`: the message ended
    earlier."""

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
    """Which dead letters: the wanted ones in some views. `to`: one target for all, instead of each one's origin.

    `inherited`: includes ready messages of the queue itself that a deleted queue left to it.
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
    """Messages that do not wait for their due time in the target, though they did in their old place."""


class Spot(NamedTuple):
    """A chunk that was visited. Spots sort in the order of visiting."""

    view: int
    partition: int
    shelf: int
    """Index of the shelf among the view's shelves, in reading order."""
    base: int


def walk(letters: Letters, after: Spot | None = None) -> Iterator[tuple[Spot, list[Batch]]]:
    """The batches to move, chunk by chunk, in the order in which messages died; an empty list for a chunk with none.

    Leased messages stay, and so do those without an origin queue, unless `to` is given. Messages that are delayed only
    by the dead-letter queue's own delay are included.
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
    """The same without the spots."""
    for _, found in walk(letters):
        yield found


def count(letters: Letters, after: Spot | None = None) -> Generator[None, bool, tuple[Counter[str], Spot | None]]:
    """How many messages after a spot would move, by target. Yields after each chunk; when told that its time is up it
    returns with the last spot it visited.
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
        if not is_inherited:  # messages scheduled in a deleted queue stay scheduled
            at_once |= 1 << index
        place = str(target), int(end.get("priority", 0))
        found[place] = found.get(place, 0) | 1 << index
    return [Batch(view, chunk, bits, target, priority, at_once) for (target, priority), bits in found.items()]


def _free(view: View, chunk: Chunk) -> int:
    """The messages that are neither leased nor settled."""
    state = view.core.state(chunk.base)
    if state is not None:
        return state.free
    settled = view.partition.progress(chunk.base, view.number).settled
    return ((1 << chunk.count) - 1) & ~(settled | holes(chunk))


def portions(batch: Batch, most: int | None) -> Iterator[Batch]:
    """The same messages, at most `most` at a time."""
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
