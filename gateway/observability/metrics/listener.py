"""Metrics of the listener's entrance: certificates, and connections refused for their PROXY header."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.listener.proxy_gate import REFUSALS, Entrance


def families(entrance: Entrance) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        "pushq_proxy_refusals", "Connections closed because of their PROXY header.", labels=("reason",)
    )
    for reason in REFUSALS:
        refused.add_metric((reason,), entrance.refused[reason])
    yield refused
    if (certificates := entrance.certificates) is None:
        return
    expiry = GaugeMetricFamily("pushq_certificate_expiry_timestamp_seconds", "When the certificate expires, Unix time.")
    expiry.add_metric((), certificates.expires_s)
    yield expiry
    loads = CounterMetricFamily("pushq_certificate_reloads", "New certificates, by outcome.", labels=("outcome",))
    loads.add_metric(("loaded",), certificates.reloads)
    loads.add_metric(("refused",), certificates.refusals)
    yield loads
