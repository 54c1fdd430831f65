"""Deduplication in memory: a dict of the newest ids of a partition, and a filter that knows new ids without a read.

An id is known while now − its time < the window. The time is the log's, given by the caller. `id_runs` has the ids that
are on disk; `node/publishing/known_ids` keeps memory and disk in step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from rbloom import Bloom

from backend_store.core.dedupe.id_runs import Known, records, tails


class Bounds(NamedTuple):
    """The limits of an id store, each with its unit last."""

    ids_max: int = 50_000_000
    """Ids that one partition stores; above it publishes are refused: the window is never shortened."""
    recent_ids_max: int = 16_384
    """Ids in the dict. While they are written as a run, as many new ones may be added."""
    arrival_row_ids_min: int = 64
    """An arrival row collects the ids of further commits until it has this many. So a dict has at most 256 rows, and
    one commit can delete all of them."""
    runs_per_merge: int = 16
    step_ids: int = 2048
    """Ids that one commit deals out, sorts or merges in addition to its share for new ids, up to 0.25 µs each."""
    take_ids_min: int = 1024
    """Ids dealt out at once, and the least that each piece of work on a run counts as."""
    step_filter_ids: int = 16_384
    """Ids that one commit adds to the filter after a start, 0.1 µs each."""
    sweep_rows: int = 128
    """Rows of merged and expired runs that one commit deletes."""
    read_rows: int = 2
    """Rows of each run that a merge reads ahead."""
    generation_ids_min: int = 262_144
    """Capacity of the filter's first generation, half a MiB. There is no generation before the first run."""
    generation_growth: int = 8
    """Capacity of a new generation, as a multiple of the ids stored: each generation costs a check per new id."""
    generation_ids_grown: int = 8_000_000
    """Capacity up to which that multiple applies, 16 MiB; above it a generation has room for the ids stored."""


FALSE_POSITIVE_RATE = 5e-4
"""16 bits per id. A false positive costs a read of each run, some 30 µs."""


class Recent:
    """The newest ids of a partition, in order of arrival and by hash. An id that was added twice stands for its later
    message: it is added again only after the window of the earlier one is over.
    """

    __slots__ = ("is_filtered", "slots", "_first", "_hashes", "_tails", "_times")

    def __init__(self, *, is_filtered: bool = False) -> None:
        self.is_filtered = is_filtered
        """Whether the filter has all ids that are in here."""
        self.slots: dict[bytes, int] = {}
        """Hash → the number of its id, counted from the first id that was ever added."""
        self._first = 0
        """The number of the first id that is still here."""
        self._hashes: list[bytes] = []
        self._tails: array[int] = array("Q")
        """The rest of a record behind its hash, two numbers per id: the time, inverted, and the offset."""
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
        """Returns those of the ids that are in here."""
        keys = self.slots.keys()
        return () if keys.isdisjoint(ids) else keys & ids

    def time_of(self, number: int) -> int:
        """Returns the time of the `number`th id in here, counted from 0."""
        return self._times[number]

    def forget(self, count: int) -> None:
        """Drops the `count` oldest ids."""
        for slot, hash_ in enumerate(self._hashes[:count], self._first):
            if self.slots.get(hash_) == slot:
                del self.slots[hash_]
        self._first += count
        del self._hashes[:count], self._tails[: 2 * count], self._times[:count]

    def live(self, horizon_ms: int) -> int:
        """Returns the number of ids after the horizon."""
        return len(self._times) - bisect_right(self._times, horizon_ms)

    def records(self, at_once: int) -> Iterator[list[bytes]]:
        """Yields all ids as the records of a run, unsorted, `at_once` at a time."""
        for at in range(0, len(self._hashes), at_once):
            end = at + at_once
            yield records(self._hashes[at:end], self._tails[2 * at : 2 * end])


class _Generation:
    """The filter of the ids of one period. It is dropped as a whole, when its newest id is out of the window."""

    __slots__ = ("bloom", "newest_ms", "room")

    def __init__(self, room: int):
        # The hash is Python's own, with a new key in each process, so that no producer can choose ids that collide.
        self.bloom = Bloom(room, FALSE_POSITIVE_RATE)
        self.room = room
        self.newest_ms = 0


class Filter:
    """A Bloom filter over the ids of a partition: `maybe` has no false negatives and few false positives.

    A Bloom filter cannot forget a single id, so there are generations: two are enough for a steady flow. A new id costs
    some 50 ns per generation while that is small, and 200 ns when it is far bigger than the processor's caches.
    """

    def __init__(self, bounds: Bounds):
        self._bounds = bounds
        self._generations: list[_Generation] = []

    def maybe(self, ids: Iterable[bytes | None]) -> set[bytes | None]:
        """Returns those of the ids that may have been added before."""
        found: set[bytes | None] = set()
        for generation in self._generations:
            bloom = generation.bloom
            if hits := [one for one in ids if one in bloom]:
                found.update(hits)
        return found

    def make_room(self, count: int, *, stored: int, newest_ms: int) -> None:
        """Makes room before `count` ids are added, the latest of `newest_ms`; `stored`: ids of the partition in all."""
        if not self._generations or self._generations[-1].room < count:
            bounds = self._bounds
            room = max(stored, min(bounds.generation_growth * stored, bounds.generation_ids_grown))
            self._generations.append(_Generation(max(bounds.generation_ids_min, room, count)))
        last = self._generations[-1]
        last.room -= count
        last.newest_ms = max(last.newest_ms, newest_ms)

    def add(self, hashes: Iterable[bytes]) -> None:
        """Adds ids for which `make_room` was called."""
        self._generations[-1].bloom.update(hashes)

    def expire(self, horizon_ms: int) -> None:
        """Drops generations before the horizon. Do not call it between `make_room` and the last `add` that follows."""
        if self._generations and self._generations[0].newest_ms <= horizon_ms:
            self._generations = [g for g in self._generations if g.newest_ms > horizon_ms]
