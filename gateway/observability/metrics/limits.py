"""Metrics of rate limits and caps: what they refused, and the state of counting in Redis."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.admission.throttle import Throttle
from throttling.limiter import Limiter, MemoryLimiter


def families(throttle: Throttle) -> Iterator[Metric]:
    refused = CounterMetricFamily("pushq_rate_limited", "Requests above a rate limit, by rule.", labels=("rule",))
    for rule in sorted({each.name for each in throttle.rules} | throttle.refused.keys()):
        refused.add_metric((rule,), throttle.refused[rule])
    yield refused
    connections = CounterMetricFamily(
        "pushq_too_many_connections", "Connections and subscriptions above a limit.", labels=("kind", "per")
    )
    for (kind, per), count in throttle.census.refused.items():
        connections.add_metric((kind, per), count)
    yield connections
    limiter = throttle.limiter
    local = limiter if isinstance(limiter, MemoryLimiter) else getattr(limiter, "local", MemoryLimiter())
    forgotten = CounterMetricFamily(
        "pushq_rate_subjects_forgotten", "Busy subjects evicted from a rule's full table.", labels=("rule",)
    )
    for rule in (each.name for each in throttle.rules):
        forgotten.add_metric((rule,), local.forgotten_busy[rule])
    yield forgotten
    yield from _shared(limiter)


def _shared(limiter: Limiter) -> Iterator[Metric]:
    """Families about Redis; all zero if rates are counted in this process."""
    away = GaugeMetricFamily("pushq_rate_store_away", "1 while rates that should be counted in Redis are not.")
    away.add_metric((), int(getattr(limiter, "is_store_away", False)))
    yield away
    went = CounterMetricFamily("pushq_rate_store_losses", "Redis timeouts.")
    went.add_metric((), getattr(limiter, "store_away_total", 0))
    yield went
    alone = CounterMetricFamily("pushq_rate_decided_alone", "Requests counted without Redis during an outage.")
    alone.add_metric((), getattr(limiter, "decided_alone_total", 0))
    yield alone
