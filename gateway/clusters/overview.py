"""What a gateway shows of all clusters: the out-cluster manager's records, and in which clusters queues are or move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from backend_store.client import outer, timestamp
from backend_store.model import QueueDefinition
from backend_store.remote.cluster import BackendCluster
from backend_store.remote.definitions.moves import Moves, QueueMove
from backend_store.remote.store import RemoteBackends
from gateway.api.shapes.clusters import (
    ClusterManagers,
    ClusterShare,
    ClustersState,
    ClusterSummary,
    ManagerEvent,
    MoveView,
    QueuePlace,
)

SHARE_DIGITS = 4


class ClustersView:
    def __init__(self, store: RemoteBackends, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._clock_ms = clock_ms

    @property
    def names(self) -> list[str]:
        """The home cluster first."""
        return [cluster.name for cluster in self._store.clusters.values()]

    @property
    def moves(self) -> Moves:
        return self._store.moves

    def cluster_of(self, definition: QueueDefinition) -> str:
        """The name of a queue's cluster; for a cluster not in this gateway's settings, what the definition says."""
        found = self._store.clusters.get(definition.cluster)
        return definition.cluster if found is None else found.name

    def place(self, tenant: str, name: str) -> QueuePlace:
        """Raises `QueueNotFound`."""
        definition = self._store.metadata.find(tenant, name)
        moves = [move_view(move) for move in self.moves.under_way() if (move.tenant, move.queue) == (tenant, name)]
        shares = [ClusterShare(one.cluster, round(one.share, SHARE_DIGITS)) for one in self.moves.shares(definition)]
        return QueuePlace(tenant, name, self.cluster_of(definition), moves, shares, self.moves.goal(definition))

    def state(self) -> ClustersState:
        rows = self._store.documents.all
        return ClustersState(
            self.summaries(),
            self._managers(),
            [_event(event) for event in outer.events_of(rows)],
            outer.proposed_of(rows).plan,
        )

    def summaries(self) -> list[ClusterSummary]:
        """The home cluster first."""
        known, now_ms = outer.clusters_of(self._store.documents.all), self._clock_ms()
        queues = self._store.metadata.spread.queues
        return [
            _summary(cluster, known.get(cluster.name), queues[cluster.key], now_ms)
            for cluster in self._store.clusters.values()
        ]

    def _managers(self) -> ClusterManagers:
        rows, now_ms = self._store.documents.all, self._clock_ms()
        holder = outer.holder_of(rows)
        seen_ms = max((one.report.at_ms for one in outer.clusters_of(rows).values()), default=None)
        return ClusterManagers(
            None if holder is None else holder.name,
            None if holder is None else holder.term,
            None if holder is None else timestamp(holder.since_ms),
            None if seen_ms is None else timestamp(seen_ms),
            seen_ms is None or now_ms - seen_ms > outer.REPORT_MS_MAX,
        )


def move_view(move: QueueMove) -> MoveView:
    share = round(move.share, SHARE_DIGITS)
    return MoveView(
        move.tenant, move.queue, move.source, move.to, move.state, timestamp(move.since_ms), move.left, share
    )


def _summary(cluster: BackendCluster, known: outer.Cluster | None, queues: int, now_ms: int) -> ClusterSummary:
    name, is_home, model = cluster.name, cluster.is_home, _model_of(cluster)
    if known is None:
        state: Literal["unhealthy", "silent"] = "unhealthy" if cluster.why_not else "silent"
        return ClusterSummary(
            name, is_home, model, None, queues, None, None, state, cluster.why_not or None, None, None
        )
    report, hot_ms = known.report, known.hot_since_ms
    return ClusterSummary(
        name,
        is_home,
        model,
        report.nodes,
        queues,
        round(report.utilisation, 3),
        report.fullest or None,
        "unhealthy" if cluster.why_not else known.state(now_ms),
        cluster.why_not or report.detail or None,
        None if hot_ms is None else timestamp(hot_ms),
        timestamp(report.at_ms),
    )


def _model_of(cluster: BackendCluster) -> Literal["leader_follower", "independent_hosts"] | None:
    if not cluster.is_met:
        return None
    return "independent_hosts" if cluster.lanes else "leader_follower"


def _event(event: outer.Event) -> ManagerEvent:
    return ManagerEvent(
        event.number, timestamp(event.time_ms), event.kind, event.cluster or None, event.text, event.manager or None
    )
