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
    ("epoch", "Number of the leadership of the shard.", lambda shard: shard.epoch),
    ("in_sync", "Replicas that are in sync.", lambda shard: len(shard.in_sync)),
    ("wanted_replicas", "Replicas that shall keep the shard.", lambda shard: len(shard.wanted)),
    ("min_in_sync_replicas", "With fewer replicas in sync nothing is confirmed.", lambda shard: shard.min_in_sync),
    (
        "lag_entries",
        "Entries of the log that the replica which is furthest behind lacks, told by the leader.",
        lambda shard: shard.lag,
    ),
    ("log_entries", "Entries of the log that are kept.", lambda shard: shard.end - shard.start),
    (
        "unconfirmed_entries",
        "Entries that are not known to be on all replicas in sync.",
        lambda shard: shard.end - shard.high_watermark,
    ),
    (
        "quarantined_messages",
        "Confirmed messages that were cut off the log and wait for pushq recover.",
        lambda shard: shard.quarantined,
    ),
    (
        "damaged_rows",
        "Rows on this disk that are not what was written, until the copy is taken anew.",
        lambda shard: shard.damaged,
    ),
    (
        "ahead_of_record",
        "Whether the log is younger than the coordinator's record, which was put back from a copy.",
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
        ("pushq_backend_peers", "Lines to other backends that are open.", host.lines.connected),
        ("pushq_backend_manager", "Whether this one manages the cluster.", manager.is_manager),
        ("pushq_disk_used_ratio", "How full the disk of the data folder is, from 0 to 1.", disk.used / disk.total),
    ):
        gauge = GaugeMetricFamily(name, text)
        gauge.add_metric((), value)
        yield gauge
    for name, text, count in (
        ("dropped_messages", "Messages to other backends without a line, or with a full one.", host.lines.dropped),
        (
            "other_versions",
            "Connections of gateways and of other backends that were refused for the version that they speak.",
            host.lines.strangers.refused,
        ),
        ("elections", "Elections that this one made as manager.", manager.elections),
        ("moves", "Copies of shards that this one as manager had made elsewhere.", manager.moves),
        (
            "copied_bytes",
            "Bytes that this one has read for copies of shards that are made elsewhere.",
            host.pace.taken,
        ),
        (
            "repairs",
            "Copies of shards that this one took anew because of damaged rows.",
            sum(shard.replicated.repairs for shard in host.shards.values()),
        ),
        (
            "scrubbed_bytes",
            "Bytes that this one has read to see whether they are still what was written.",
            host.scrub.read_bytes,
        ),
        ("scrubs", "How often this one has read all its copies so.", host.scrub.passes),
        (
            "manager_failures",
            "Faults of ours that this one met as manager; its log has more.",
            manager.failures,
        ),
    ):
        counter = CounterMetricFamily(f"pushq_backend_{name}", text)
        counter.add_metric((), count)
        yield counter
