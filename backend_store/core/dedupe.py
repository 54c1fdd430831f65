"""Which ids a partition has had: the newest in a dict, and for the rest a filter that says "new" without a read.

An id is known while now − its time < the window. The time is the log's, given by the caller. Here is what is in memory;
`id_runs` is what lies on the disk, `node/ids` keeps both in step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from rbloom import Bloom

from backend_store.core.id_runs import Known, records, tails


class Bounds(NamedTuple):
    """What an id store keeps and does at most, each with its unit last."""

    ids_max: int = 50_000_000
    """Ids that one partition stores; above it publishes are refused, the window is never shortened."""
    recent_ids_max: int = 16_384
    """Ids in the dict. While they are written as a run, as many new ones may come again."""
    arrival_row_ids_min: int = 64
    """An arrival row takes in the ids of further commits until it has as many; so a dict has 256 rows at most, or fewer
    and bigger ones, and all of them go in one commit."""
    runs_per_merge: int = 16
    step_ids: int = 2048
    """Ids that one commit deals out, sorts or merges beside what its own new ids allow it, up to 0.25 µs each."""
    take_ids_min: int = 1024
    """Ids dealt out at once, and what each piece of work on a run counts as at least."""
    step_filter_ids: int = 16_384
    """Ids that one commit puts into the filter after a start, 0.1 µs each."""
    sweep_rows: int = 128
    """Rows of merged and expired runs that one commit deletes."""
    read_rows: int = 2
    """Rows of each run that a merge reads ahead."""
    generation_ids_min: int = 262_144
    """Room of the filter's first generation, half a MiB; there is none before the first run."""
    generation_growth: int = 8
    """A generation has room for so many times what is stored when it begins: each one more is asked for each new id."""
    generation_ids_grown: int = 8_000_000
    """Only up to so many ids, 16 MiB; above it for as many as are stored."""


FALSE_POSITIVE_RATE = 5e-4
"""16 bits an id. A false positive costs a read for each run, some 30 µs."""


class Recent:
    """The newest ids in the order in which they came, and by hash. One that came twice is known by its later message.

    The first came when the window had passed it already, or it would not have been added again.
    """

    __slots__ = ("is_filtered", "slots", "_first", "_hashes", "_tails", "_times")

    def __init__(self, *, is_filtered: bool = False) -> None:
        self.is_filtered = is_filtered
        """Whether the filter knows all that is in here."""
        self.slots: dict[bytes, int] = {}
        """Hash → its number, counted from the first id that ever was in here."""
        self._first = 0
        """The number of the first that still is."""
        self._hashes: list[bytes] = []
        self._tails: array[int] = array("Q")
        """What a record has behind its hash, two numbers an id: the time, inverted, and the offset."""
        self._times: array[int] = array("q")
        """Never decreasing."""

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def oldest_ms(self) -> int:
        return self._times[0]

    @property
    def newest_ms(self) -> int:
        return self._times[-1]

    def add(self, hashes: Sequence[bytes], offsets: array[int], time_ms: int) -> None:
        if self._times and time_ms < self.newest_ms:
            time_ms = self.newest_ms
        first = self._first + len(self._hashes)
        self.slots.update(zip(hashes, range(first, first + len(hashes)), strict=True))
        self._hashes += hashes
        self._tails += tails(time_ms, offsets)
        self._times += array("q", [time_ms]) * len(hashes)

    def find(self, hash_: bytes) -> Known | None:
        slot = self.slots.get(hash_)
        if slot is None:
            return None
        place = slot - self._first
        return Known(self._tails[2 * place + 1], self._times[place])

    def among(self, ids: Collection[bytes | None]) -> Collection[bytes | None]:
        """Which of the ids are in here."""
        keys = self.slots.keys()
        return () if keys.isdisjoint(ids) else keys & ids

    def time_of(self, number: int) -> int:
        """When the id came that is the `number`th in here, from 0."""
        return self._times[number]

    def forget(self, count: int) -> None:
        """Drops the oldest."""
        for slot, hash_ in enumerate(self._hashes[:count], self._first):
            if self.slots.get(hash_) == slot:
                del self.slots[hash_]
        self._first += count
        del self._hashes[:count], self._tails[: 2 * count], self._times[:count]

    def live(self, horizon_ms: int) -> int:
        """How many came after the horizon."""
        return len(self._times) - bisect_right(self._times, horizon_ms)

    def records(self, at_once: int) -> Iterator[list[bytes]]:
        """All of it as a run's records, unsorted, so many at a time."""
        for at in range(0, len(self._hashes), at_once):
            end = at + at_once
            yield records(self._hashes[at:end], self._tails[2 * at : 2 * end])


class _Generation:
    """Ids of one stretch of time. They leave together, when the newest is out of the window."""

    __slots__ = ("bloom", "newest_ms", "room")

    def __init__(self, room: int):
        # Its hash is Python's own, keyed anew in each process: nobody can choose ids that collide in it.
        self.bloom = Bloom(room, FALSE_POSITIVE_RATE)
        self.room = room
        self.newest_ms = 0


class Filter:
    """Says of almost every new id that it was never here. It never says so of one that was.

    A filter cannot forget a single id, so there are generations: two are enough for a steady flow. Each costs a new id
    some 50 ns while it is small, and 200 ns when it is far bigger than the processor's caches.
    """

    def __init__(self, bounds: Bounds):
        self._bounds = bounds
        self._generations: list[_Generation] = []

    def maybe(self, ids: Iterable[bytes | None]) -> set[bytes | None]:
        """The ids that may have been here."""
        found: set[bytes | None] = set()
        for generation in self._generations:
            bloom = generation.bloom
            if hits := [one for one in ids if one in bloom]:
                found.update(hits)
        return found

    def make_room(self, count: int, *, stored: int, newest_ms: int) -> None:
        """Before `count` ids are added, the last of `newest_ms`; `stored`: how many there are in all."""
        if not self._generations or self._generations[-1].room < count:
            bounds = self._bounds
            room = max(stored, min(bounds.generation_growth * stored, bounds.generation_ids_grown))
            self._generations.append(_Generation(max(bounds.generation_ids_min, room, count)))
        last = self._generations[-1]
        last.room -= count
        last.newest_ms = max(last.newest_ms, newest_ms)

    def add(self, hashes: Iterable[bytes]) -> None:
        """Adds ids that there was made room for."""
        self._generations[-1].bloom.update(hashes)

    def expire(self, horizon_ms: int) -> None:
        """Drops what came before the horizon. Not between `make_room` and the last `add` that it was for."""
        if self._generations and self._generations[0].newest_ms <= horizon_ms:
            self._generations = [g for g in self._generations if g.newest_ms > horizon_ms]
