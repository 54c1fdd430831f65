"""A histogram: counts of values between bounds, and their sum, as Prometheus expects them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Example(NamedTuple):
    """An exemplar: one of the counted values, with the trace that leads to it."""

    trace_id: str
    value: float
    at: float
    """Unix time, seconds."""


class Histogram:
    """Counts values in the unit of `bounds`, which are in ascending order."""

    __slots__ = ("began", "bounds", "buckets", "examples", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.began = time.time()
        """When counting began: Unix time, seconds."""
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.examples: dict[int, Example] = {}
        """The latest exemplar of each bucket, of values that had a trace."""

    def add(self, value: float, count: int = 1) -> int:
        """Counts the same value `count` times. Returns its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.buckets[bucket] += count
        self.sum += value * count
        return bucket

    def cumulative(self) -> list[tuple[str, float, Example | None]]:
        """Per bucket: (upper bound, number of values up to that bound, an exemplar from this bucket or None)."""
        names = [*map(str, self.bounds), "+Inf"]
        return [
            (name, count, self.examples.get(bucket))
            for bucket, (name, count) in enumerate(zip(names, accumulate(self.buckets), strict=True))
        ]
