"""Renders `/metrics` from numbers that the components keep anyway: hardly anything is counted for it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.model import QueueStats
from gateway.admission.loop_lag import LoopLag
from gateway.admission.overload import Overload
from gateway.api.http import Answer, Call
from gateway.api.usage import visible_tenant
from gateway.context import Gateway
from gateway.listener.proxy_gate import Entrance
from gateway.observability.exposition import Format, histogram
from gateway.observability.metrics import (
    alerts,
    catalog,
    clusters,
    dependencies,
    encryption,
    identity,
    limits,
    listener,
    process,
    queues,
    usage,
)
from gateway.observability.metrics import overload as overload_metrics
from gateway.observability.queue_numbers import OTHER, of_queues
from gateway.series.exposition import labelled

Answers = Counter[tuple[str, str, int]]


def page(
    answers: Answers, lag: LoopLag, entrance: Entrance, overload: Overload
) -> Callable[[Gateway, str], Awaitable[Answer]]:
    """The metrics page, as a function of a gateway and an `Accept`. `answers`: counts of the API's answers."""

    async def metrics(gateway: Gateway, accept: str) -> Answer:
        form = Format(accept)
        families = [*_push(gateway), *_api(answers)]
        families += catalog.families(gateway.store)
        families += limits.families(gateway.throttle)
        families += [*dependencies.families(gateway.guards), *listener.families(entrance)]
        families += [*overload_metrics.families(gateway, overload), *usage.families(gateway.usage)]
        families += process.families(lag)
        families += encryption.families(gateway.encryption)
        families += identity.families(gateway)
        families += alerts.families(gateway)
        families += clusters.families(gateway)
        own = form.part(families) + form.process()
        siblings = gateway.siblings
        if siblings is None and gateway.number > 1:
            return _answer(form, own)
        numbers = await gateway.numbers.collect()
        shared = form.part([*_queues(numbers.stats), *queues.families(numbers), *_store(gateway)])
        if siblings is not None:
            own = labelled({1: own.decode(), **await siblings.metrics(form.content_type)}).encode()
        return _answer(form, shared, own)

    return metrics


def _answer(form: Format, *parts: bytes) -> Answer:
    vary = ((b"vary", b"accept"),)
    return Answer(200, form.page(*parts), headers=vary, content_type=form.content_type.encode())


async def of_tenant(gateway: Gateway, call: Call) -> Answer:
    """The metrics of the caller's own queues, for the tenant's own Prometheus."""
    query = call.query("tenant")
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    numbers = await of_queues(gateway.store, tenant)
    families = [*_queues(numbers.stats), *queues.families(numbers)]
    families += alerts.of_tenant(gateway, tenant)
    form = Format(call.headers.get(b"accept", b"").decode("latin-1"))
    return _answer(form, form.part(families))


# ---------------------------------------------------------------------------------------------------- families

_QUEUE_COUNTERS: Final = (
    ("pushq_messages_published", "Messages stored.", "published_total"),
    ("pushq_messages_acked", "Messages acknowledged.", "acked_total"),
)
_QUEUE_GAUGES: Final = (
    ("pushq_queue_ready_messages", "Messages waiting for a consumer.", "ready"),
    ("pushq_queue_in_flight_messages", "Messages in flight.", "in_flight"),
    ("pushq_queue_delayed_messages", "Messages not due yet.", "delayed"),
    ("pushq_queue_dead_messages", "Messages in the queue's own dead letters.", "dead"),
    ("pushq_queue_consumers", "Consumers connected now.", "consumers"),
    ("pushq_queue_stored_bytes", "Stored bytes of live messages, as counted by max_bytes.", "bytes"),
)


def _queues(stats: Mapping[tuple[str, str], QueueStats]) -> Iterator[Metric]:
    labels = ("tenant", "queue")
    for name, text, field in _QUEUE_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=labels)
        for key, value in stats.items():
            counter.add_metric(key, getattr(value, field))
        yield counter
    for name, text, field in _QUEUE_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=labels)
        for key, value in stats.items():
            gauge.add_metric(key, getattr(value, field))
        yield gauge
    age = GaugeMetricFamily(
        "pushq_queue_oldest_age_seconds", "Age of the oldest unacknowledged message.", labels=labels
    )
    for key, value in stats.items():
        age.add_metric(key, value.oldest_age_ms / 1000)
    yield age


def _push(gateway: Gateway) -> Iterator[Metric]:
    hub = gateway.hub
    delivered = CounterMetricFamily(
        "pushq_messages_delivered", "Messages handed to a transport, counting every attempt."
    )
    delivered.add_metric((), hub.delivered)
    yield delivered
    words = "Stream messages that cannot be delivered: each reader gets a gap, and is counted."
    yield CounterMetricFamily("pushq_messages_unshown", words, hub.unshown)
    yield histogram(
        "pushq_push_latency_seconds",
        "Time from accepting a message until its first attempt is handed to a consumer's connection.",
        [((transport,), waits) for transport, waits in hub.waits.items()],
        labels=("transport",),
    )
    connections = GaugeMetricFamily("pushq_connections", "Open connections of consumers.", labels=("transport",))
    counts = {"ws": len(hub.sessions) + len(hub.waiting), "sse": len(hub.streams), "poll": len(hub.polls)}
    for transport, count in counts.items():
        connections.add_metric((transport,), count)
    yield connections
    closes = CounterMetricFamily("pushq_websocket_closes", "WebSockets closed by this server.", labels=("code",))
    for code, count in hub.closes.items():
        closes.add_metric((str(int(code)) if code else "other",), count)
    yield closes
    words = "WebSockets paused for a time because they did not read."
    yield CounterMetricFamily("pushq_consumers_withheld", words, hub.withheld)
    draining = GaugeMetricFamily("pushq_draining", "1 while the server is draining.")
    draining.add_metric((), int(hub.draining))
    yield draining


def _store(gateway: Gateway) -> Iterator[Metric]:
    node = gateway.store.node
    yield process.commits(node.writer.commit_seconds)
    corrupt = CounterMetricFamily("pushq_corrupt_entries", "Corrupt stored entries that were put aside.")
    corrupt.add_metric((), node.quarantined)
    yield corrupt
    missing = CounterMetricFamily("pushq_missing_messages", "Messages that were counted but missing at startup.")
    missing.add_metric((), node.missing)
    yield missing
    rows = CounterMetricFamily("pushq_corrupt_index_rows", "Corrupt index rows found; no message is lost.")
    rows.add_metric((), node.broken_rows)
    yield rows
    accepting = GaugeMetricFamily("pushq_publishes_allowed", "0 while publishes are refused because the disk is full.")
    accepting.add_metric((), int(node.publishes_allowed()))
    yield accepting


def _api(answers: Answers) -> Iterator[Metric]:
    requests = CounterMetricFamily("pushq_http_requests", "API requests answered.", labels=("method", "path", "status"))
    for (method, path, status), count in answers.items():
        requests.add_metric((method, path or OTHER, str(status)), count)
    yield requests
