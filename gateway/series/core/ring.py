"""A ring of rows, one per time step: a row's position follows from its time, so rows are never moved.

Three rings of decreasing resolution make a series. When a coarser step is over, its row is computed from the finer
rows: the worst value of levels, the mean of rates.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isnan, nan
from typing import Final, NamedTuple

NOTHING: Final = -1
"""The slot of an empty ring."""
BACK_SLOTS_MAX: Final = 12
"""How far the clock may go back, in slots of the finest tier: rows are dropped until it has caught up."""


class Tier(NamedTuple):
    """The step and the number of rows of one resolution. `step_ms` divides that of the next tier."""

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
        """The last slot written: its time divided by the step."""
        self.values = array("f", [nan]) * (rows * columns)

    def write(self, slot: int, row: Sequence[float]) -> None:
        """Writes the row of a slot; a slot not above the last one is dropped, as time does not go back."""
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
        """Removes the rows from a slot on."""
        if slot <= self.last:
            self._blank(max(slot, self.last - self.rows + 1), self.last + 1)
            self.last = slot - 1

    def row(self, slot: int) -> array[float] | None:
        """The row of a slot; None if it is overwritten or not written yet."""
        if self.last == NOTHING or not self.last - self.rows < slot <= self.last:
            return None
        at = slot % self.rows * self.columns
        return self.values[at : at + self.columns]

    def column(self, column: int, start: int, end: int) -> list[float]:
        """The values of a column from slot `start` to before `end`."""
        own = memoryview(self.values)[column :: self.columns].tolist()
        first, behind = self.last - self.rows + 1, self.last
        if self.last == NOTHING:
            return [nan] * (end - start)
        return [own[slot % self.rows] if first <= slot <= behind else nan for slot in range(start, end)]


class Series:
    """The rings of one object. The first `levels` columns are levels, the others rates."""

    __slots__ = ("levels", "rings")

    def __init__(self, columns: int, levels: int, tiers: Sequence[Tier] = TIERS):
        self.levels = levels
        self.rings = tuple(Ring(tier.rows, columns) for tier in tiers)

    @property
    def bytes(self) -> int:
        return sum(ring.values.itemsize * len(ring.values) for ring in self.rings)

    def write(self, time_ms: int, row: Sequence[float], tiers: Sequence[Tier] = TIERS) -> None:
        """Adds a row, after closing the coarser steps that end before it."""
        self.go_back(time_ms, tiers)
        self.close(time_ms, tiers)
        self.rings[0].write(time_ms // tiers[0].step_ms, row)

    def go_back(self, time_ms: int, tiers: Sequence[Tier] = TIERS) -> None:
        """Removes rows far ahead of a time, which a wrong clock wrote: they would keep out all others until then. The
        newest of them is kept as the row of the slot before."""
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
        """Writes the rows of coarser steps that are over at a time, as far as there are finer rows."""
        for number in range(1, len(tiers)):
            self._close(number, time_ms // tiers[number].step_ms - 1, tiers)

    def _close(self, number: int, until: int, tiers: Sequence[Tier]) -> None:
        """Writes the row of the last step that is over and has finer rows."""
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
        """The values of a column in slots of a tier, from `start` to before `end`. For a step that is not over, its
        value so far."""
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
        """Reduces several rows to one: the worst of levels, the mean of rates. Rows of NaN are ignored."""
        whole = [row for row in rows if not isnan(row[0])]
        if not whole:
            return [nan] * len(rows[0])
        worst = [max(values) for values in zip(*(row[: self.levels] for row in whole), strict=True)]
        mean = [sum(values) / len(whole) for values in zip(*(row[self.levels :] for row in whole), strict=True)]
        return worst + mean
