"""Which cluster a new queue is put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import HOT_AT


def choose(
    clusters: Iterable[Cluster], now_ms: int, *, expected: float = 0.0, pending: Mapping[str, float] | None = None
) -> str | None:
    """Returns the cluster with the most spare capacity after it has taken the queue, or None if none may take it.

    `expected` is the need of the queue, `pending` that of queues placed since the last report, by cluster; both in
    nodes' worth of capacity.
    """
    coming = pending or {}
    best: tuple[float, str] | None = None
    for cluster in clusters:
        nodes = cluster.report.nodes
        if nodes < 1 or not cluster.takes_queues(now_ms):
            continue
        used = cluster.report.utilisation * nodes + coming.get(cluster.name, 0.0) + expected
        if used / nodes >= HOT_AT:
            continue
        spare = nodes - used
        if best is None or (-spare, cluster.name) < best:
            best = -spare, cluster.name
    return best[1] if best is not None else None
