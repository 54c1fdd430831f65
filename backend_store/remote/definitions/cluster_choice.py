"""Chooses the cluster for a new queue: that of the queues that it names, else the one with most capacity to spare.

The out-cluster manager reports spare capacity in documents that every gateway has. While no manager reports, the
cluster with the fewest queues per backend is chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import structlog
from msgspec.structs import replace

from backend_store.core.host_lanes.single_lane import needs_single_lane
from backend_store.core.outer.choice import choose
from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.documents import KIND, parsed
from backend_store.metadata.elsewhere import links_of
from backend_store.model import QueueConfig, QueueDefinition, Replication, Unavailable
from backend_store.remote.cluster import BackendCluster
from backend_store.remote.definitions.definitions import RemoteDefinitions
from backend_store.remote.definitions.documents import RemoteDocuments
from backend_store.remote.definitions.replication import Site
from backend_store.remote.limits import CHOOSE_RETRY_MS, QUEUE_NEEDS

log = structlog.get_logger("pushq.remote")


class Choosing:
    """See the file's first sentence. `clusters`: the home cluster first."""

    def __init__(
        self,
        clusters: Sequence[BackendCluster],
        metadata: RemoteDefinitions,
        documents: RemoteDocuments,
        cluster_of: Callable[[QueueDefinition], BackendCluster],
        clock_ms: Callable[[], int],
    ) -> None:
        self._clusters = clusters
        self._metadata = metadata
        self._documents = documents
        self._cluster_of = cluster_of
        self._clock_ms = clock_ms
        self._coming: Counter[str] = Counter()
        """Queues that are being created in a cluster, by its key."""
        self._is_warned = False

    @contextmanager
    def chosen(self, tenant: str, name: str, config: QueueConfig) -> Iterator[tuple[BackendCluster, Site]]:
        """Yields the place for a queue that the block creates. Raises `Unavailable`, also if no cluster may take a
        queue now, and `InvalidRequest` if none has what `config.replication` asks for."""
        asked = config.replication
        needs_one = self._needs_single_lane(tenant, config)
        cluster = self._choose(tenant, name, config, needs_one=needs_one)
        site = cluster.copying.site(asked, needs_one=needs_one)
        if site is None and (tenant, name) in self._metadata.queues:  # the queue exists; its shard compares the configs
            site = cluster.copying.site(Replication(), needs_one=needs_one)
        if site is None:
            _refuse([cluster], name, asked, needs_one=needs_one)
        self._coming[cluster.key] += 1
        try:
            yield cluster, site
        finally:
            self._coming[cluster.key] -= 1

    def _needs_single_lane(self, tenant: str, config: QueueConfig) -> bool:
        """Whether the queue has a single lane at independent hosts: by its config, or that of a queue that it names."""
        linked = (self._metadata.queues.get((tenant, other)) for other in links_of(config))
        return needs_single_lane(config) or any(one is not None and one.single_lane for one in linked)

    def _choose(self, tenant: str, name: str, config: QueueConfig, *, needs_one: bool) -> BackendCluster:
        home, *others = self._clusters
        if not others:
            return home
        for other in (name, *links_of(config)):
            if (known := self._metadata.queues.get((tenant, other))) is not None:
                return self._cluster_of(known)  # where the named queues lie apart, their shard refuses the new one
        ready = [one for one in self._clusters if one.is_ready]
        able = [one for one in ready if one.copying.site(config.replication, needs_one=needs_one) is not None]
        if config.replication.model == "leader_follower":  # a single lane of independent hosts is the second choice
            able = [one for one in able if not one.lanes] or able
        if not able:
            for one in self._clusters:
                hopes = not one.copying.copies or one.copying.site(config.replication, needs_one=needs_one) is not None
                if not (one.is_ready or one.why_not) and hopes:
                    detail = f"queue {name!r}: cluster {one.name!r}, which may match the request, is unreachable"
                    raise Unavailable(detail, retry_after_ms=CHOOSE_RETRY_MS)
            _refuse(ready, name, config.replication, needs_one=needs_one)
        rows, now_ms = self._reported(), self._clock_ms()
        if not any(row.is_heard(now_ms) for row in rows.values()):
            return self._with_fewest(able)
        self._is_warned = False
        chosen = choose(
            [rows[one.name] for one in able if one.name in rows],
            now_ms,
            expected=QUEUE_NEEDS,
            pending={one.name: self._pending(one, rows[one.name]) for one in able if one.name in rows},
        )
        found = next((one for one in able if one.name == chosen), None)
        if found is None:
            shown = [one for one in self._clusters if one in able or one not in ready]
            states = ", ".join(f"{one.name} {_state(one, rows.get(one.name), now_ms)}" for one in shown)
            detail = (
                f"queue {name!r}: no cluster accepts new queues right now ({states}); existing queues are not affected"
            )
            raise Unavailable(detail, retry_after_ms=CHOOSE_RETRY_MS)
        return found

    def _reported(self) -> dict[str, Cluster]:
        """The manager's rows, by cluster name."""
        rows: dict[str, Cluster] = {}
        for name, data in self._documents.all(KIND):
            try:
                rows[name] = parsed(data)
            except ValueError as error:
                log.warning("a row of the out-cluster manager is not understood", cluster=name, error=str(error))
        return rows

    def _pending(self, cluster: BackendCluster, row: Cluster) -> float:
        """Capacity needed by queues created since the cluster's last report, in nodes' worth of capacity."""
        made = self._metadata.spread.since(cluster.key, row.report.at_ms)
        return (made + self._coming[cluster.key]) * QUEUE_NEEDS

    def _with_fewest(self, able: Sequence[BackendCluster]) -> BackendCluster:
        if not self._is_warned:
            self._is_warned = True
            log.warning(
                "no out-cluster manager reports: new queues go to the cluster with the fewest queues per backend"
            )
        held = self._metadata.spread.queues

        def crowd(one: BackendCluster) -> tuple[float, bool, str]:
            return (held[one.key] + self._coming[one.key]) / one.backends, not one.is_home, one.name

        return min(able, key=crowd)


def _refuse(clusters: Sequence[BackendCluster], name: str, asked: Replication, *, needs_one: bool) -> NoReturn:
    """Raises `InvalidRequest` if none of the clusters has what is asked for, `Unavailable` if one may have it soon."""
    for cluster in clusters:
        copying, of = cluster.copying, f"cluster {cluster.name!r}"
        if not copying.copies:
            detail = f"queue {name!r}: backends of {of} do not report their replication, as in earlier versions"
            raise Unavailable(detail, retry_after_ms=CHOOSE_RETRY_MS)
        has = copying.usual(asked, needs_one=needs_one)
        hoped = asked if copying.is_placed else replace(asked, mode=None)
        if hoped.fits(has) or not has.asked():
            detail = f"queue {name!r}: no suitable shard of {of} is placed yet"
            raise Unavailable(detail, retry_after_ms=CHOOSE_RETRY_MS)
    asked.check_at(clusters[0].copying.usual(asked, needs_one=needs_one), name)
    raise AssertionError("what a place has not is refused by its name")


def _state(cluster: BackendCluster, row: Cluster | None, now_ms: int) -> str:
    if not cluster.is_ready:
        return "is unreachable" if not cluster.first.line.is_open else "does not accept this home cluster's queues"
    if row is None or not row.is_heard(now_ms):
        return "does not report"
    if not row.report.is_healthy:
        return "is unhealthy"
    return f"is hot, {row.report.utilisation:.0%} used"
