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
        "Requests answered by the metadata service, by operation and outcome.",
        labels=("operation", "outcome"),
    )
    for (operation, outcome), count in traffic.requests.items():
        requests.add_metric((operation, outcome), count)
    yield requests
    yield histogram(
        "pushq_metadata_request_seconds",
        "Response time of the metadata service.",
        [((kind,), seconds) for kind, seconds in traffic.seconds.items()],
        labels=("kind",),
    )
    words = "Requests dropped before they began because nobody waited for them any more."
    yield CounterMetricFamily("pushq_metadata_requests_expired", words, traffic.expired)
    yield _gauge("pushq_metadata_requests_in_progress", "Requests in progress.", traffic.in_progress)
    yield _gauge("pushq_metadata_connections", "Connections from gateways and other hosts.", traffic.connections)
    words = "Connections refused because the secret was missing or wrong."
    yield CounterMetricFamily("pushq_metadata_connections_refused", words, traffic.strangers)
    words = "Connections of servers and other hosts refused for their protocol version."
    yield CounterMetricFamily("pushq_metadata_other_versions", words, traffic.other_versions.refused)
    yield _gauge("pushq_metadata_watches", "Connections that receive every change.", traffic.watches)
    words = "Changes sent to watchers, counted once per watcher."
    yield CounterMetricFamily("pushq_metadata_changes_told", words, traffic.changes_told)


def of_folder(host: MetadataHost) -> Iterator[Metric]:
    """Metrics of a service that stores its records itself."""
    metadata = host.metadata
    entries = GaugeMetricFamily("pushq_metadata_entries", "Records stored by the service.", labels=("what",))
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
        "Record lookups: a hit is answered from memory, a miss by etcd.",
        labels=("outcome",),
    )
    look_ups.add_metric(("hit",), store.hits)
    look_ups.add_metric(("miss",), store.misses)
    yield look_ups
    yield _gauge("pushq_metadata_records", "Records in this host's memory.", store.records)
    yield _gauge("pushq_metadata_arcs", "Ring arcs, of 32, whose records this host holds.", store.arcs)
    yield _gauge("pushq_metadata_hosts", "Live hosts of the service.", len(store.hosts))
    yield _gauge("pushq_metadata_lag_seconds", "Maximum age of this host's copy of etcd.", store.staleness_s)
    yield _gauge("pushq_metadata_ring_version", "Ring version used by this host.", store.ring.version)
    handed = CounterMetricFamily("pushq_metadata_handed_on", "Requests answered by asking another host.")
    handed.add_metric((), 0 if handing is None else handing.handed_on)
    yield handed


def health_of_directory(service: DirectoryService, form: Form) -> Health:
    store = service.store
    return Health("metadata", "ok" if store.is_fresh else "stale", form, store.host, tuple(sorted(store.hosts)))


def _gauge(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric((), value)
    return gauge
