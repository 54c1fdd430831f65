"""Metrics of the catalogues of remote metadata: cache hits and misses, and the age of what is cached."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.client import Store
from gateway.metadata.remote_store import RemoteStore


def families(store: Store) -> Iterator[Metric]:
    """The families; without samples if the metadata are in this process, where nothing is cached."""
    labels = ("what",)
    look_ups = CounterMetricFamily(
        "pushq_catalogue_look_ups",
        "Lookups of remote metadata: a hit is answered from memory, a stale hit too while the service is unreachable.",
        labels=("what", "outcome"),
    )
    entries = GaugeMetricFamily("pushq_catalogue_entries", "Remote metadata entries in memory.", labels=labels)
    silent = GaugeMetricFamily(
        "pushq_catalogue_silent_seconds",
        "Time since the metadata service was last heard: the maximum staleness of a hit.",
    )
    if isinstance(store, RemoteStore):
        now_ms = store.steady_ms()
        for known in store.catalogues:
            cache = known.cache
            outcomes = {
                "hit": cache.hits - cache.stale,
                "stale": cache.stale,
                "miss": cache.misses - known.joined,
                "joined": known.joined,
                "failed": known.failures,
            }
            for outcome, count in outcomes.items():
                look_ups.add_metric((known.what, outcome), count)
            entries.add_metric((known.what,), len(cache))
        silent.add_metric((), store.queues_known.cache.age_ms(now_ms) / 1000)
    yield from (look_ups, entries, silent)
