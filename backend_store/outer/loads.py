"""The load of each queue in a hot cluster, and of each queue that clusters share: its part of the cluster's work, as
far as that is known.

In a cluster that is full of messages, a queue's part counts what the queue holds; in any other, what was published and
acked since the last look. Each of several clusters that share a queue gets the part that it has of the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from backend_store.client.pulses import Pulse, Toucher, Touches
from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import RELIEF_MS
from backend_store.core.outer.merging import Shared
from backend_store.core.outer.relief import Load
from backend_store.metadata.sharing import places_left
from backend_store.model import QueueDefinition
from backend_store.remote.definitions.moves import QueueShare
from backend_store.remote.store import RemoteBackends


class Measured(NamedTuple):
    loads: list[Load]
    """Loads of queues in hot clusters; none at the first look at a cluster. Queues that are moving, or are in several
    clusters, count where they are, but are not in this list: they are neither moved nor split again."""
    shared: list[Shared]
    """All queues that several clusters share, and that are not moving."""


class Loads:
    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self._toucher = Toucher(store)
        self._counted: set[str] = set()
        """The clusters whose queues are known here."""
        self._queues: dict[int, QueueDefinition] = {}
        """The queues in these clusters, by uid."""
        self._uids: dict[tuple[str, str], int] = {}
        self._done: dict[int, int] = {}
        """Messages published and acked up to the last look, where the numbers were there."""
        self._held: dict[int, int] = {}
        """Messages held, of each queue that holds any."""
        self._did: dict[int, int] = {}
        """Messages published and acked between the last two looks, of each queue with any."""
        self._new: set[int] = set()
        """Queues that were looked at for the first time."""
        self._looked_ms = 0
        self._looked_for: list[QueueDefinition] = []
        """Shared queues, and their measured loads."""
        self._found: list[Shared] = []

    def of(self, clusters: Mapping[str, Cluster], now_ms: int) -> Measured:
        """Measures the loads. Looks at no queue while no cluster is hot and no queue is shared; while only queues are
        shared, once a minute. Looks at all queues where other clusters count than at the last look, and else at changed
        queues alone: a look at 100,000 queues takes a fifth of a second."""
        shared = self._store.moves.shared()
        hot = {name for name, cluster in clusters.items() if cluster.is_hot}
        if not hot and shared == self._looked_for and abs(now_ms - self._looked_ms) < RELIEF_MS:
            return Measured([], self._found)
        self._looked_ms, self._looked_for = now_ms, shared
        lie_in = {one.uid: [share.cluster for share in self._shares(one)] for one in shared}
        counted = hot.union(*lie_in.values()) & clusters.keys()
        self._look(counted)
        needs = self._needs({name: clusters[name] for name in counted})
        self._found = [
            Shared(
                one.tenant,
                one.name,
                {name: needs.get(name, {}).get(one.uid, 0.0) for name in lie_in[one.uid]},
                is_measured=bool(counted) and one.uid in self._done and one.uid not in self._new,
                places_left=places_left(one),
            )
            for one in shared
        ]
        loads = [
            Load(queue.tenant, queue.name, name, needed, queue.config.partitions)
            for name in hot
            for uid, needed in needs[name].items()
            if needed and not (queue := self._queues[uid]).is_on_its_way
        ]
        return Measured(loads, self._found)

    def _look(self, counted: set[str]) -> None:
        """Updates the counts of the queues in these clusters."""
        self._did, self._new = {}, set()
        if not counted:
            if self._toucher.is_listening:
                self._toucher.take()
            self._counted = counted
            return
        touches, before = self._toucher.take(), self._done
        if touches is None or counted != self._counted:
            self._counted, self._queues, self._uids, self._done, self._held = counted, {}, {}, {}, {}
            for definition in self._store.all_definitions():
                self._define(definition)
            uids: Collection[int] = self._queues
        else:
            uids = {*touches.uids, *self._redefine(touches)} & self._queues.keys()
        for uid in uids:
            self._count(self._queues[uid], before.get(uid))

    def _redefine(self, touches: Touches) -> list[int]:
        """Forgets queues that are gone. Returns the uids of those that are there."""
        gone = {uid for name in touches.defined if (uid := self._uids.pop(name, None)) is not None}
        for uid in gone:
            del self._queues[uid]
        there = [one for one in touches.defined.values() if one is not None]
        for definition in there:
            self._define(definition)
        for uid in gone - self._queues.keys():
            self._done.pop(uid, None)
            self._held.pop(uid, None)
        return [one.uid for one in there]

    def _define(self, definition: QueueDefinition) -> None:
        if any(share.cluster in self._counted for share in self._shares(definition)):
            self._queues[definition.uid] = definition
            self._uids[definition.tenant, definition.name] = definition.uid

    def _count(self, definition: QueueDefinition, before: int | None) -> None:
        """`before`: its count at the last look, where that is known."""
        uid = definition.uid
        self._held.pop(uid, None)
        if (pulse := self._store.last_pulse(definition)) is None:
            self._done.pop(uid, None)
            return
        done = self._done[uid] = pulse.published_total + pulse.acked_total
        if held := _held(pulse):
            self._held[uid] = held
        if before is None:
            self._new.add(uid)
        elif done > before:
            self._did[uid] = done - before

    def _needs(self, clusters: Mapping[str, Cluster]) -> dict[str, dict[int, float]]:
        """By cluster and uid, the need of each queue with any, in nodes' worth of capacity."""
        needs: dict[str, dict[int, float]] = {name: {} for name in clusters}
        for uid in self._held.keys() | self._did.keys():
            for name, share in self._shares(self._queues[uid]):
                if name in clusters:
                    is_full = clusters[name].report.fullest == "disk"
                    if weight := (self._held if is_full else self._did).get(uid, 0) * share:
                        needs[name][uid] = weight
        for name, of_queue in needs.items():
            each = _used(clusters[name]) / (sum(of_queue.values()) or 1.0)
            needs[name] = {uid: weight * each for uid, weight in of_queue.items()}
        return needs

    def _shares(self, definition: QueueDefinition) -> list[QueueShare]:
        if definition.beside:
            return self._store.moves.shares(definition)
        cluster = self._store.clusters.get(definition.cluster)  # nearly all of 100,000 queues
        return [QueueShare(cluster.name, 1.0)] if cluster is not None else []


def _held(pulse: Pulse) -> int:
    return pulse.ready + pulse.in_flight + pulse.delayed + pulse.dead


def _used(cluster: Cluster) -> float:
    return cluster.report.utilisation * cluster.report.nodes
