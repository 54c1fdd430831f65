"""The compressed form of a series, as it is stored in the file, for queues that have been quiet for a while."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from backend_store.client import Pulse
from gateway.series.core.columns import OLDEST, QUEUE_LEVELS
from gateway.series.core.quiet import quiet_row
from gateway.series.core.ring import NOTHING, TIERS, Series

_OVERHEAD_BYTES: Final = 500
_AGE_DIFFERS_MS: Final = 10_000
"""Tolerance between a message's age and the age that follows from a stored row, which counts in slots."""


class Packed(msgspec.Struct, frozen=True):
    """A compressed series: the last slots of its rings, their values, and its last row.

    A series without values consists of that row only.
    """

    lasts: Sequence[int]
    values: Sequence[bytes]
    row: Sequence[float] = ()

    @property
    def bytes(self) -> int:
        """Approximate memory."""
        return _OVERHEAD_BYTES + sum(map(len, self.values))


def begun(slot: int, row: Sequence[float]) -> Packed:
    """A series with one row."""
    return Packed((slot, *(NOTHING for _ in TIERS[1:])), (), row)


def packed(series: Series) -> Packed:
    """Compresses a series; takes 0.1 ms or more."""
    return compressed(copied(series))


def copied(series: Series) -> Packed:
    """A copy with uncompressed values, for a thread to compress."""
    lasts = [ring.last for ring in series.rings]
    return Packed(lasts, [ring.values.tobytes() for ring in series.rings], last_row(series))


def last_row(series: Series) -> Sequence[float]:
    """The last row written; empty where there is none."""
    row = series.rings[0].row(series.rings[0].last)
    return list(row) if row is not None else ()


def compressed(copy: Packed) -> Packed:
    return Packed(copy.lasts, [zlib.compress(one, 1) for one in copy.values], copy.row)


def unpacked(small: Packed, empty: Series) -> Series:
    """Decompresses into `empty`, a new series of the same shape. Raises `ValueError` and `zlib.error` if damaged."""
    if not small.values:
        empty.write(small.lasts[0] * TIERS[0].step_ms, small.row)
        return empty
    for ring, last, one in zip(empty.rings, small.lasts, small.values, strict=True):
        values = array("f")
        values.frombytes(zlib.decompress(one))
        if len(values) != len(ring.values):
            raise ValueError("a ring has an unexpected size")
        ring.values, ring.last = values, last
    return empty


def follows(small: Packed, pulse: Pulse, now_ms: int, steady_ms: int) -> bool:
    """Whether a queue's pulse is what follows from its last row after the time that has passed."""
    if not small.row:
        return False
    since = pulse.oldest_since_ms
    now = (*pulse[:OLDEST], max(1, steady_ms - since) if since else 0, pulse.consumers)
    then = quiet_row(small.row, now_ms // TIERS[0].step_ms - small.lasts[0])[: len(QUEUE_LEVELS)]
    differs_ms = abs(now[OLDEST] - then[OLDEST])
    return (
        bool(now[OLDEST]) == bool(then[OLDEST])
        and differs_ms <= max(_AGE_DIFFERS_MS, then[OLDEST] / 1000)
        and all(one == other for place, (one, other) in enumerate(zip(now, then, strict=True)) if place != OLDEST)
    )
