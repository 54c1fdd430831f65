"""Counts what is left of slots in a partition that no longer takes them, by reading chunk after chunk from disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, clear_column, holes
from backend_store.core.log.sublogs import MAIN, MAIN_SHELVES
from backend_store.core.partitions.slots import UNKEYED, slot_of, slots_of_keys
from backend_store.node.views.scan_scheduler import Look

if TYPE_CHECKING:
    from backend_store.core.ready.key_index import Key
    from backend_store.node.partition import Partition


class Left(NamedTuple):
    """A chunk, and its unsettled messages by slot."""

    chunk: Chunk
    by_slot: dict[int, int]


def left_in(partition: Partition, chunk: Chunk) -> Left:
    gone = partition.progress(chunk.base).settled | holes(chunk)
    is_strict = partition.config.ordering == "strict"
    return Left(chunk, by_slot(clear_column(chunk, "key"), (1 << chunk.count) - 1 & ~gone, is_strict=is_strict))


def by_slot(keys: Sequence[Key] | None, bits: int, *, is_strict: bool = True) -> dict[int, int]:
    """Bits by slot, of some messages. Without strict order, messages without a key are under `UNKEYED`: their chunk
    does not say what else routed them."""
    keyless = slot_of("") if is_strict else UNKEYED
    if keys is None:
        return {keyless: bits}
    out: dict[int, int] = {}
    numbers = [*indexes(bits)]
    own = [keys[number] for number in numbers]
    for number, key, slot in zip(numbers, own, slots_of_keys([key or "" for key in own]), strict=True):
        if key is None:
            slot = keyless
        out[slot] = out.get(slot, 0) | 1 << number
    return out


class SlotRemains:
    """What is left of some slots in all partitions of a queue, remembered from one look to the next.

    Slots that are not taken get no more messages, so what one look found settled is not read again. Nothing of them
    lies beyond the `end` of the first look, unless a message is redriven, which moves `end`.
    """

    def __init__(self, slots: int):
        self.slots = slots
        self._marks: dict[Partition, _Marks] = {}

    def look(self, partitions: Sequence[Partition], *, chunks_max: int) -> Look[int]:
        """How many messages are left. If `chunks_max` were read or time is up: at least so many, and at least one. 0
        may not be on all disks yet: what the commit in flight settles counts as settled."""
        found = looked = 0
        is_over = False
        for partition in partitions:
            marks = self._marks_of(partition)
            for shelf in (MAIN, *MAIN_SHELVES):
                base, is_clear = marks.firsts.get(shelf, 0), True
                while (chunk := partition.read(base, shelf)) is not None and chunk.base < marks.end:
                    if is_over or looked == chunks_max:
                        return max(found, 1)
                    looked += 1
                    left = self._left(partition, chunk)
                    found += left
                    is_clear = is_clear and not left
                    base = chunk.base + chunk.count
                    if is_clear:
                        marks.firsts[shelf] = base
                    is_over = yield
        if not all(self._marks[one].is_whole(one) for one in partitions):
            return max(found, 1)
        return found

    def _left(self, partition: Partition, chunk: Chunk) -> int:
        own = left_in(partition, chunk).by_slot
        return sum(bits.bit_count() for slot, bits in own.items() if self.slots >> slot & 1)

    def _marks_of(self, partition: Partition) -> _Marks:
        marks = self._marks.get(partition)
        if marks is None:
            marks = self._marks[partition] = _Marks(partition)
        elif not marks.is_whole(partition):
            marks.renew(partition)
        return marks


class _Marks:
    """How far looks at a partition have come: below `firsts`, by shelf, nothing is left."""

    __slots__ = ("end", "firsts", "strays")

    def __init__(self, partition: Partition):
        self.firsts: dict[int, int] = {}
        self.renew(partition)

    def renew(self, partition: Partition) -> None:
        self.end = partition.decided.end
        self.strays = partition.inbox.strays

    def is_whole(self, partition: Partition) -> bool:
        """Whether everything below the end can be read, and nothing came after it."""
        return self.end <= partition.state.high_watermark and self.strays == partition.inbox.strays
