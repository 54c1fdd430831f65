"""When a cluster grows or shrinks, and by how many nodes: late, by enough, and with a pause before the next change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import (
    EXPAND_AFTER_MS,
    HOT_AT,
    NODES_ADDED_MAX,
    PAUSE_DOUBLINGS_MAX,
    PAUSE_MS,
    REPORT_MS_MAX,
    SHRINK_AFTER_MS,
    TARGET,
)


@dataclass(frozen=True, slots=True)
class Resized:
    """The number of nodes that a cluster should have; the provisioner adds nodes, or drains and removes them."""

    cluster: str
    nodes: int
    reason: str


def size(
    cluster: Cluster,
    now_ms: int,
    *,
    nodes_min: int = 3,
    nodes_max: int = 1_000,
    grow_after_ms: int = EXPAND_AFTER_MS,
    shrink_after_ms: int = SHRINK_AFTER_MS,
    pause_ms: int = PAUSE_MS,
) -> Resized | None:
    """Returns the change to make now, or None. A silent cluster is not resized, nor one of independent hosts; one that
    is unhealthy or lacks copies does not shrink.
    """
    nodes, used = cluster.report.nodes, cluster.report.utilisation
    if cluster.report.is_fixed or not cluster.is_heard(now_ms) or nodes < 1 or _is_pausing(cluster, now_ms, pause_ms):
        return None
    is_long = cluster.hot_since_ms is not None and now_ms - cluster.hot_since_ms >= grow_after_ms
    if cluster.hot_since_ms is not None and is_long and used >= HOT_AT:
        wanted = min(math.ceil(used * nodes / TARGET), nodes + NODES_ADDED_MAX, nodes_max)
        if wanted > nodes:
            return Resized(cluster.name, wanted, f"{used:.0%} used for {(now_ms - cluster.hot_since_ms) // 1000} s")
    since_ms = cluster.idle_since_ms
    is_whole = cluster.report.is_healthy and not cluster.report.copies_missing
    if since_ms is None or now_ms - since_ms < shrink_after_ms or not is_whole:
        return None
    if nodes > max(nodes_min, cluster.report.nodes_needed) and used * nodes / (nodes - 1) <= TARGET:
        # One at a time, because a node that leaves must move all its data.
        return Resized(cluster.name, nodes - 1, f"{used:.0%} used for {(now_ms - since_ms) // 1000} s")
    return None


def _is_pausing(cluster: Cluster, now_ms: int, pause_ms: int) -> bool:
    """Whether the pause after the last change is not over. The pause doubles with each growth that did not cool the
    cluster, because more nodes may not help either.
    """
    if cluster.resized_at_ms is None:
        return False
    pause_ms <<= min(max(0, cluster.grown - 1), PAUSE_DOUBLINGS_MAX)
    # A change with a far later time is from a clock that was wrong.
    return -REPORT_MS_MAX <= now_ms - cluster.resized_at_ms < pause_ms


def resized(cluster: Cluster, now_ms: int) -> Cluster:
    """Returns the cluster after a change of size has begun: earlier observations do not apply to the new size."""
    return replace(cluster, resized_at_ms=now_ms, hot_since_ms=None, idle_since_ms=None)


def grown(cluster: Cluster, nodes: int, wanted: int) -> Cluster:
    """Returns the cluster after a change of size, counted as growth if more are `wanted` than its `nodes`."""
    return replace(cluster, grown=cluster.grown + 1) if wanted > nodes else cluster


def called_off(cluster: Cluster) -> Cluster:
    """Returns the cluster after a change of size has failed: its times of observation start again, without a pause."""
    return replace(cluster, resized_at_ms=None, hot_since_ms=None, idle_since_ms=None)
