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
        ("pushq_manager_active", "Whether this one manages the clusters.", manager.is_acting),
        (
            "pushq_manager_home_answers",
            "Whether the home cluster, which keeps what it knows, answers.",
            manager.is_well,
        ),
        ("pushq_manager_provisioner_calls_in_progress", "Calls to the provisioner under way.", manager.under_way),
    ):
        gauge = GaugeMetricFamily(name, text)
        gauge.add_metric((), value)
        yield gauge
    heard = GaugeMetricFamily(
        "pushq_manager_cluster_heard",
        "Whether the cluster said something of itself at the last look of the one that manages the clusters.",
        labels=("cluster",),
    )
    for cluster in manager.named if manager.is_acting else ():
        heard.add_metric((cluster,), cluster in manager.heard)
    yield heard
    for name, text, count in (
        ("looks", "Looks at the clusters, those without the duty among them.", manager.looks),
        ("failures", "Looks that came to no end; the log has more.", manager.failures),
        ("provisioner_calls", "Calls to the provisioner.", manager.calls_made),
        ("provisioner_failures", "Calls to the provisioner that did not end well.", manager.calls_failed),
        ("moves", "Moves, splits and merges of queues between clusters that it began.", manager.moves_begun),
        ("move_failures", "Moves that it wanted and that were not begun; events say why.", manager.moves_failed),
    ):
        counter = CounterMetricFamily(f"pushq_manager_{name}", text)
        counter.add_metric((), count)
        yield counter
