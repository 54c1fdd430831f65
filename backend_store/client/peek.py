"""Peek: shows stored messages without a lease, an attempt or any other trace.

A page reads the shelves in delivery order, higher priorities first, and each shelf by offset. Its cursor names a shelf
and an offset, so the next page continues in the middle of either.
"""

from __future__ import annotations

import binascii
import dataclasses
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from backend_store.client.filters import PeekFilter, matching
from backend_store.client.messages import attempts_ended, full_message, timestamp
from backend_store.client.search import places_of
from backend_store.client.states import Bases, Shown, became_due, chunk_at, held, shelves_of, shown, views_shown
from backend_store.core.log.bits import indexes, lowest
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.sublogs import MAIN, VIEW_MAIN, is_scheduled
from backend_store.model import FieldError, InvalidRequest, Peeked, PeekPage
from backend_store.node.limits import PEEK_MESSAGES_MAX
from backend_store.node.partition import Partition

__all__ = ["PeekFilter", "check_cursor", "look", "look_through"]

State = Literal["ready", "in_flight", "delayed", "dead"]

_CURSOR = struct.Struct(">BHBQ")  # version, partition, shelf, offset
_VERSION = 1
_OFFSET_MAX = (1 << 63) - 1
"""No log is longer; what is added to an offset must still fit into a row's key."""


class Found(NamedTuple):
    """A message of a page, with its chunk."""

    chunk: Chunk
    number: int
    """Index of the message in the chunk."""
    attempt: int
    due_ms: int | None
    state: State
    history: Sequence[Any] = ()
    """Its latest attempts that ended without an ack, as stored."""


Show = Callable[[Found], Any]
"""Turns a message into an item of the page."""


def peeked(found: Found) -> Peeked:
    message = full_message(found.chunk, found.number)
    message["attempt"] = found.attempt
    if found.due_ms:
        message["due_at"] = timestamp(found.due_ms)
    if found.history:
        message["history"] = attempts_ended(found.history, found.chunk.seal)
    return Peeked(message, found.state)


class Place(NamedTuple):
    """Where a page starts or continues."""

    shelf: int
    offset: int
    partition: int = 0


def encode_place(place: Place) -> str:
    packed = _CURSOR.pack(_VERSION, place.partition, place.shelf, place.offset)
    return urlsafe_b64encode(packed).rstrip(b"=").decode()


def check_cursor(text: str) -> Place:
    """Decodes a cursor. Raises `InvalidRequest`."""
    try:
        version, partition, shelf, offset = _CURSOR.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, struct.error):
        version = partition = shelf = offset = 0
    if version != _VERSION or offset > _OFFSET_MAX:
        raise InvalidRequest("invalid peek cursor", errors=(FieldError("/query/cursor", "pass `next` unchanged"),))
    return Place(shelf, offset, partition)


def look_through(
    partitions: Sequence[Partition], wanted: PeekFilter, view: int = VIEW_MAIN, show: Show = peeked
) -> Generator[None, bool, PeekPage]:
    """A page over several partitions, one after the other; its cursor names the partition in which it continues."""
    if wanted.cursor is not None:
        at = check_cursor(wanted.cursor)
        partitions = [partition for partition in partitions if partition.index >= at.partition]
        if partitions and partitions[0].index > at.partition:
            wanted = dataclasses.replace(wanted, cursor=None)  # that one was empty and has retired
    elif wanted.id is not None:
        for partition in partitions:
            if (page := (yield from _look_up(partition, wanted, view, show))) is not None:
                return page
    items: list[Any] = []
    scanned = 0
    for number, partition in enumerate(partitions):
        rest = dataclasses.replace(wanted, limit=wanted.limit - len(items), cursor=None if number else wanted.cursor)
        page = yield from look(partition, rest, view, scanned, show)
        items += page.items
        scanned = page.scanned
        following = partitions[number + 1].index if number + 1 < len(partitions) else None
        if page.next is not None or following is None:
            return PeekPage(items, page.next, scanned)
        if len(items) >= wanted.limit or scanned >= PEEK_MESSAGES_MAX or (yield):
            first = Place(shelves_of(views_shown(view, wanted.state)[0])[0], 0, following)
            return PeekPage(items, encode_place(first), scanned)
    return PeekPage(items, None, scanned)


def cut_short(page: Generator[None, bool, PeekPage], is_enough: Callable[[], bool]) -> Generator[None, bool, PeekPage]:
    """The same page, ended as if its time were up once `is_enough`."""
    try:
        next(page)
        while True:
            page.send((yield) or is_enough())
    except StopIteration as ended:
        found: PeekPage = ended.value
        return found


def _look_up(partition: Partition, wanted: PeekFilter, view: int, show: Show) -> Generator[None, bool, PeekPage | None]:
    """The page of one id, if its place is known without a scan of the backlog; else None."""
    assert wanted.id is not None
    for one in views_shown(view, wanted.state):
        for shelf, base, index in places_of(partition, one, wanted.id):
            chunk = partition.read(base, shelf)
            if chunk is not None and chunk.base == base:
                page = _Page(partition, wanted, (one,), 0, show)
                if page.put(chunk, 1 << index):
                    return page.done()
            yield
    return None


def look(
    partition: Partition, wanted: PeekFilter, view: int = VIEW_MAIN, scanned: int = 0, show: Show = peeked
) -> Generator[None, bool, PeekPage]:
    """A page of a view's messages. Yields after each chunk; when told that its time is up it returns with a cursor."""
    return (yield from _Page(partition, wanted, views_shown(view, wanted.state), scanned, show).fill())


class _Page:
    """One page while it is filled."""

    def __init__(self, partition: Partition, wanted: PeekFilter, views: Sequence[int], scanned: int, show: Show):
        self._partition = partition
        self._as_item = show
        self._wanted = wanted
        self._view_of = {shelf: view for view in views for shelf in shelves_of(view)}
        """Shelf → the view that reads it, in display order."""
        self._shelves = [*self._view_of]
        self._items: list[Any] = []
        self._scanned = scanned

    @property
    def is_full(self) -> bool:
        return len(self._items) >= self._wanted.limit or self._scanned >= PEEK_MESSAGES_MAX

    def done(self, at: Place | None = None) -> PeekPage:
        cursor = encode_place(at._replace(partition=self._partition.index)) if at is not None else None
        return PeekPage(self._items, cursor, self._scanned)

    def fill(self) -> Generator[None, bool, PeekPage]:
        start = self._start()
        bases = held(self._partition, self._view_of[self._shelves[0]], self._wanted.state)
        due = (yield from became_due(self._partition)) if self._asks_who_is_due else None
        for shelf in self._shelves[self._shelves.index(start.shelf) :]:
            listed = due if is_scheduled(shelf) else bases
            if is_scheduled(shelf) and self._wanted.state == "in_flight":
                listed = bases
            low = start.offset if shelf == start.shelf else self._low(shelf)
            for chunk in self._chunks(shelf, low, listed):
                rest = self._look_at(chunk, low)
                if rest is not None:
                    return self.done(Place(shelf, rest))
                low = chunk.base + chunk.count
                if (yield):
                    return self.done(Place(shelf, low))
        return self.done()

    @property
    def _asks_who_is_due(self) -> bool:
        return self._view_of.get(MAIN) == VIEW_MAIN and self._wanted.state == "ready"

    def _low(self, shelf: int) -> int:
        """The offset at which a shelf begins."""
        return max(self._partition.floor_of(self._view_of[shelf]), self._wanted.from_seq or 0)

    def _start(self) -> Place:
        if self._wanted.cursor is None:
            return Place(self._shelves[0], self._low(self._shelves[0]))
        at = check_cursor(self._wanted.cursor)
        if at.shelf not in self._shelves:
            raise InvalidRequest(
                "the cursor belongs to another peek",
                errors=(FieldError("/query/cursor", "pass `next` with the same filters as before"),),
            )
        return Place(at.shelf, max(at.offset, self._low(at.shelf)))

    def _chunks(self, shelf: int, low: int, bases: Bases | None) -> Iterator[Chunk]:
        """A shelf's chunks from an offset on; with `bases`, only those listed."""
        partition = self._partition
        if bases is None:
            low = self._skip(shelf, low)
            chunk = chunk_at(partition, shelf, low)
            while chunk is not None:
                yield chunk
                chunk = partition.read(chunk.base + 1, shelf)
            return
        listed = bases.get(shelf, [])
        first = bisect_left(listed, low)
        for base in listed[max(0, first - 1) :]:
            chunk = partition.read(base, shelf)
            if chunk is not None and chunk.base == base and base + chunk.count > low:
                yield chunk

    def _skip(self, shelf: int, low: int) -> int:
        """Skips chunks stored too early: time never goes back in a log."""
        since_ms, high = self._wanted.since_ms, int(self._partition.state.high_watermark)
        if since_ms is None:
            return low
        while low < high:
            middle = (low + high) // 2
            chunk = self._partition.read(middle, shelf)
            if chunk is None or chunk.time_ms >= since_ms:
                high = middle
            else:
                low = chunk.base + chunk.count
        return low

    def _look_at(self, chunk: Chunk, low: int) -> int | None:
        """Adds a chunk's wanted messages from an offset on. If the page is full: returns the offset where the next one
        continues."""
        where = shown(self._partition, self._view_of[chunk.shelf], chunk)
        present = where.present
        if chunk.base < low:
            present &= -1 << (low - chunk.base)
        if not present:
            return None
        if self.is_full:
            return chunk.base + (present & -present).bit_length() - 1
        looked_at = lowest(present, PEEK_MESSAGES_MAX - self._scanned)
        found = matching(chunk, looked_at & where.in_state(self._wanted.state), self._wanted)
        room = self._wanted.limit - len(self._items)
        if found.bit_count() > room:
            found = lowest(found, room)
        if found.bit_count() == room:
            looked_at &= (1 << found.bit_length()) - 1
        self._scanned += looked_at.bit_count()
        self._show(chunk, found, where)
        rest = present & ~looked_at
        return chunk.base + (rest & -rest).bit_length() - 1 if rest else None

    def put(self, chunk: Chunk, bit: int) -> bool:
        """Adds one message that was found without a scan. False if it is gone or does not match."""
        where = shown(self._partition, self._view_of[chunk.shelf], chunk)
        found = matching(chunk, bit & where.in_state(self._wanted.state), self._wanted)
        if not found or chunk.base + bit.bit_length() - 1 < self._low(chunk.shelf):
            return False
        self._scanned += 1
        self._show(chunk, found, where)
        return True

    def _show(self, chunk: Chunk, bits: int, where: Shown) -> None:
        for index in indexes(bits):
            due_ms = where.due.get(index) if where.delayed >> index & 1 else None
            state = self._state_of(where, 1 << index)
            history = where.histories.get(index, ())
            self._items.append(self._as_item(Found(chunk, index, where.attempts(index), due_ms, state, history)))

    def _state_of(self, where: Shown, bit: int) -> State:
        if self._wanted.state == "dead":
            return "dead"
        return "in_flight" if where.in_flight & bit else "delayed" if where.delayed & bit else "ready"
