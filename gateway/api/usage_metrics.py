"""The series of usage: what was written, what waits, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.usage.export import Exporter


def families(usage: Exporter) -> Iterator[Metric]:
    files = CounterMetricFamily("pushq_usage_files", "Usage files written.", labels=("kind",))
    rows = CounterMetricFamily("pushq_usage_rows", "Rows in the usage files written.", labels=("kind",))
    for kind in ("ledger", "minutes", "audit"):
        files.add_metric((kind,), usage.files[kind])
        rows.add_metric((kind,), usage.rows[kind])
    yield from (files, rows)
    waiting = GaugeMetricFamily("pushq_usage_waiting_seconds", "Age of the oldest ledger row that is in no file.")
    waiting.add_metric((), usage.waiting_seconds)
    full = GaugeMetricFamily("pushq_usage_folder_full", "1 while rows wait because the usage folder is full.")
    full.add_metric((), int(usage.is_full))
    yield from (waiting, full)
    counters = (
        ("pushq_usage_failures", "Times that usage rows could not be written, and waited.", usage.failures),
        ("pushq_usage_rows_lost", "Rows of minutes that could not be written in time.", usage.rows_lost),
        ("pushq_usage_rows_other", "Rows counted under `other`, beyond the most of a minute.", usage.meter.overflowed),
    )
    for name, text, value in counters:
        counter = CounterMetricFamily(name, text)
        counter.add_metric((), value)
        yield counter
