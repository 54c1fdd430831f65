"""Where a view's messages are stored, and the state of each: read only, for peeks and searches.

A chunk with leases is in memory; for others the disk has what was settled. No function here loads a chunk into memory
or makes a view.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from backend_store.core.leases.leases import ChunkState
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, holes
from backend_store.core.log.sublogs import (
    SCHEDULED,
    SHELF_OF_VIEW,
    SORTING,
    VIEW_DEAD,
    VIEW_MAIN,
    VIEW_OUTBOX,
    is_scheduled,
)
from backend_store.model import PRIORITIES_MAX
from backend_store.node.limits import DUE_ROWS_PER_TICK, PEEK_MESSAGES_MAX
from backend_store.node.partition import Partition
from backend_store.storage.engine import StorageCorrupt

Bases = dict[int, list[int]]
"""Offsets where chunks begin, by shelf, ascending."""

MAIN_IN_ORDER: Final = (
    *(shelf for priority in reversed(range(PRIORITIES_MAX)) for shelf in (priority, SCHEDULED + priority)),
    SORTING,
)
"""The main view's shelves in delivery order: higher priorities first."""


class Shown(NamedTuple):
    """The existing messages of one chunk by state, as bits. `due`: times of delayed ones, by index. `histories`:
    attempts that ended without an ack (see `core.log.records.Retry`)."""

    ready: int
    in_flight: int
    delayed: int
    due: Mapping[int, int]
    started: int
    tries: Mapping[int, int]
    histories: Mapping[int, list[Any]]

    @property
    def present(self) -> int:
        return self.ready | self.in_flight | self.delayed

    def in_state(self, state: str) -> int:
        match state:
            case "in_flight":
                return self.in_flight
            case "delayed":
                return self.delayed
            case "ready":
                return self.ready
            case _:
                return self.present

    def attempts(self, index: int) -> int:
        """How often the message was delivered so far."""
        return self.tries.get(index, self.started >> index & 1)


def shelves_of(view: int) -> tuple[int, ...]:
    return MAIN_IN_ORDER if view == VIEW_MAIN else (SHELF_OF_VIEW[view],)


def views_shown(view: int, state: str) -> tuple[int, ...]:
    """The views whose messages a peek into `view` shows: dead letters are in a view of their own, those for another
    queue in the outbox.
    """
    if state != "dead":
        return (view,)
    return (VIEW_DEAD, VIEW_OUTBOX) if view == VIEW_MAIN else (VIEW_DEAD,)


def shown(partition: Partition, view: int, chunk: Chunk) -> Shown:
    """The state of each message of a chunk."""
    known = partition.views.get(view)
    state = known.core.state(chunk.base) if known is not None else None
    found = _from_memory(state) if state is not None else _from_disk(partition, view, chunk)
    due: dict[int, int] = {}
    if is_scheduled(chunk.shelf):
        due = {i: due_ms for i, due_ms in _waiting(partition, chunk).items() if found.ready >> i & 1}
        bits = sum(1 << index for index in due)
    elif chunk.shelf == SORTING and partition.sorting is not None:
        bits = found.ready & partition.sorting.waiting(chunk.base)
    else:
        return found
    return found._replace(ready=found.ready & ~bits, delayed=found.delayed | bits, due={**due, **found.due})


def _from_memory(state: ChunkState) -> Shown:
    in_flight = state.present & (state.leased | state.returning)
    delayed = state.present & state.delayed & ~in_flight
    ready = state.present & ~(in_flight | delayed)
    return Shown(ready, in_flight, delayed, state.due if delayed else {}, state.started, state.attempts, state.history)


def _from_disk(partition: Partition, view: int, chunk: Chunk) -> Shown:
    settled, started, rows = partition.progress(chunk.base, view)
    present = ((1 << chunk.count) - 1) & ~(settled | holes(chunk))
    now_ms = partition.steady_ms()
    due = {i: row.due_ms for i, row in rows.items() if row.due_ms > now_ms and present >> i & 1}
    delayed = sum(1 << index for index in due)
    tries = {index: row.tries for index, row in rows.items()}
    histories = {index: row.history for index, row in rows.items() if row.history}
    return Shown(present & ~delayed, 0, delayed, due, started, tries, histories)


def _waiting(partition: Partition, chunk: Chunk) -> dict[int, int]:
    """The messages of a scheduled chunk that are not due yet, with their due times. A broken row counts as due."""
    reader, now_ms = partition.reader, partition.steady_ms()
    found: dict[int, int] = {}
    try:
        for due_ms in reader.schedule_of(chunk.base):
            if due_ms > now_ms:
                found.update(dict.fromkeys(indexes(reader.due_bits(chunk.base, due_ms)), due_ms))
    except StorageCorrupt:
        pass
    return found


def chunk_at(partition: Partition, shelf: int, offset: int) -> Chunk | None:
    """The chunk of a shelf that contains an offset, or the first one after it."""
    found = partition.read(offset, shelf)
    if found is not None and found.base == offset:
        return found  # the usual case: a page continues where a chunk begins
    before = partition.read_before(offset, shelf)
    return before if before is not None and before.base + before.count > offset else found


def held(partition: Partition, view: int, state: str) -> Bases | None:
    """The chunks with messages in flight, nacked with a delay, or waiting for their turn, if memory knows.

    None if the disk must be read: for other states, and for companions that have no view yet.
    """
    known = partition.views.get(view)
    if state == "in_flight":
        states = known.core.states() if known is not None else ()
        return _by_shelf((one.shelf, one.base) for one in states if one.leased | one.returning)
    if state == "delayed" and view == VIEW_MAIN and known is not None:
        places: set[tuple[int, int]] = {(one.shelf, one.base) for one in known.core.states() if one.delayed}
        if partition.sorting is not None:
            places.update((SORTING, base) for base in partition.sorting.waiting_bases())
        return _by_shelf(places)
    return None


def became_due(partition: Partition) -> Generator[None, bool, Bases | None]:
    """The scheduled chunks with messages that are due. None if they are too many to list."""
    places: set[tuple[int, int]] = set()
    after, now_ms = (0, 0), partition.steady_ms()
    while rows := partition.reader.due(after, now_ms, DUE_ROWS_PER_TICK):
        places.update((row.shelf, row.base) for row in rows)
        if len(places) > PEEK_MESSAGES_MAX or any(row.shelf < 0 for row in rows):
            return None
        after = rows[-1].due_ms, rows[-1].base
        yield
    return _by_shelf(places)


def _by_shelf(places: Iterable[tuple[int, int]]) -> Bases:
    bases: Bases = {}
    for shelf, base in places:
        bases.setdefault(shelf, []).append(base)
    for found in bases.values():
        found.sort()
    return bases
