"""Which messages of a truncated tail go to the quarantine: those that were confirmed there and are in no other log.

An async leader confirms what only its own disk has. If it is lost and another node leads, its tail is no longer part of
the log. Kept are the messages that were published in that tail and not yet delivered at its end: those that were acked
there, purged or deleted are done, and those that were only moved there from below are still in their old place.

The tail is read from its end to its beginning, so that the outcome of a message is known before the message is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from backend_store.core.dedupe.message_ids import message_id
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import CorruptEntry, clear_column, decode_chunk, holes
from backend_store.core.log.records import EpochStart
from backend_store.core.log.sublogs import is_scheduled, view_of
from backend_store.model import Epoch, Offset

Where = Literal["lacked", "there", "unknown"]
"""Whether another log has an entry: "there" if it does, "lacked" if not, "unknown" if that cannot be told."""


class Written(NamedTuple):
    """A chunk that an entry wrote, or deleted if `data` is None. `is_new`: there was no chunk before; None: unknown."""

    shelf: int
    base: int
    data: bytes | None
    is_new: bool | None


class Happened(NamedTuple):
    """The effects of one entry in one partition."""

    replica: int
    partition: int
    """The partition's number within the queue."""
    chunks: Sequence[Written] = ()
    settled: Mapping[tuple[int, int], int] = {}
    """(view, base) → bits, absolute."""
    dues: Mapping[int, Sequence[tuple[int, int]]] = {}
    """Base of a scheduled chunk → (due in ms, bits)."""
    floors: Mapping[int, int] = {}
    """View → offset below which everything was purged."""


class Stranded(NamedTuple):
    """Messages of one chunk that go to the quarantine."""

    shelf: int
    base: int
    bits: int
    data: bytes
    dues: tuple[tuple[int, int], ...] = ()


class Sifter:
    """Selects the messages of one tail that are kept. Pass it the entries' effects, those of the last entry first."""

    def __init__(self) -> None:
        self._gone: set[tuple[int, int, int]] = set()
        self._settled: dict[tuple[int, int, int], int] = {}
        self._floors: dict[tuple[int, int], int] = {}
        self._moved: set[tuple[int, str]] = set()
        """Messages that are in another place at the end of the tail: dead letters and late messages."""

    def take(self, happened: Happened) -> list[Stranded]:
        """Returns the messages to keep of the chunks that this entry wrote."""
        replica = happened.replica
        for (view, base), bits in happened.settled.items():
            self._settled.setdefault((replica, view, base), bits)
        for view, floor in happened.floors.items():
            self._floors.setdefault((replica, view), floor)
        kept = []
        for chunk in happened.chunks:
            place = replica, chunk.shelf, chunk.base
            if chunk.data is None:
                self._gone.add(place)
            elif chunk.is_new is not False and (bits := self._kept(happened, chunk, chunk.data)):
                dues = tuple(happened.dues.get(chunk.base, ())) if is_scheduled(chunk.shelf) else ()
                kept.append(Stranded(chunk.shelf, chunk.base, bits, chunk.data, dues))
        return kept

    def _kept(self, happened: Happened, written: Written, data: bytes) -> int:
        replica, view = happened.replica, view_of(written.shelf)
        try:
            chunk = decode_chunk(data, seed=replica, offset=Offset(written.base))
            ids, moved_at = clear_column(chunk, "id"), clear_column(chunk, "at")
            there = (1 << chunk.count) - 1 & ~holes(chunk)
        except (CorruptEntry, ValueError):
            return 1  # the content is unknown: the chunk is kept, and shown as damaged
        is_gone = (replica, written.shelf, written.base) in self._gone
        is_gone = is_gone or written.base + chunk.count <= self._floors.get((replica, view), 0)
        live = 0 if is_gone else there & ~self._settled.get((replica, view, written.base), 0)
        bits = 0
        for number in indexes(there):
            name = ids[number] if ids is not None and ids[number] else None
            key = replica, name or message_id(happened.partition, chunk.base + number)
            if moved_at is not None and moved_at[number] is not None:
                if live >> number & 1:
                    self._moved.add(key)
            elif live >> number & 1 or key in self._moved:
                bits |= 1 << number
        return bits


def where(epoch: Epoch, offset: int, epochs: Sequence[EpochStart], end: int) -> Where:
    """Returns whether the log up to `end` with these epochs has the entry of `epoch` at `offset`.

    Two entries of one epoch at one offset are the same entry, and epochs never go back along a log.
    """
    if offset >= end:
        return "lacked" if epochs and epoch < epochs[-1].epoch else "unknown"
    known: EpochStart | None = None
    for start in epochs:
        if start.start <= offset:
            known = start
    if known is None:
        return "unknown"
    return "there" if known.epoch == epoch else "lacked"
