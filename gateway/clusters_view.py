"""What a gateway shows of all clusters: the rows of the out-cluster manager, and the queues that are defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from backend_store.client import Documents, outer, timestamp
from backend_store.model import QueueDefinition
from gateway.api.cluster_shapes import ClusterManagers, ClustersState, ClusterSummary, ManagerEvent

Model = Literal["leader_follower", "independent_hosts"]
Models = Callable[[], Mapping[str, Model | None]]
"""The clusters of the settings, the home cluster first, and how their backends share queues."""


class Known(Protocol):
    """The store of a gateway."""

    @property
    def documents(self) -> Documents: ...

    def all_definitions(self) -> list[QueueDefinition]: ...


class ClustersView:
    def __init__(self, store: Known, models: Models, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._models = models
        self._clock_ms = clock_ms

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
        models, known, now_ms = self._models(), outer.clusters_of(self._store.documents.all), self._clock_ms()
        home = next(iter(models))
        queues = Counter(cluster_of(definition) or home for definition in self._store.all_definitions())
        return [
            _summary(name, known.get(name), model, queues[name], now_ms, is_home=name == home)
            for name, model in models.items()
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


def model_of(lanes: int) -> Model:
    return "independent_hosts" if lanes else "leader_follower"


def cluster_of(definition: QueueDefinition) -> str:
    """ "" is the home cluster."""
    return ""


def _summary(
    name: str, cluster: outer.Cluster | None, model: Model | None, queues: int, now_ms: int, *, is_home: bool
) -> ClusterSummary:
    if cluster is None:
        return ClusterSummary(name, is_home, model, None, queues, None, None, "silent", None, None, None)
    report, hot_ms = cluster.report, cluster.hot_since_ms
    return ClusterSummary(
        name,
        is_home,
        model,
        report.nodes,
        queues,
        round(report.utilisation, 3),
        report.fullest or None,
        cluster.state(now_ms),
        report.detail or None,
        None if hot_ms is None else timestamp(hot_ms),
        timestamp(report.at_ms),
    )


def _event(event: outer.Event) -> ManagerEvent:
    return ManagerEvent(
        event.number, timestamp(event.time_ms), event.kind, event.cluster or None, event.text, event.manager or None
    )
