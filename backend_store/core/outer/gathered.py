"""What the shards of a cluster say of themselves becomes the cluster's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend_store.core.outer.clusters import Report


@dataclass(frozen=True, slots=True)
class ShardSaid:
    """What the leader of a shard answered. All figures are parts, 0 to 1, and may go above 1 while work waits."""

    node: str
    """The backend that leads it; "" of one that is too old to say."""
    cpu: float = 0.0
    disk: float = 0.0
    commits: float = 0.0
    others: Mapping[str, float | None] = field(default_factory=dict)
    """Of every other backend that lives, the fullest of its three as it wrote it down; None: it has not said yet."""
    nodes_needed: int = 0
    """With fewer backends there cannot be as many copies, or lanes, as the cluster is told to have."""
    copies_missing: int = 0
    """Copies of any shard that shall be there, and are not or are behind."""
    ails: str = ""
    """Why the shard is not as it should be; "" where it is."""

    @property
    def fullest(self) -> tuple[float, str]:
        return max((self.cpu, "CPU"), (self.disk, "disk"), (self.commits, "commits"))


def gathered(cluster: str, at_ms: int, shards: Sequence[ShardSaid | None]) -> Report | None:
    """The report; None where no shard has answered. `shards`: by number, None for one that is silent.

    A node is as full as the fullest of its CPU, its disk and its commits: with any of them full it takes no more. The
    cluster is as full as its nodes are on the average, since `sizing` multiplies by their number: of the fullest node
    it would ask for a new cluster where one node has a bad day.
    """
    said = {number: one for number, one in enumerate(shards) if one is not None}
    if not said:
        return None
    known: dict[str, tuple[float, str]] = {}
    for number, one in said.items():
        name = one.node or f"shard-{number}"
        known[name] = max(known.get(name, (0.0, "")), one.fullest)
    heard_of = {name: used for one in said.values() for name, used in one.others.items() if name not in known}
    parts = [used for used, _ in known.values()] + [used for used in heard_of.values() if used is not None]
    (used, what), fullest = max((part, name) for name, part in known.items())
    ails = _ails(shards)
    detail = f"{fullest} is fullest: {used:.0%} of its {what}"
    return Report(
        cluster,
        at_ms,
        nodes=len(known) + len(heard_of),
        utilisation=sum(parts) / len(parts),
        is_healthy=not ails,
        fullest=what,
        detail=f"{ails}; {detail}" if ails else detail,
        nodes_needed=max(one.nodes_needed for one in said.values()),
        copies_missing=max(one.copies_missing for one in said.values()),
    )


def _ails(shards: Sequence[ShardSaid | None]) -> str:
    silent = [str(number) for number, one in enumerate(shards) if one is None]
    if silent:
        return f"nobody answers for shard {', '.join(silent)}"
    return next((f"shard {number}: {one.ails}" for number, one in enumerate(shards) if one and one.ails), "")
