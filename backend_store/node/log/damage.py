"""Verifies stored entries, at an unclean start and before a backup is restored, and compares the messages found with
the counts in each partition's own row, which is checksummed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from backend_store.core.log.chunk import Chunk, CorruptEntry, decode_chunk, holes
from backend_store.core.log.sublogs import VIEW_MAIN, view_of
from backend_store.model import Offset
from backend_store.node.partition import Partition
from backend_store.storage.keys import parse_entry_key


def broken_entry(key: bytes, data: bytes) -> str | None:
    """Why this row of the log is no valid entry; None if it is valid."""
    return _read(key, data)[1]


def _read(key: bytes, data: bytes) -> tuple[Chunk | None, str | None]:
    replica, _, offset = parse_entry_key(key)
    try:
        chunk = decode_chunk(data, seed=replica, offset=Offset(offset))
        chunk.cut()
    except CorruptEntry as error:
        return None, str(error)
    return chunk, None


@dataclass(slots=True)
class Loss:
    """Messages and bytes of a view that should be there and are not."""

    partition: Partition
    view: int
    messages: int
    size: int


class Reckoning:
    """A check for `storage.verify` that counts each partition's messages while it walks over all entries."""

    def __init__(self, partitions: Mapping[int, Partition]):
        self._partitions = partitions
        self._found: dict[tuple[int, int], list[int]] = {}
        """By (replica, view): messages and bytes."""

    def __call__(self, key: bytes, data: bytes) -> str | None:
        chunk, reason = _read(key, data)
        replica, shelf, offset = parse_entry_key(key)
        partition, view = self._partitions.get(replica), view_of(shelf)
        if chunk is None or partition is None:
            return reason
        floor = partition.state.low if view == VIEW_MAIN else partition.floor_of(view)
        if offset >= floor:
            gone = holes(chunk) | partition.progress(offset, view).settled
            found = self._found.setdefault((replica, view), [0, 0])
            found[0] += (((1 << chunk.count) - 1) & ~gone).bit_count()
            found[1] += len(data)
        return None

    def losses(self) -> Iterator[Loss]:
        """The loss of each view that should have more than was found."""
        for replica, partition in self._partitions.items():
            state = partition.state
            for view in (VIEW_MAIN, *state.views):
                tally = state.tally(view)
                messages, size = self._found.get((replica, view), (0, 0))
                inside = min(messages, state.inside) if view == VIEW_MAIN else 0
                lost = Loss(partition, view, max(0, tally.live - messages + inside), max(0, tally.live_bytes - size))
                if lost.messages or lost.size:
                    yield lost
