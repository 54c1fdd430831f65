"""Combines the answers of a cluster's shards into the cluster's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend_store.core.outer.clusters import Report


@dataclass(frozen=True, slots=True)
class ShardSaid:
    """The answer of a shard's leader. Usages are parts of capacity, 0 to 1, and may be above 1 while work waits."""

    node: str
    """The backend that leads the shard; "" from a version that does not report it."""
    cpu: float = 0.0
    disk: float = 0.0
    commits: float = 0.0
    others: Mapping[str, float | None] = field(default_factory=dict)
    """For each other live backend, the highest of its three usages as it stored it; None: not stored yet."""
    nodes_needed: int = 0
    """With fewer backends there cannot be as many copies, or lanes, as the cluster's settings demand."""
    copies_missing: int = 0
    """Copies of any shard that should exist, and do not or are behind."""
    ails: str = ""
    """What is wrong with the shard; "" if nothing is."""

    @property
    def fullest(self) -> tuple[float, str]:
        return max((self.cpu, "CPU"), (self.disk, "disk"), (self.commits, "commits"))


def gathered(cluster: str, at_ms: int, shards: Sequence[ShardSaid | None]) -> Report | None:
    """Returns the report, or None if no shard has answered. `shards`: by number, None for a silent one.

    A node is as full as the fullest of its CPU, its disk and its commits: with any of them full it takes no more. The
    cluster is as full as its nodes are on average, since `sizing` multiplies by their number: by the fullest node, it
    would ask for nodes as if all were that full.
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
        return f"no response for shard {', '.join(silent)}"
    return next((f"shard {number}: {one.ails}" for number, one in enumerate(shards) if one and one.ails), "")
