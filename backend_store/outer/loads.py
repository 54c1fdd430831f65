"""What each queue of a hot cluster needs, as far as that is known: its part of what the cluster has to do.

A cluster that is full of messages counts what queues hold, any other what was published and acked since the last look.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend_store.client.pulses import Pulse
from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.relief import Load
from backend_store.model import QueueDefinition
from backend_store.remote.store import RemoteBackends


class Loads:
    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self._before: dict[int, int] = {}
        """Uid → what its queue had done, at the last look."""

    def of(self, clusters: Mapping[str, Cluster]) -> list[Load]:
        """Of the queues in hot clusters; none at the first look at one."""
        hot = {name: cluster for name, cluster in clusters.items() if cluster.is_hot}
        if not hot:
            self._before.clear()
            return []
        weights: dict[str, dict[int, int]] = {name: {} for name in hot}
        found: dict[int, QueueDefinition] = {}
        done: dict[int, int] = {}
        for definition in self._store.all_definitions():
            cluster = self._store.clusters.get(definition.cluster)
            if cluster is None or cluster.name not in hot or (pulse := self._store.last_pulse(definition)) is None:
                continue
            name, uid = cluster.name, definition.uid
            found[uid] = definition
            done[uid] = pulse.published_total + pulse.acked_total
            is_full = hot[name].report.fullest == "disk"
            weights[name][uid] = _held(pulse) if is_full else max(0, done[uid] - self._before.get(uid, done[uid]))
        self._before = done
        return [
            Load(
                found[uid].tenant,
                found[uid].name,
                name,
                weight / total * _used(hot[name]),
                found[uid].config.partitions,
            )
            for name, of_queue in weights.items()
            if (total := sum(of_queue.values()))
            for uid, weight in of_queue.items()
            if weight
        ]


def _held(pulse: Pulse) -> int:
    return pulse.ready + pulse.in_flight + pulse.delayed + pulse.dead


def _used(cluster: Cluster) -> float:
    return cluster.report.utilisation * cluster.report.nodes
