"""Finds positions in a stream's log, by offset or time, and counts the messages before one.

Offsets have gaps at decisions, and chunks have holes at repeats, so a difference of offsets is no message count. Every
`COUNTED_CHUNKS` chunks a row stores how many messages came before; from there on chunks are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from backend_store.core.groups import below
from backend_store.core.log.chunk import Chunk, claimed_messages, holes
from backend_store.core.log.records import MessagesCounted, PartitionState, Record
from backend_store.model import Offset
from backend_store.node.limits import COUNTED_CHUNKS
from backend_store.node.log.apply import read_counted
from backend_store.storage.engine import Batch, StorageCorrupt, Table
from backend_store.storage.keys import counted_key, log_key
from backend_store.storage.verify import parse_quarantine_value

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

log = structlog.get_logger("pushq.seeking")

COUNTS_PER_COMMIT: Final = 16


def read_at(partition: Partition, offset: int) -> Chunk | None:
    """The chunk that contains an offset, or the first one after it."""
    found = partition.read(offset)
    if found is not None and found.base == offset:
        return found  # the usual case: a reader continues where a chunk begins
    before = partition.read_before(offset)
    return before if before is not None and before.base + before.count > offset else found


def offset_at_time(partition: Partition, time_ms: int) -> Offset:
    """The offset of the first chunk stored at or after a time; the end if there is none. Time never goes back in a
    log."""
    low, high = int(partition.state.low), int(partition.state.high_watermark)
    while low < high:
        middle = (low + high) // 2
        chunk = partition.read(middle)
        if chunk is None or chunk.time_ms >= time_ms:
            high = middle
        else:
            low = chunk.base + chunk.count
    chunk = partition.read(low)
    return Offset(partition.state.end if chunk is None else max(chunk.base, partition.state.floor))


def messages_behind(partition: Partition, offset: int) -> int:
    """How many of all messages ever published a reader that starts at an offset never gets: earlier ones, and broken
    ones."""
    state = partition.state
    gone = state.published_total - state.live
    if offset <= state.floor:
        return gone
    if offset >= state.high_watermark:
        return state.published_total
    at, count = int(state.floor), gone - _broken(partition, state.floor, state.end)
    try:
        counted = read_counted(partition.node.engine, partition.replica, offset)
    except StorageCorrupt as error:
        log.error("broken count of a stream: counted from its beginning", queue=partition.label, reason=str(error))
        counted = None
    if counted is not None and counted[0] > at:
        at, count = counted
    chunk = read_at(partition, at)
    while chunk is not None and chunk.base < offset:
        wanted = below(chunk, offset) & ~below(chunk, at) & ~holes(chunk)
        count += wanted.bit_count()
        chunk = partition.read(chunk.base + chunk.count)
    return count + _broken(partition, at, state.end)


def _broken(partition: Partition, start: int, end: int) -> int:
    """Messages of quarantined entries."""
    rows = partition.node.engine.scan(
        Table.QUARANTINE, log_key(partition.replica, start), log_key(partition.replica, end), 1 << 20
    )
    return sum(claimed_messages(parse_quarantine_value(value)[1]) for _, value in rows)


class Counting:
    """Writes the rows that store how many messages came before."""

    def __init__(self) -> None:
        self._chunks = COUNTED_CHUNKS
        """Since the last row; unknown after a start, so the next commit writes one."""

    def decide(self, before: PartitionState, chunks: list[Chunk], records: list[Record]) -> None:
        if self._chunks >= COUNTED_CHUNKS:
            self._chunks = 0
            records.append(MessagesCounted(chunks[0].base, before.published_total))
        self._chunks += len(chunks)

    def forget(self, partition: Partition, below: int, batch: Batch) -> None:
        """Deletes rows below the stream's floor, a bounded number."""
        ends = counted_key(partition.replica, 0), counted_key(partition.replica, below)
        for key, _ in partition.node.engine.scan(Table.GROUPS, *ends, COUNTS_PER_COMMIT):
            batch.delete(Table.GROUPS, key)
