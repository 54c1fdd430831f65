"""Metrics of the clusters behind this gateway, as the out-cluster manager stored them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.context import Gateway

LABELS = ("cluster",)


def families(gateway: Gateway) -> Iterator[Metric]:
    """The families; empty if the messages are not in clusters."""
    if gateway.clusters is None:
        return
    used = GaugeMetricFamily(
        "pushq_cluster_utilisation_ratio",
        "Average fill level of the cluster's backends, from 0 to 1.",
        labels=LABELS,
    )
    queues = GaugeMetricFamily("pushq_cluster_queues", "Queues whose messages are in the cluster.", labels=LABELS)
    takes = GaugeMetricFamily(
        "pushq_cluster_takes_queues",
        "Whether the cluster is reachable, healthy and not hot; with several clusters, only these get new queues.",
        labels=LABELS,
    )
    for cluster in gateway.clusters.summaries():
        if cluster.utilisation is not None:
            used.add_metric((cluster.name,), cluster.utilisation)
        queues.add_metric((cluster.name,), cluster.queues)
        takes.add_metric((cluster.name,), cluster.state == "ok")
    yield from (used, queues, takes)
