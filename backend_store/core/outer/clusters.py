"""The out-cluster manager's state of a cluster: its last report, and since when it has been hot or nearly idle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from backend_store.core.outer.limits import COOL_AT, HOT_AT, REPORT_MS_MAX, SHRINK_BELOW

State = Literal["ok", "hot", "unhealthy", "silent"]


@dataclass(frozen=True, slots=True)
class Report:
    """A cluster's report of its own state."""

    cluster: str
    at_ms: int
    nodes: int
    utilisation: float
    """Mean over the nodes of the fullest of CPU, disk and commits, as a part of capacity; above 1 while work waits."""
    is_healthy: bool = True
    """Every shard has a leader and enough copies in sync."""
    fullest: str = ""
    """The resource of which the fullest node has least left: `CPU`, `disk` or `commits`."""
    detail: str = ""
    """For people: which node is fullest, and what is wrong with the cluster."""
    nodes_needed: int = 0
    """With fewer nodes the cluster cannot have as many copies, or lanes, as its settings demand."""
    copies_missing: int = 0
    """Copies of shards that should exist, and do not or are behind."""
    is_fixed: bool = False
    """Its backends are independent hosts, whose lanes stay where they are: new hosts would have nothing to do."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The last report of a cluster, and what the manager remembers about it."""

    report: Report
    is_hot: bool = False
    hot_since_ms: int | None = None
    """Since when it has been hot without interruption and with its present size."""
    idle_since_ms: int | None = None
    """Since when it has been below `SHRINK_BELOW` without interruption."""
    resized_at_ms: int | None = None
    grown: int = 0
    """How often it has grown since it was last not hot."""
    turns: int = 0
    """How many events since `turns_since_ms` told that it has become hot, cool, ill or well."""
    turns_since_ms: int = 0
    is_silent: bool = False
    """An event has told that the cluster is silent."""

    @property
    def name(self) -> str:
        return self.report.cluster

    def is_heard(self, now_ms: int) -> bool:
        return now_ms - self.report.at_ms <= REPORT_MS_MAX

    def state(self, now_ms: int) -> State:
        if not self.is_heard(now_ms):
            return "silent"
        if not self.report.is_healthy:
            return "unhealthy"
        return "hot" if self.is_hot else "ok"

    def takes_queues(self, now_ms: int) -> bool:
        """Whether a new queue may be placed there."""
        return self.state(now_ms) == "ok"


def heard(known: Cluster | None, report: Report) -> Cluster:
    """Returns the cluster after a report; one that is a little older than the last changes nothing.

    A silence counts as an interruption, because what was not seen is not counted. So does a last report with a far
    later time, from a clock that was wrong: the manager does not wait for that time.
    """
    before = known if known is not None else Cluster(report)
    passed_ms = report.at_ms - before.report.at_ms
    if -REPORT_MS_MAX <= passed_ms < 0:
        return before
    is_gap = abs(passed_ms) > REPORT_MS_MAX
    used = report.utilisation
    is_hot = used >= HOT_AT or (before.is_hot and used > COOL_AT)
    return replace(
        before,
        report=report,
        is_hot=is_hot,
        grown=before.grown if is_hot else 0,
        hot_since_ms=_since(before.hot_since_ms, report.at_ms, holds=is_hot, is_gap=is_gap),
        idle_since_ms=_since(before.idle_since_ms, report.at_ms, holds=used < SHRINK_BELOW, is_gap=is_gap),
    )


def _since(before_ms: int | None, now_ms: int, *, holds: bool, is_gap: bool) -> int | None:
    if not holds:
        return None
    return now_ms if before_ms is None or is_gap else before_ms
