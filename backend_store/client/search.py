"""Finds a message of a view by id: directly if the id or the schedule gives its place, else by scanning the backlog."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from backend_store.client.filters import offset_of, with_id
from backend_store.client.states import chunk_at, shelves_of, shown
from backend_store.core.log.bits import lowest
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.node.limits import CANCEL_LOOKS_MAX
from backend_store.node.partition import Partition
from backend_store.node.publishing.placement import name_of
from backend_store.storage.engine import StorageCorrupt

Found = tuple[int, int, int]
"""(shelf, base, index)."""


def places_of(partition: Partition, view: int, message_id: str) -> Iterator[Found]:
    """Places of a message with this id that are known without scanning the backlog.

    The message was there once: the caller must check that it still is.
    """
    if view == VIEW_MAIN and (named := _named(partition, message_id)) is not None:
        yield named
    offset = offset_of(message_id, partition.index)
    if not 0 <= offset < partition.state.high_watermark:
        return
    for shelf in shelves_of(view):
        chunk = chunk_at(partition, shelf, offset)
        if chunk is not None and chunk.base <= offset and with_id(chunk, message_id) >> (offset - chunk.base) & 1:
            yield shelf, chunk.base, offset - chunk.base


def _named(partition: Partition, message_id: str) -> Found | None:
    try:
        return partition.reader.named(name_of(message_id))
    except StorageCorrupt:
        return None  # found by scanning the backlog instead


def search(partition: Partition, view: int, message_id: str) -> Generator[None, bool, Found | None]:
    """The place of an existing message with this id; None if none is found among the first `CANCEL_LOOKS_MAX`
    messages."""
    for shelf, base, index in places_of(partition, view, message_id):
        chunk = partition.read(base, shelf)
        if chunk is not None and chunk.base == base and shown(partition, view, chunk).present >> index & 1:
            return shelf, base, index
        yield
    looks = 0
    for shelf in shelves_of(view):
        chunk = partition.read(0, shelf)
        while chunk is not None and looks < CANCEL_LOOKS_MAX:
            bits = with_id(chunk, message_id)
            if bits and (bits := bits & shown(partition, view, chunk).present):
                return shelf, chunk.base, lowest(bits, 1).bit_length() - 1
            looks += chunk.count
            if (yield):
                return None
            chunk = partition.read(chunk.base + 1, shelf)
    return None
