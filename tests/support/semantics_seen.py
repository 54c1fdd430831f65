"""Where a queue's messages are, according to its stored chunks and its decisions, for comparison with a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from backend_store.core.leases.leases import Lease
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, holes
from backend_store.core.log.sublogs import DEAD, LATE, SCHEDULED, SORTING, VIEW_DEAD, VIEW_LATE, VIEW_MAIN
from backend_store.node.garbage_collector import GARBAGE, _parse, ranges
from backend_store.node.partition import Partition
from backend_store.node.views.view import View
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.keys import log_range
from tests.support.world import REPLICA

VIEWS = {"main": VIEW_MAIN, "dead": VIEW_DEAD, "late": VIEW_LATE}
SHELVES = {
    "main": (*range(10), *range(SCHEDULED, SCHEDULED + 10), SORTING),
    "dead": (DEAD,),
    "late": (LATE,),
}
EMPTY_AT_THE_END = (
    Table.LOG,
    Table.LANES,
    Table.MARKS,
    Table.RETRY,
    Table.DUE,
    Table.EXPIRY,
    Table.ORDER,
    Table.BY_ID,
    Table.LEASES,
    Table.PARKED,
)


class Place(NamedTuple):
    """The position of a message."""

    view: str
    shelf: int
    base: int
    bit: int


def walk(partition: Partition) -> dict[int, Place]:
    """The position of every message, from stored and decided state."""
    found: dict[int, Place] = {}
    for name, shelves in SHELVES.items():
        for shelf in shelves:
            for chunk in chunks(partition, shelf):
                for index in indexes(present(partition, VIEWS[name], chunk)):
                    number = int(chunk.messages.bodies[index])
                    assert number not in found, f"{number} is in two places"
                    found[number] = Place(name, shelf, chunk.base, index)
    return found


def chunks(partition: Partition, shelf: int) -> Iterator[Chunk]:
    chunk = partition.read(0, shelf)
    while chunk is not None:
        yield chunk
        chunk = partition.read(chunk.base + 1, shelf)


def present(partition: Partition, number: int, chunk: Chunk) -> int:
    view: View | None = partition.views.get(number)
    state = view.core.state(chunk.base) if view is not None else None
    if state is not None:
        return state.present
    return ((1 << chunk.count) - 1) & ~partition.progress(chunk.base, number).settled & ~holes(chunk)


def numbers_of(lease: Lease) -> dict[int, int]:
    """The numbers of a lease's messages, by seq."""
    assert lease.chunk is not None
    bodies = lease.chunk.messages.bodies
    return {lease.state.base + n: int(bodies[n]) for n in indexes(lease.bits)}


def value_at(columns: dict[str, list[Any]], name: str, index: int) -> Any:
    return columns[name][index] if name in columns else None


def sweep(engine: Engine) -> None:
    """Deletes what a purge left behind, as the sweeper does."""
    for mark, _ in engine.scan(Table.META, GARBAGE, GARBAGE[:-1] + b"0", 1 << 30):
        batch = Batch()
        batch.delete(Table.META, mark)
        for part in ranges(*_parse(mark[len(GARBAGE) :])):
            for key, row in engine.scan(part.table, part.start, part.end, 1 << 30):
                if part.covers(key, row):
                    batch.delete(part.table, key)
        engine.commit(batch, lambda: None)


def leftovers(engine: Engine) -> dict[Table, int]:
    """Rows that an empty queue still has, by table."""
    found = {table: len(engine.scan(table, *log_range(REPLICA), 10_000)) for table in EMPTY_AT_THE_END}
    return {table: count for table, count in found.items() if count}
