"""The metrics of `pushq manager`: whether it is active, its rounds, the clusters it hears, its calls and its moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.outer.manager import Manager
from backend_store.shard.health import Answer
from gateway.admission.loop_lag import LoopLag
from gateway.observability.exposition import Format
from gateway.observability.metrics import process


def page(manager: Manager, lag: LoopLag) -> Callable[[str], Answer]:
    """The metrics page, as a function of the request's `Accept`."""

    def metrics(accept: str) -> Answer:
        form = Format(accept)
        families = [*_families(manager), *process.families(lag)]
        return HTTPStatus.OK, form.content_type, form.page(form.part(families), form.process())

    return metrics


def _families(manager: Manager) -> Iterator[Metric]:
    for name, text, value in (
        ("pushq_manager_active", "Whether this process manages the clusters.", manager.is_acting),
        (
            "pushq_manager_home_answers",
            "Whether the home cluster, which stores the manager's state, responds.",
            manager.is_well,
        ),
        ("pushq_manager_provisioner_calls_in_progress", "Provisioner calls in progress.", manager.under_way),
    ):
        gauge = GaugeMetricFamily(name, text)
        gauge.add_metric((), value)
        yield gauge
    heard = GaugeMetricFamily(
        "pushq_manager_cluster_heard",
        "Whether the cluster reported at the active manager's last check.",
        labels=("cluster",),
    )
    for cluster in manager.named if manager.is_acting else ():
        heard.add_metric((cluster,), cluster in manager.heard)
    yield heard
    for name, text, count in (
        ("looks", "Cluster checks, including those of standby managers.", manager.looks),
        ("failures", "Cluster checks that failed; see the log.", manager.failures),
        ("provisioner_calls", "Calls to the provisioner.", manager.calls_made),
        ("provisioner_failures", "Calls to the provisioner that failed.", manager.calls_failed),
        ("moves", "Moves, splits and merges of queues between clusters that the manager started.", manager.moves_begun),
        ("move_failures", "Moves that the manager wanted but did not start; events say why.", manager.moves_failed),
    ):
        counter = CounterMetricFamily(f"pushq_manager_{name}", text)
        counter.add_metric((), count)
        yield counter
