"""How often a figure lay where: counts between bounds, and their sum, as a Prometheus wants them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Example(NamedTuple):
    """One of those that were counted, by which a person finds the rest."""

    trace_id: str
    value: float
    at: float
    """Unix time, seconds."""


class Histogram:
    """Of figures in the unit of `bounds`, which rise."""

    __slots__ = ("began", "bounds", "buckets", "examples", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.began = time.time()
        """Since when it counts: Unix time, seconds."""
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.examples: dict[int, Example] = {}
        """The latest by bucket, of those that had a trace."""

    def add(self, value: float, count: int = 1) -> int:
        """`count` times the same figure. Returns its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.buckets[bucket] += count
        self.sum += value * count
        return bucket

    def cumulative(self) -> list[tuple[str, float, Example | None]]:
        """(upper bound, how many were no greater, an example from between the bounds)."""
        names = [*map(str, self.bounds), "+Inf"]
        return [
            (name, count, self.examples.get(bucket))
            for bucket, (name, count) in enumerate(zip(names, accumulate(self.buckets), strict=True))
        ]
