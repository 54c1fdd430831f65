"""Metrics of the guards: calls to each dependency, and the state of its circuit breaker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.admission.dependency_guard import OUTCOMES, Guards

STATES: Final = {"closed": 0, "half_open": 1, "open": 2}


def families(guards: Guards) -> Iterator[Metric]:
    label = ("dependency",)
    calls = CounterMetricFamily(
        "pushq_dependency_calls", "Calls to a dependency by outcome.", labels=("dependency", "outcome")
    )
    retries = CounterMetricFamily("pushq_dependency_retries", "Calls to a dependency that were retried.", labels=label)
    state = GaugeMetricFamily(
        "pushq_dependency_state", "The dependency's circuit: 0 closed, 1 half open, 2 open.", labels=label
    )
    seconds = HistogramMetricFamily(
        "pushq_dependency_seconds", "Duration of calls to a dependency, including failed ones.", labels=label
    )
    for guard in guards.all:
        for outcome in OUTCOMES:
            calls.add_metric((guard.name, outcome), guard.calls[outcome])
        retries.add_metric((guard.name,), guard.retries_total)
        state.add_metric((guard.name,), STATES[guard.state])
        seconds.add_metric((guard.name,), guard.latency.cumulative(), guard.latency.sum)
    yield from (calls, retries, state, seconds)
