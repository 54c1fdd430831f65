"""Which queues leave a hot cluster: as few as are enough to cool it, and none that would make the target hot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend_store.core.outer.clusters import Cluster
from backend_store.core.outer.limits import COOL_AT, HOT_AT, MOVES_PER_ROUND_MAX, PARTITIONS_MAX


@dataclass(frozen=True, slots=True)
class Load:
    """A queue and its need, in nodes' worth of capacity."""

    tenant: str
    queue: str
    cluster: str
    needs: float
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class QueueMoved:
    """The whole queue moves to another cluster."""

    tenant: str
    queue: str
    source: str
    to: str


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """No cluster can take the whole queue: half of it goes to `to`, which then has as many partitions as `source`."""

    tenant: str
    queue: str
    source: str
    to: str
    partitions: int
    """Partitions in both clusters together."""


Relief = QueueMoved | QueueSplit


def relieve(clusters: Iterable[Cluster], loads: Sequence[Load], now_ms: int) -> list[Relief]:
    """Returns the moves of one round. A queue moves only to a cluster that stays below `COOL_AT`, so none moves back;
    when the moves are done, the next round has none.
    """
    known = {cluster.name: cluster for cluster in clusters}
    used = {name: one.report.utilisation * one.report.nodes for name, one in known.items()}
    takers = [one for one in known.values() if one.takes_queues(now_ms) and one.report.nodes > 0]
    done: list[Relief] = []
    for cluster in sorted(known.values(), key=lambda one: (-one.report.utilisation, one.name)):
        if not cluster.is_hot or not cluster.is_heard(now_ms) or cluster.report.nodes < 1:
            continue
        nodes, name = cluster.report.nodes, cluster.name
        mine = sorted(
            (one for one in loads if one.cluster == name), key=lambda one: (-one.needs, one.tenant, one.queue)
        )
        for load in mine:
            if len(done) >= MOVES_PER_ROUND_MAX or used[name] / nodes <= COOL_AT:
                break
            to = _taker(takers, used, load.needs)
            if to is not None:
                done.append(QueueMoved(load.tenant, load.queue, name, to))
                used[to] += load.needs
                used[name] -= load.needs
            elif load.needs / nodes >= HOT_AT - COOL_AT and (to := _taker(takers, used, load.needs / 2)) is not None:
                partitions = min(max(2, load.partitions * 2), PARTITIONS_MAX)
                done.append(QueueSplit(load.tenant, load.queue, name, to, partitions))
                used[to] += load.needs / 2
                used[name] -= load.needs / 2
    return done


def _taker(takers: Sequence[Cluster], used: dict[str, float], needs: float) -> str | None:
    able = [
        (-(one.report.nodes - used[one.name] - needs), one.name)
        for one in takers
        if (used[one.name] + needs) / one.report.nodes < COOL_AT
    ]
    return min(able)[1] if able else None
