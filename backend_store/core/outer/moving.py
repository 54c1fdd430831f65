"""Which entries of its plan the manager starts now: few at a time, and no queue back and forth. No I/O.

An attempt is recorded before it is made. If its manager does not live to make it, nothing is lost: the queue is planned
and tried again after its rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import (
    ATTEMPTS_MAX,
    RELIEF_DRAIN_MS,
    RELIEF_MOVES_MAX,
    RELIEF_REFUSED_MS,
    RELIEF_REST_MS,
    RELIEF_SEEN_MS,
)
from backend_store.core.outer.merging import ColdQueues, QueueAt
from backend_store.core.outer.plans import PlannedMove, PlannedPartitions

Planned = PlannedMove | PlannedPartitions


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A move in progress, whether a manager or an operator began it."""

    tenant: str
    queue: str
    since_ms: int
    """When it entered its present state."""
    is_drained: bool = False
    """Nothing but ids is left in the old cluster."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The manager has moved, split or merged a queue, or tried to."""

    tenant: str
    queue: str
    source: str
    to: str
    at_ms: int
    is_refused: bool = False
    """The queue cannot move, at least not now."""
    is_split: bool = False
    """Both clusters share the queue afterwards; otherwise all of it moves."""
    is_merge: bool = False
    """Both clusters shared the queue before."""

    @property
    def of(self) -> QueueAt:
        return self.tenant, self.queue

    def rests(self, now_ms: int) -> bool:
        """Whether the queue is still left alone. An attempt with a far later time is from a wrong clock and is over."""
        return abs(now_ms - self.at_ms) < (RELIEF_REFUSED_MS if self.is_refused else RELIEF_REST_MS)


@dataclass(frozen=True, slots=True)
class NotBegun:
    """An attempt that the store did not accept, and why."""

    attempt: Attempt
    text: str
    is_refused: bool
    """False: it may succeed another time."""


class Attempts:
    """The attempts that still count at one step."""

    def __init__(self, known: Sequence[Attempt], now_ms: int) -> None:
        self._known = tuple(known)
        self._now_ms = now_ms
        self._resting = {one.of: one for one in known if one.rests(now_ms)}

    @property
    def changed(self) -> tuple[Attempt, ...] | None:
        """The attempts to be written; None: unchanged."""
        found = tuple(self._resting.values())
        return None if found == self._known else found

    @property
    def last_ms(self) -> int:
        """When the last queue was moved, among the attempts that count; 0: none."""
        return max((one.at_ms for one in self._resting.values() if not one.is_refused), default=0)

    @property
    def refused(self) -> set[QueueAt]:
        """Queues that cannot move, at least not now."""
        return {one.of for one in self._resting.values() if one.is_refused}

    def end(self, ended: NotBegun) -> bool:
        """Records that an attempt was not accepted. Returns False if it is unknown or was recorded before."""
        known = self._resting.get(ended.attempt.of)
        if known != ended.attempt:
            return False
        if ended.is_refused:
            self._resting[known.of] = replace(known, is_refused=True)
        return True

    def begin(
        self,
        stood: Collection[Planned],
        planned: Sequence[Planned],
        clusters: Mapping[str, Cluster],
        under_way: Sequence[UnderWay],
        cold: ColdQueues,
    ) -> tuple[Attempt, ...]:
        """Returns the attempts that begin now, of entries `planned` for whole queues. `stood`: the last step's plan."""
        now_ms = self._now_ms
        busy = {(one.tenant, one.queue) for one in under_way}
        counted = {(one.tenant, one.queue) for one in under_way if _counts(one, now_ms)}
        counted |= {one.of for one in self._resting.values() if abs(now_ms - one.at_ms) < RELIEF_SEEN_MS}
        begun: list[Attempt] = []
        for entry in planned:
            if len(counted) >= RELIEF_MOVES_MAX or len(self._resting) >= ATTEMPTS_MAX:
                break
            attempt = _attempt(entry, now_ms)
            if attempt is None or entry not in stood or not _may(attempt, clusters, cold, now_ms):
                continue
            # A split counts as under way for long, while a cluster remembers ids of the queue, but allows a merge.
            is_busy = attempt.of in (counted if attempt.is_merge else busy)
            if not is_busy and attempt.of not in self._resting:
                counted.add(attempt.of)
                self._resting[attempt.of] = attempt
                begun.append(attempt)
        return tuple(begun)


def _counts(move: UnderWay, now_ms: int) -> bool:
    return not move.is_drained and abs(now_ms - move.since_ms) < RELIEF_DRAIN_MS


def _attempt(entry: Planned, now_ms: int) -> Attempt | None:
    """Returns the attempt of an entry; None for one that the manager leaves to operators."""
    match entry:
        case PlannedMove(partition=None):
            return Attempt(entry.tenant, entry.queue, entry.source, entry.to, now_ms, is_merge=entry.is_merge)
        case PlannedPartitions(clusters=(source, to)):
            return Attempt(entry.tenant, entry.queue, source, to, now_ms, is_split=True)
        case _:
            return None


def _may(move: Attempt, clusters: Mapping[str, Cluster], cold: ColdQueues, now_ms: int) -> bool:
    """Whether a move is still right: a plan may be a minute old, and the states of its clusters may have changed."""
    if move.is_merge:
        return cold.may_merge(*move.of, source=move.source, to=move.to)
    source, to = clusters.get(move.source), clusters.get(move.to)
    if source is None or to is None:
        return False
    return source.state(now_ms) == "hot" and to.takes_queues(now_ms)
