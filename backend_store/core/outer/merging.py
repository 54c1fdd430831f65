"""Which shared queues are merged into one cluster: those that one of their clusters could have handled alone for long.

A queue is split because no cluster could take the whole of it, so it is merged late and with capacity to spare:
otherwise the next small rise would split it again, and both a split and a merge move messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import (
    COLD_QUEUES_MAX,
    MERGE_AFTER_MS,
    MERGE_BELOW,
    MERGE_PLACES_MIN,
    MOVES_PER_ROUND_MAX,
    REPORT_MS_MAX,
)

QueueAt = tuple[str, str]
"""Tenant and name."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A queue that several clusters share, and of which no part is moving."""

    tenant: str
    queue: str
    needs: Mapping[str, float]
    """Its need in each cluster, in nodes' worth of capacity."""
    is_measured: bool = True
    """False if `needs` is unknown at this step: a manager needs two steps to measure it."""
    places_left: int = MERGE_PLACES_MIN
    """How many further places it may be given until no numbers are left."""

    @property
    def of(self) -> QueueAt:
        return self.tenant, self.queue


@dataclass(frozen=True, slots=True)
class ColdQueue:
    """A shared queue that one of its clusters could handle alone."""

    tenant: str
    queue: str
    since_ms: int
    """Since when that has been so without interruption."""

    @property
    def of(self) -> QueueAt:
        return self.tenant, self.queue


@dataclass(frozen=True, slots=True)
class QueueMerged:
    """The whole queue moves to `to`, which already has a part of it."""

    tenant: str
    queue: str
    source: str
    """Another of its clusters."""
    to: str


class ColdQueues:
    """The cold queues of one step."""

    def __init__(
        self,
        known: Sequence[ColdQueue],
        shared: Sequence[Shared],
        clusters: Mapping[str, Cluster],
        now_ms: int,
        *,
        gaps: Set[str],
    ) -> None:
        """`gaps`: clusters that were silent between their last two reports."""
        self._known = tuple(known)
        self._now_ms = now_ms
        self._clusters = clusters
        self._used = {name: one.report.utilisation * one.report.nodes for name, one in clusters.items()}
        self._shared = {one.of: one for one in shared}
        since = {one.of: one.since_ms for one in known}
        watched = [*(of for of in since if of in self._shared), *(of for of in self._shared if of not in since)]
        cold = (of for of in watched if self._is_cold(self._shared[of], was_cold=of in since))
        self._since = {
            of: self._since_ms(since.get(of), is_gap=not gaps.isdisjoint(self._shared[of].needs))
            for of in islice(cold, COLD_QUEUES_MAX)
        }

    def _is_cold(self, one: Shared, *, was_cold: bool) -> bool:
        if one.places_left < MERGE_PLACES_MIN or not self._are_well(one):
            return False
        return bool(self._takers(one, self._used)) if one.is_measured else was_cold

    def _since_ms(self, before_ms: int | None, *, is_gap: bool) -> int:
        """Returns since when a queue is cold: now, if there was a gap in the reports or the clock was far ahead."""
        if before_ms is None or is_gap or before_ms - self._now_ms > REPORT_MS_MAX:
            return self._now_ms
        return before_ms

    @property
    def changed(self) -> tuple[ColdQueue, ...] | None:
        """The cold queues to be written; None: unchanged."""
        found = tuple(ColdQueue(*of, since_ms) for of, since_ms in self._since.items())
        return None if found == self._known else found

    def merges(self, but: Collection[QueueAt]) -> list[QueueMerged]:
        """Returns the merges of one round, without the queues in `but`. They bring no cluster to `MERGE_BELOW`."""
        used, done = dict(self._used), list[QueueMerged]()
        for of in self._ripe():
            one = self._shared[of]
            if of in but or not (takers := self._takers(one, used)):
                continue
            to = takers[0]
            used[to] += _comes(one, to)
            done.append(QueueMerged(*of, next(name for name in one.needs if name != to), to))
            if len(done) >= MOVES_PER_ROUND_MAX:
                break
        return done

    def may_merge(self, tenant: str, queue: str, *, source: str, to: str) -> bool:
        """Whether a planned merge is still possible."""
        of = tenant, queue
        if of not in self._ripe() or source not in self._shared[of].needs:
            return False
        return to in self._takers(self._shared[of], self._used)

    def _ripe(self) -> list[QueueAt]:
        return [
            of
            for of, since_ms in self._since.items()
            if self._now_ms - since_ms >= MERGE_AFTER_MS and self._shared[of].is_measured
        ]

    def _are_well(self, one: Shared) -> bool:
        found = [self._clusters.get(name) for name in one.needs]
        return all(known is not None and known.takes_queues(self._now_ms) for known in found)

    def _takers(self, one: Shared, used: Mapping[str, float]) -> list[str]:
        """Returns those of its clusters that could handle all of it, the one with the most capacity left first."""
        nodes = {name: self._clusters[name].report.nodes for name in one.needs}
        after = {name: used[name] + _comes(one, name) for name in one.needs}
        able = [name for name in one.needs if after[name] < MERGE_BELOW * nodes[name]]
        return sorted(able, key=lambda name: (after[name] - nodes[name], name))


def _comes(one: Shared, to: str) -> float:
    """Returns the additional load of a cluster that gets a shared queue alone."""
    return sum(needs for name, needs in one.needs.items() if name != to)
