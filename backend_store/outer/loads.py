"""What each queue of a hot cluster needs, and each that clusters share, as far as that is known: its part of what the
cluster has to do.

A cluster that is full of messages counts what queues hold, any other what was published and acked since the last look.
Each of several clusters that share a queue has as much of that as it has of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend_store.client.pulses import Pulse
from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import RELIEF_MS
from backend_store.core.outer.merging import Shared
from backend_store.core.outer.relief import Load
from backend_store.metadata.sharing import places_left
from backend_store.model import QueueDefinition
from backend_store.remote.moving import QueueShare
from backend_store.remote.store import RemoteBackends


class Measured(NamedTuple):
    loads: list[Load]
    """Of queues in hot clusters; none at the first look at one. What is on its way, or lies in several, is counted
    where it lies, and is not among them: it neither moves nor is split again."""
    shared: list[Shared]
    """All that several clusters share, and nothing of which is on its way."""


class Loads:
    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self._before: dict[int, int] = {}
        """Uid → what its queue had done, when it was looked at last."""
        self._looked_ms = 0
        self._looked_for: list[QueueDefinition] = []
        """Shared queues, and what was found of them."""
        self._found: list[Shared] = []

    def of(self, clusters: Mapping[str, Cluster], now_ms: int) -> Measured:
        """Looks at no queue while no cluster is hot and none is shared; for those that are shared alone once a minute,
        for of 100,000 queues a look takes a fifth of a second."""
        shared = self._store.moves.shared()
        hot = {name for name, cluster in clusters.items() if cluster.is_hot}
        if not hot and shared == self._looked_for and abs(now_ms - self._looked_ms) < RELIEF_MS:
            return Measured([], self._found)
        before, self._looked_ms, self._looked_for = self._before, now_ms, shared
        lie_in = {one.uid: [share.cluster for share in self._shares(one)] for one in shared}
        counted = hot.union(*lie_in.values()) & clusters.keys()
        found, needs = self._needs({name: clusters[name] for name in counted}) if counted else ({}, {})
        self._found = [
            Shared(
                one.tenant,
                one.name,
                {name: needs.get(name, {}).get(one.uid, 0.0) for name in lie_in[one.uid]},
                is_measured=one.uid in found and one.uid in before,
                places_left=places_left(one),
            )
            for one in shared
        ]
        loads = [
            Load(found[uid].tenant, found[uid].name, name, needed, found[uid].config.partitions)
            for name in hot
            for uid, needed in needs[name].items()
            if needed and not found[uid].is_on_its_way
        ]
        return Measured(loads, self._found)

    def _needs(self, clusters: Mapping[str, Cluster]) -> tuple[dict[int, QueueDefinition], dict[str, dict[int, float]]]:
        """The queues there that are known, and by cluster what each needs, in nodes' worth of capacity; both by uid."""
        weights: dict[str, dict[int, float]] = {name: {} for name in clusters}
        found: dict[int, QueueDefinition] = {}
        done: dict[int, int] = {}
        for definition in self._store.all_definitions():
            shares = [one for one in self._shares(definition) if one.cluster in clusters]
            if not shares or (pulse := self._store.last_pulse(definition)) is None:
                continue
            uid = definition.uid
            found[uid] = definition
            done[uid] = pulse.published_total + pulse.acked_total
            for name, share in shares:
                is_full = clusters[name].report.fullest == "disk"
                weight = _held(pulse) if is_full else max(0, done[uid] - self._before.get(uid, done[uid]))
                weights[name][uid] = weight * share
        self._before = done
        needs = {}
        for name, of_queue in weights.items():
            each = _used(clusters[name]) / (sum(of_queue.values()) or 1.0)
            needs[name] = {uid: weight * each for uid, weight in of_queue.items()}
        return found, needs

    def _shares(self, definition: QueueDefinition) -> list[QueueShare]:
        if definition.beside:
            return self._store.moves.shares(definition)
        cluster = self._store.clusters.get(definition.cluster)  # nearly all of 100,000 queues
        return [QueueShare(cluster.name, 1.0)] if cluster is not None else []


def _held(pulse: Pulse) -> int:
    return pulse.ready + pulse.in_flight + pulse.delayed + pulse.dead


def _used(cluster: Cluster) -> float:
    return cluster.report.utilisation * cluster.report.nodes
