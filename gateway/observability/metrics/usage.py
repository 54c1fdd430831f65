"""Metrics of the usage export: rows written, waiting and lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.usage.export import Exporter
from gateway.usage.schema import FileKind
from gateway.usage.writing import Written


class Exports(Protocol):
    """The exporters of one store or several."""

    @property
    def waiting_seconds(self) -> float: ...

    @property
    def written(self) -> Written: ...


def families(usage: Exporter) -> Iterator[Metric]:
    yield from of_files(usage, ("ledger", "minutes", "audit"))
    yield _counter("pushq_usage_rows_lost", "Minute rows that could not be written in time.", usage.rows_lost)
    text = "Rows counted under `other` because the limit per minute was reached."
    yield _counter("pushq_usage_rows_other", text, usage.meter.overflowed)


def of_files(usage: Exports, kinds: tuple[FileKind, ...]) -> Iterator[Metric]:
    written = usage.written
    files = CounterMetricFamily("pushq_usage_files", "Usage files written.", labels=("kind",))
    rows = CounterMetricFamily("pushq_usage_rows", "Rows written to usage files.", labels=("kind",))
    for kind in kinds:
        files.add_metric((kind,), written.files[kind])
        rows.add_metric((kind,), written.rows[kind])
    yield from (files, rows)
    waiting = GaugeMetricFamily(
        "pushq_usage_waiting_seconds", "Age of the oldest ledger row not exported to a file yet."
    )
    waiting.add_metric((), usage.waiting_seconds)
    full = GaugeMetricFamily("pushq_usage_folder_full", "1 while rows wait because the usage folder is full.")
    full.add_metric((), int(written.is_full))
    yield from (waiting, full)
    text = "Failed writes of usage rows, which then waited."
    yield _counter("pushq_usage_failures", text, written.failures)
    text = "Stored usage rows that cannot be read or exported; see the log."
    yield _counter("pushq_usage_rows_unreadable", text, written.unreadable)


def of_backend(usage: Exports) -> Iterator[Metric]:
    """The families of a backend's page."""
    return of_files(usage, ("ledger", "audit"))


def _counter(name: str, text: str, value: int) -> Metric:
    counter = CounterMetricFamily(name, text)
    counter.add_metric((), value)
    return counter
