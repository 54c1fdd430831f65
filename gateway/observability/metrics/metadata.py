"""HTTP pages of a metadata service: `/metrics`, `/health` and `/lbz`, at the address of its WebSocket.

They contain no names of queues, tenants or keys, and need no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.metadata.directory.client import Form
from backend_store.metadata.directory.handing import Handing
from backend_store.metadata.directory.service import DirectoryService
from backend_store.metadata.host import MetadataHost
from backend_store.metadata.server import Pages
from backend_store.metadata.traffic import Traffic
from gateway.admission.loop_lag import LoopLag
from gateway.observability.exposition import Format, histogram
from gateway.observability.metrics import process

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

Families = Callable[[], Iterable[Metric]]


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of `/health`."""

    role: str
    status: str
    """"ok", or "stale" while etcd does not answer."""
    form: str
    """"alone", or one of the forms with etcd."""
    host: str = ""
    hosts: tuple[str, ...] = ()
    """Hosts that are alive, with etcd."""


def pages(traffic: Traffic, lag: LoopLag, own: Families, health: Callable[[], Health]) -> Pages:
    def metrics(accept: str) -> tuple[HTTPStatus, str, bytes]:
        form = Format(accept)
        families = [*_of_callers(traffic), *own(), *process.families(lag)]
        return HTTPStatus.OK, form.content_type, form.page(form.part(families), form.process())

    def _health(accept: str) -> tuple[HTTPStatus, str, bytes]:
        found = health()
        return _code(found), JSON, msgspec.json.encode(found)

    def lbz(accept: str) -> tuple[HTTPStatus, str, bytes]:
        found = health()
        return _code(found), TEXT, f"{found.status}\n".encode()

    return {"/metrics": metrics, "/health": _health, "/lbz": lbz}


def _code(health: Health) -> HTTPStatus:
    return HTTPStatus.OK if health.status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE


def _of_callers(traffic: Traffic) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "pushq_metadata_requests",
        "Requests to the metadata service that were answered, by what was asked and how it ended.",
        labels=("operation", "outcome"),
    )
    for (operation, outcome), count in traffic.requests.items():
        requests.add_metric((operation, outcome), count)
    yield requests
    yield histogram(
        "pushq_metadata_request_seconds",
        "How long the metadata service took for an answer.",
        [((kind,), seconds) for kind, seconds in traffic.seconds.items()],
        labels=("kind",),
    )
    words = "Requests that were not begun, because nobody waited for them any more."
    yield CounterMetricFamily("pushq_metadata_requests_expired", words, traffic.expired)
    yield _gauge("pushq_metadata_requests_in_progress", "Requests that are worked on now.", traffic.in_progress)
    yield _gauge("pushq_metadata_connections", "Connections of gateways and of other hosts.", traffic.connections)
    words = "Connections that were refused because the secret was missing or wrong."
    yield CounterMetricFamily("pushq_metadata_connections_refused", words, traffic.strangers)
    words = "Connections of servers and of other hosts that were refused for the version that they speak."
    yield CounterMetricFamily("pushq_metadata_other_versions", words, traffic.other_versions.refused)
    yield _gauge("pushq_metadata_watches", "Connections that are told of every change.", traffic.watches)
    words = "Changes told to those who watch, each as often as it was told."
    yield CounterMetricFamily("pushq_metadata_changes_told", words, traffic.changes_told)


def of_folder(host: MetadataHost) -> Iterator[Metric]:
    """Metrics of a service that stores its records itself."""
    metadata = host.metadata
    entries = GaugeMetricFamily("pushq_metadata_entries", "Records that the service keeps.", labels=("what",))
    counts = {"queues": len(metadata.queues), "keys": len(metadata.keys), "tenants": len(metadata.tenants)}
    for what, count in counts.items():
        entries.add_metric((what,), count)
    yield entries
    yield process.commits(host.commit_seconds)


def of_directory(service: DirectoryService, handing: Handing | None) -> Iterator[Metric]:
    """Metrics of one host of a service whose records are in etcd."""
    store = service.store
    look_ups = CounterMetricFamily(
        "pushq_metadata_look_ups",
        "Records that were looked up: a hit is answered from memory, a miss by etcd.",
        labels=("outcome",),
    )
    look_ups.add_metric(("hit",), store.hits)
    look_ups.add_metric(("miss",), store.misses)
    yield look_ups
    yield _gauge("pushq_metadata_records", "Records of all kinds that this host holds in memory.", store.records)
    yield _gauge("pushq_metadata_arcs", "Arcs of the ring, of 32, whose records this host holds.", store.arcs)
    yield _gauge("pushq_metadata_hosts", "Hosts of the service that are alive.", len(store.hosts))
    yield _gauge("pushq_metadata_lag_seconds", "How old at most is what this host holds of etcd.", store.staleness_s)
    yield _gauge("pushq_metadata_ring_version", "Number of the ring that this host goes by.", store.ring.version)
    handed = CounterMetricFamily("pushq_metadata_handed_on", "Requests that were answered by asking another host.")
    handed.add_metric((), 0 if handing is None else handing.handed_on)
    yield handed


def health_of_directory(service: DirectoryService, form: Form) -> Health:
    store = service.store
    return Health("metadata", "ok" if store.is_fresh else "stale", form, store.host, tuple(sorted(store.hosts)))


def _gauge(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric((), value)
    return gauge
