"""What a quiet queue was like: rows that nobody wrote, for they follow from the last one and from when it was looked.

A queue that nothing happens to keeps its levels, its rates are none, and its oldest message grows old. So it costs
nothing while it is quiet, and its rows are made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Final

from gateway.series.core.columns import OLDEST, QUEUE_COLUMNS, QUEUE_LEVELS
from gateway.series.core.ring import NOTHING, TIERS, Series

_STEP_MS: Final = TIERS[0].step_ms
_RATIOS: Final = tuple(tier.step_ms // _STEP_MS for tier in TIERS)
_NO_RATES: Final = (0.0,) * (len(QUEUE_COLUMNS) - len(QUEUE_LEVELS))


def quiet_row(row: Sequence[float], slots: int) -> tuple[float, ...]:
    """The row that follows `slots` steps of the finest tier later, if nothing happens. An age of 0 says that there is
    no message."""
    age_ms = row[OLDEST]
    levels = (*row[:OLDEST], age_ms + slots * _STEP_MS if age_ms else 0.0, *row[OLDEST + 1 : len(QUEUE_LEVELS)])
    return levels + _NO_RATES


def catch_up(series: Series, looked: Series, end: int) -> None:
    """Writes the rows that are missing before slot `end` of the finest tier. `looked`: a series with a row whenever the
    process looked; when it did not, nothing is known."""
    base = series.rings[0].last
    row = series.rings[0].row(base)
    if base == NOTHING or row is None or end <= base + 1:
        return
    # Up to the end of the longest step that has other rows in it they are written one by one, so that all count there.
    whole = (base // _RATIOS[-1] + 1) * _RATIOS[-1]
    for slot in range(base + 1, min(whole, end)):
        if was_looked_at(looked, slot):
            series.write(slot * _STEP_MS, quiet_row(row, slot - base))
    if end <= whole:
        return
    series.close(whole * _STEP_MS)
    for number, (tier, ratio) in enumerate(zip(TIERS, _RATIOS, strict=True)):
        ring, over = series.rings[number], end // ratio
        for slot in range(max(ring.last + 1, whole // ratio, over - tier.rows), over):
            if was_looked_at(looked, slot, number):
                ring.write(slot, quiet_row(row, (slot + 1) * ratio - 1 - base))


def was_looked_at(looked: Series, slot: int, number: int = 0) -> bool:
    """Whether the process looked in a slot of a tier. Of what is too old for that tier a coarser one still tells."""
    for tier in range(number, len(TIERS)):
        ring, place = looked.rings[tier], slot * _RATIOS[number] // _RATIOS[tier]
        if place > ring.last - ring.rows:
            return _has_row(looked, tier, place)
    return False


def _has_row(looked: Series, tier: int, place: int) -> bool:
    """A step that is not over has one where finer ones do."""
    ring = looked.rings[tier]
    if place > ring.last:
        finer = _RATIOS[tier] // _RATIOS[tier - 1] if tier else 0
        return any(_has_row(looked, tier - 1, place * finer + one) for one in range(finer))
    found = ring.row(place)
    return found is not None and not isnan(found[0])
