"""The partitions of a stream while they are read: where each ends, and which chunk a reader gets next.

A reader gets the oldest message that no *barrier* holds back: if a key moved from one partition to another, its newer
messages wait until the reader is past the older ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from backend_store.client import (
    Chunk,
    EpochStart,
    Gap,
    StreamPart,
    StreamParts,
    position_in,
    standing,
    where_they_part,
)
from backend_store.model import Position
from push.limits import CHUNK_CACHE_MAX

Others = Mapping[int, Position] | None
"""Where a reader stands in the other partitions; None for a stream that has only the first."""
Logs = Mapping[int, Sequence[EpochStart]]
"""By partition, the epochs of its log; see `StreamPart.epochs`."""


class Head(NamedTuple):
    """The next chunk of a partition for a reader that stands at `place`: the one at `base`."""

    place: int
    base: int
    time_ms: int


class Reading:
    """Where a reader stands: an offset in each partition, and the epochs of the log that the offset belongs to. Both
    mappings may be shared, so they are replaced, never changed."""

    __slots__ = ("epochs", "heads", "places")

    def __init__(self, places: Mapping[int, int], epochs: Logs):
        self.places = places
        self.epochs = epochs
        self.heads: dict[int, Head] = {}

    def move(self, number: int, offset: int) -> None:
        self.places = {**self.places, number: offset}

    def leave(self, number: int) -> None:
        """Forgets a partition that is gone."""
        self.places = {one: place for one, place in self.places.items() if one != number}
        self.epochs = {one: epochs for one, epochs in self.epochs.items() if one != number}

    def stand_at(self, places: Mapping[int, int], epochs: Logs) -> None:
        self.places = places
        self.epochs = epochs
        self.heads.clear()


class Tail:
    """One partition. Caches chunks, so that many readers that catch up decode each once."""

    def __init__(self, part: StreamPart):
        self.part = part
        self.number = part.number
        self.latest = int(part.end)
        """Where the chunks of the last commit begin: a reader that stands there is as good as at the end."""
        self.born = int(part.floor)
        """Where a reader begins that was there before the partition."""
        self.chunks: dict[int, Chunk] = {}

    def place(self, reading: Reading) -> int:
        return reading.places.get(self.number, self.born)

    def lost(self, places: Mapping[int, int]) -> tuple[int, int] | None:
        """What is gone before a reader came to it who stands at these places."""
        return self.part.lost_at(places if self.number in places else {**places, self.number: self.born})

    def parted(self, epochs: Sequence[EpochStart], place: int) -> int | None:
        """Where a reader goes on whose offset is not of this log any more: never after messages that it has not read.
        None if its offset is of this log."""
        parted = where_they_part(epochs, self.part.epochs, place)
        return None if parted is None else max(parted, int(self.part.floor))

    def read(self, place: int) -> Chunk | None:
        """The chunk that contains an offset, or the first one after it."""
        for chunk in self.chunks.values():
            if chunk.base <= place < chunk.base + chunk.count:
                return chunk
        found = self.part.read(place)
        if found is not None:
            while len(self.chunks) >= CHUNK_CACHE_MAX:
                self.chunks.pop(next(iter(self.chunks)))
            self.chunks[found.base] = found
        return found


class Tails:
    """The partitions of one stream, and the moves of readers in them."""

    def __init__(self, parts: StreamParts):
        self._parts = parts
        self._by_number = {part.number: Tail(part) for part in parts.all}
        self._gone: dict[int, int] = {}
        """Floors of partitions that are gone: a reader that had not reached the floor misses what was below it."""

    @property
    def all(self) -> list[Tail]:
        return list(self._by_number.values())

    def refresh(self) -> tuple[list[Tail], list[int]]:
        """Reads the list of partitions again. Returns those that came, and the numbers of those that went."""
        parts = {part.number: part for part in self._parts.all}
        went = [tail for number, tail in self._by_number.items() if parts.get(number) is not tail.part]
        for tail in went:
            self._gone[tail.number] = int(tail.part.floor)
            del self._by_number[tail.number]
        came = [Tail(part) for number, part in parts.items() if number not in self._by_number]
        self._by_number = {tail.number: tail for tail in sorted([*self.all, *came], key=lambda tail: tail.number)}
        return came, [tail.number for tail in went]

    def are_lost(self) -> bool:
        """Whether one of the partitions that the next `refresh` removes was lost."""
        return any(number in self._parts.lost for number in self._by_number)

    def ends(self) -> dict[int, int]:
        return {number: int(tail.part.end) for number, tail in self._by_number.items()}

    def epochs(self) -> Logs:
        return {number: tail.part.epochs for number, tail in self._by_number.items()}

    def cursor(self, reading: Reading) -> str:
        """The cursor with which a reader resumes where it stands."""
        return self._parts.cursor(reading.places)

    def forget(self) -> None:
        """Drops the cached chunks: there are no readers now."""
        for tail in self._by_number.values():
            tail.chunks.clear()

    # ----------------------------------------------------------------------------------------------------- a reader

    def is_near(self, reading: Reading) -> bool:
        """Whether the reader has reached what the last commits added."""
        return all(tail.place(reading) >= tail.latest for tail in self._by_number.values())

    def rewound(self, reading: Reading) -> bool:
        """Whether something that the reader was given is no longer in the log, which goes on in another epoch. Moves
        the reader to where the two logs part. Must be called before anything else."""
        is_rewound = any(reading.places.get(number, 0) > 0 for number in self._parts.lost)
        for number, tail in self._by_number.items():
            before, now = reading.epochs.get(number), tail.part.epochs
            if before is now:
                continue
            parted = tail.parted(before, tail.place(reading)) if before is not None and before != now else None
            places = reading.places if parted is None else {**reading.places, number: parted}
            reading.stand_at(places, {**reading.epochs, number: now})
            is_rewound = is_rewound or parted is not None
        return is_rewound

    def missed(self, reading: Reading) -> list[Gap]:
        """The gaps of what was trimmed before the reader read it. Moves the reader past them."""
        gaps = []
        several = len(self._by_number) > 1
        for number, tail in self._by_number.items():
            if (lost := tail.lost(reading.places)) is not None:
                gaps.append(Gap(*lost, number if several else None))
                reading.move(number, lost[1] + 1)
        for number in [number for number in reading.places if number not in self._by_number]:
            place, floor = reading.places[number], self._gone.get(number, 0)
            if place < floor:
                gaps.append(Gap(place, floor - 1, number))
            reading.leave(number)
        return gaps

    def pass_over(self, reading: Reading, tail: Tail, first: int, end: int) -> Gap:
        """Moves the reader past messages that cannot be shown, and returns their gap."""
        reading.move(tail.number, end)
        return Gap(first, end - 1, tail.number if len(self._by_number) > 1 else None)

    def next(self, reading: Reading) -> tuple[Tail, Chunk] | None:
        """The chunk that the reader is given next, whole; None once it is at the end of all partitions."""
        if len(self._by_number) == 1:
            [tail] = self._by_number.values()
            place = tail.place(reading)
            chunk = tail.read(place) if place < tail.part.end else None
            return (tail, chunk) if chunk is not None else None
        heads = {number: head for number, tail in self._by_number.items() if (head := self._head(tail, reading))}
        stands = self._stands(heads, reading)
        for number in sorted(heads, key=lambda number: heads[number].time_ms):
            tail, base = self._by_number[number], heads[number].base
            if stands[number] == base and (chunk := tail.read(base)) is not None:
                return tail, chunk
        for number in heads:  # there is no cycle of barriers; if there were, out of order would be better than never
            if (chunk := self._by_number[number].read(heads[number].base)) is not None:
                return self._by_number[number], chunk
        return None

    def _stands(self, heads: Mapping[int, Head], reading: Reading) -> dict[int, int]:
        """How far the reader can go before it takes a message: to its heads, unless a barrier holds it back."""
        tails = self._by_number.items()
        ahead = {number: heads[number].base if number in heads else int(tail.part.end) for number, tail in tails}
        places = {number: tail.place(reading) for number, tail in tails}
        return standing(ahead, places, {number: tail.part.barriers for number, tail in tails})

    def _head(self, tail: Tail, reading: Reading) -> Head | None:
        place = tail.place(reading)
        if place >= tail.part.end:
            return None
        known = reading.heads.get(tail.number)
        if known is not None and known.place == place:
            return known
        chunk = tail.read(place)
        if chunk is None:
            return None
        head = reading.heads[tail.number] = Head(place, max(place, chunk.base), chunk.time_ms)
        return head

    def others(self, tail: Tail, places: Mapping[int, int]) -> Others:
        """Where a reader stands in all partitions but one, as its cursor encodes it."""
        if len(self._by_number) == 1 and tail.number == 0:
            return None
        return {
            number: position_in(one.part, places.get(number, one.born))
            for number, one in self._by_number.items()
            if one is not tail
        }
