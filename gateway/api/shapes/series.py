"""Answers of the API with time series: columns of equal length, oldest first; null where nothing was sampled."""

from __future__ import annotations

import msgspec


class SeriesView(msgspec.Struct):
    """Point `i` of each column begins at `start_ms + i * step_ms`."""

    range: str
    step_ms: int
    start: str
    start_ms: int
    series: dict[str, list[float | None]]


class QueueSeriesView(SeriesView):
    queue: str


class SparkView(msgspec.Struct):
    queue: str
    values: list[float | None]


class SparkPage(msgspec.Struct):
    items: list[SparkView]
    next: str | None
    metric: str
    step_ms: int
    start_ms: int
