"""What each queue of a hot cluster needs, as far as that is known: its part of what the cluster has to do.

A cluster that is full of messages counts what queues hold, any other what was published and acked since the last look.
Each of several clusters that share a queue has as much of that as it has of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend_store.client.pulses import Pulse
from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.relief import Load
from backend_store.model import QueueDefinition
from backend_store.remote.moving import QueueShare
from backend_store.remote.store import RemoteBackends


class Loads:
    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self._before: dict[int, int] = {}
        """Uid → what its queue had done, at the last look."""

    def of(self, clusters: Mapping[str, Cluster]) -> list[Load]:
        """Of the queues in hot clusters; none at the first look at one. What is on its way, or lies in several, is
        counted where it lies, and is not among them: it neither moves nor is split again."""
        hot = {name: cluster for name, cluster in clusters.items() if cluster.is_hot}
        if not hot:
            self._before.clear()
            return []
        weights: dict[str, dict[int, float]] = {name: {} for name in hot}
        found: dict[int, QueueDefinition] = {}
        done: dict[int, int] = {}
        for definition in self._store.all_definitions():
            shares = [one for one in self._shares(definition) if one.cluster in hot]
            if not shares or (pulse := self._store.last_pulse(definition)) is None:
                continue
            uid = definition.uid
            found[uid] = definition
            done[uid] = pulse.published_total + pulse.acked_total
            for name, share in shares:
                is_full = hot[name].report.fullest == "disk"
                weight = _held(pulse) if is_full else max(0, done[uid] - self._before.get(uid, done[uid]))
                weights[name][uid] = weight * share
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
            if weight and not found[uid].is_on_its_way
        ]

    def _shares(self, definition: QueueDefinition) -> list[QueueShare]:
        if definition.beside:
            return self._store.moves.shares(definition)
        cluster = self._store.clusters.get(definition.cluster)  # nearly all of 100,000 queues
        return [QueueShare(cluster.name, 1.0)] if cluster is not None else []


def _held(pulse: Pulse) -> int:
    return pulse.ready + pulse.in_flight + pulse.delayed + pulse.dead


def _used(cluster: Cluster) -> float:
    return cluster.report.utilisation * cluster.report.nodes
