"""A ring of rows, one for each step of time: a row's place follows from its time, so nothing is ever moved.

Three rings of falling detail make a series. A coarser row is made from the finer ones when its step is over: of what is
a level the worst, of what is a rate the mean.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isnan, nan
from typing import Final, NamedTuple

NOTHING: Final = -1
"""The slot of a ring that nothing was written to."""
BACK_SLOTS_MAX: Final = 12
"""Of the finest tier: by so many the clock may go back, and rows are dropped until it has caught up."""


class Tier(NamedTuple):
    """Steps of one length, and how many are kept. `step_ms` divides that of the next tier."""

    step_ms: int
    rows: int


TIERS: Final = (Tier(5_000, 180), Tier(20_000, 180), Tier(300_000, 288))
"""A quarter of an hour, an hour, a day."""


class Ring:
    """The rows of one tier. A value that was never written is NaN."""

    __slots__ = ("columns", "last", "rows", "values")

    def __init__(self, rows: int, columns: int):
        self.rows = rows
        self.columns = columns
        self.last = NOTHING
        """The slot written last: its time divided by the step."""
        self.values = array("f", [nan]) * (rows * columns)

    def write(self, slot: int, row: Sequence[float]) -> None:
        """Writes the row of a slot; one that is not above the last is dropped, for time does not go back."""
        if slot <= self.last:
            return
        if slot != self.last + 1 and self.last != NOTHING:
            self._blank(self.last + 1, min(slot, self.last + 1 + self.rows))
        at = slot % self.rows * self.columns
        self.values[at : at + self.columns] = array("f", row)
        self.last = slot

    def _blank(self, start: int, end: int) -> None:
        empty = array("f", [nan]) * self.columns
        for slot in range(start, end):
            at = slot % self.rows * self.columns
            self.values[at : at + self.columns] = empty

    def cut(self, slot: int) -> None:
        """Takes out the rows from a slot on."""
        if slot <= self.last:
            self._blank(max(slot, self.last - self.rows + 1), self.last + 1)
            self.last = slot - 1

    def row(self, slot: int) -> array[float] | None:
        """The row of a slot; None where it is not kept, or not there yet."""
        if self.last == NOTHING or not self.last - self.rows < slot <= self.last:
            return None
        at = slot % self.rows * self.columns
        return self.values[at : at + self.columns]

    def column(self, column: int, start: int, end: int) -> list[float]:
        """The values of a column from slot `start` up to `end`, without it."""
        own = memoryview(self.values)[column :: self.columns].tolist()
        first, behind = self.last - self.rows + 1, self.last
        if self.last == NOTHING:
            return [nan] * (end - start)
        return [own[slot % self.rows] if first <= slot <= behind else nan for slot in range(start, end)]


class Series:
    """The rings of one thing. `levels` columns come first, rates after them."""

    __slots__ = ("levels", "rings")

    def __init__(self, columns: int, levels: int, tiers: Sequence[Tier] = TIERS):
        self.levels = levels
        self.rings = tuple(Ring(tier.rows, columns) for tier in tiers)

    @property
    def bytes(self) -> int:
        return sum(ring.values.itemsize * len(ring.values) for ring in self.rings)

    def write(self, time_ms: int, row: Sequence[float], tiers: Sequence[Tier] = TIERS) -> None:
        """Adds a row; the coarser steps that end before it are made first."""
        self.go_back(time_ms, tiers)
        self.close(time_ms, tiers)
        self.rings[0].write(time_ms // tiers[0].step_ms, row)

    def go_back(self, time_ms: int, tiers: Sequence[Tier] = TIERS) -> None:
        """Where rows stand far ahead of a time, a clock that was wrong wrote them: they would keep out all others until
        then. They go, but how it was last is how it was a moment ago."""
        slot, finest = time_ms // tiers[0].step_ms, self.rings[0]
        if finest.last - slot <= BACK_SLOTS_MAX:
            return
        newest = finest.row(finest.last)
        for ring, tier in zip(self.rings, tiers, strict=True):
            ring.cut(time_ms // tier.step_ms)
        if newest is not None:
            finest.cut(slot - 1)
            finest.write(slot - 1, newest)

    def close(self, time_ms: int, tiers: Sequence[Tier] = TIERS) -> None:
        """Makes the rows of coarser steps that are over at a time, as far as finer rows came."""
        for number in range(1, len(tiers)):
            self._close(number, time_ms // tiers[number].step_ms - 1, tiers)

    def _close(self, number: int, until: int, tiers: Sequence[Tier]) -> None:
        """Makes the row of the last step that has finer rows and is over."""
        finer, ring = self.rings[number - 1], self.rings[number]
        ratio = tiers[number].step_ms // tiers[number - 1].step_ms
        if finer.last == NOTHING:
            return
        slot = min(until, finer.last // ratio)
        if slot > ring.last:
            found = [row for one in range(slot * ratio, (slot + 1) * ratio) if (row := finer.row(one)) is not None]
            if found:
                ring.write(slot, self.reduced(found))

    def column(self, number: int, column: int, start: int, end: int, tiers: Sequence[Tier] = TIERS) -> list[float]:
        """The values of a column in slots of a tier, from `start` up to `end`. The step that is not over is there as
        far as it has come.
        """
        ring = self.rings[number]
        found = ring.column(column, start, end)
        if number and start <= end - 1 > ring.last:
            ratio = tiers[number].step_ms // tiers[number - 1].step_ms
            for slot in range(max(start, ring.last + 1), end):
                parts = self.column(number - 1, column, slot * ratio, (slot + 1) * ratio, tiers)
                there = [value for value in parts if not isnan(value)]
                if there:
                    found[slot - start] = max(there) if column < self.levels else sum(there) / len(there)
        return found

    def reduced(self, rows: Sequence[Sequence[float]]) -> list[float]:
        """One row for several: the worst of levels, the mean of rates. NaN counts for nothing."""
        whole = [row for row in rows if not isnan(row[0])]
        if not whole:
            return [nan] * len(rows[0])
        worst = [max(values) for values in zip(*(row[: self.levels] for row in whole), strict=True)]
        mean = [sum(values) / len(whole) for values in zip(*(row[self.levels :] for row in whole), strict=True)]
        return worst + mean
