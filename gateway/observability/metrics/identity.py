"""Metrics of authentication: key sets of issuers, and connections closed by administrators."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.context import Gateway


def families(gateway: Gateway) -> Iterator[Metric]:
    reads = CounterMetricFamily(
        "pushq_key_set_reads", "Loads of issuers' key sets, by outcome.", labels=("issuer", "outcome")
    )
    age = GaugeMetricFamily("pushq_key_set_age_seconds", "When an issuer's keys last changed.", labels=("issuer",))
    for keys in gateway.keyring.fresh_keys:
        for outcome in ("ok", "failed"):
            reads.add_metric((keys.issuer, outcome), keys.reads[outcome])
        if (age_s := keys.age_s) is not None:
            age.add_metric((keys.issuer,), age_s)
    kicked = CounterMetricFamily("pushq_connections_kicked", "Connections closed by an administrator.")
    kicked.add_metric((), gateway.hub.open.kicked)
    yield from (reads, age, kicked)
