"""The metrics of `pushq backend`: of its shards, of its work as manager of its cluster, and of the process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from http import HTTPStatus

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from backend_store.shard.health import Answer, ShardHealth, health_of
from backend_store.shard.host import BackendHost
from gateway.admission.loop_lag import LoopLag
from gateway.observability.exposition import Format
from gateway.observability.metrics import process as process_metrics


def page(host: BackendHost, lag: LoopLag) -> Callable[[str], Answer]:
    """The metrics page, as a function of the request's `Accept`."""

    def metrics(accept: str) -> Answer:
        form = Format(accept)
        families = [*_of_shards(health_of(host).shards), *_of_host(host), *host.more_metrics()]
        families += process_metrics.families(lag)
        return HTTPStatus.OK, form.content_type, form.page(form.part(families), form.process())

    return metrics


_SHARDS: tuple[tuple[str, str, Callable[[ShardHealth], float | None]], ...] = (
    ("serving", "Whether this backend serves the shard.", lambda shard: shard.is_serving),
    ("epoch", "The shard's leadership epoch.", lambda shard: shard.epoch),
    ("in_sync", "Replicas that are in sync.", lambda shard: len(shard.in_sync)),
    ("wanted_replicas", "Replicas the shard should have.", lambda shard: len(shard.wanted)),
    ("min_in_sync_replicas", "With fewer replicas in sync, nothing is confirmed.", lambda shard: shard.min_in_sync),
    (
        "lag_entries",
        "Log entries the slowest replica lacks, as reported by the leader.",
        lambda shard: shard.lag,
    ),
    ("log_entries", "Log entries retained.", lambda shard: shard.end - shard.start),
    (
        "unconfirmed_entries",
        "Log entries not known to be on all in-sync replicas.",
        lambda shard: shard.end - shard.high_watermark,
    ),
    (
        "quarantined_messages",
        "Confirmed messages that were truncated from the log and wait for pushq recover.",
        lambda shard: shard.quarantined,
    ),
    (
        "damaged_rows",
        "Corrupt rows on this disk, until the copy is rebuilt.",
        lambda shard: shard.damaged,
    ),
    (
        "ahead_of_record",
        "Whether the log is newer than the coordinator's record, which was restored from a copy.",
        lambda shard: shard.is_ahead,
    ),
)
"""(name after `pushq_shard_`, help, value of a shard); a value of None is left out."""


def _of_shards(shards: tuple[ShardHealth, ...]) -> Iterator[Metric]:
    for name, text, value in _SHARDS:
        gauge = GaugeMetricFamily(f"pushq_shard_{name}", text, labels=("shard",))
        for shard in shards:
            if (number := value(shard)) is not None:
                gauge.add_metric((str(shard.shard),), number)
        yield gauge


def _of_host(host: BackendHost) -> Iterator[Metric]:
    manager, disk = host.manager, shutil.disk_usage(host.config.directory)
    for name, text, value in (
        ("pushq_backend_peers", "Open connections to other backends.", host.lines.connected),
        ("pushq_backend_manager", "Whether this backend manages the cluster.", manager.is_manager),
        ("pushq_disk_used_ratio", "How full the data folder's disk is, from 0 to 1.", disk.used / disk.total),
    ):
        gauge = GaugeMetricFamily(name, text)
        gauge.add_metric((), value)
        yield gauge
    for name, text, count in (
        (
            "dropped_messages",
            "Messages to other backends that were dropped because the connection was missing or full.",
            host.lines.dropped,
        ),
        (
            "other_versions",
            "Connections of gateways and other backends refused for their protocol version.",
            host.lines.strangers.refused,
        ),
        ("elections", "Elections run by this backend as manager.", manager.elections),
        ("moves", "Shard copies this backend, as manager, had rebuilt elsewhere.", manager.moves),
        (
            "copied_bytes",
            "Bytes this backend has read for shard copies rebuilt elsewhere.",
            host.pace.taken,
        ),
        (
            "repairs",
            "Shard copies this backend rebuilt because of corrupt rows.",
            sum(shard.replicated.repairs for shard in host.shards.values()),
        ),
        (
            "scrubbed_bytes",
            "Bytes this backend has read to check for corruption.",
            host.scrub.read_bytes,
        ),
        ("scrubs", "Complete corruption checks of all copies on this backend.", host.scrub.passes),
        (
            "manager_failures",
            "Internal errors of this backend as manager; see its log.",
            manager.failures,
        ),
    ):
        counter = CounterMetricFamily(f"pushq_backend_{name}", text)
        counter.add_metric((), count)
        yield counter
