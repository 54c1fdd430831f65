"""Computes the rows of quiet times, which are not stored: they follow from the last row and the times of sampling.

A queue to which nothing happens keeps its levels, its rates are 0, and its oldest message gets older. So it costs
nothing while it is quiet; its rows are made when its series is read.
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
    """The row `slots` steps of the finest tier later, if nothing happens. An age of 0 means that there is no
    message."""
    age_ms = row[OLDEST]
    levels = (*row[:OLDEST], age_ms + slots * _STEP_MS if age_ms else 0.0, *row[OLDEST + 1 : len(QUEUE_LEVELS)])
    return levels + _NO_RATES


def catch_up(series: Series, looked: Series, end: int) -> None:
    """Writes the rows missing before slot `end` of the finest tier. `looked`: a series with a row for each time the
    process sampled; other slots stay empty."""
    base = series.rings[0].last
    row = series.rings[0].row(base)
    if base == NOTHING or row is None or end <= base + 1:
        return
    # Up to the end of the longest step that has other rows, they are written one by one, so that the coarser row counts
    # all.
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
    """Whether the process sampled in a slot of a tier. A coarser tier answers for slots too old for that tier."""
    for tier in range(number, len(TIERS)):
        ring, place = looked.rings[tier], slot * _RATIOS[number] // _RATIOS[tier]
        if place > ring.last - ring.rows:
            return _has_row(looked, tier, place)
    return False


def _has_row(looked: Series, tier: int, place: int) -> bool:
    """A step that is not over has a row if one of its finer steps has one."""
    ring = looked.rings[tier]
    if place > ring.last:
        finer = _RATIOS[tier] // _RATIOS[tier - 1] if tier else 0
        return any(_has_row(looked, tier - 1, place * finer + one) for one in range(finer))
    found = ring.row(place)
    return found is not None and not isnan(found[0])
