"""Chooses the host that replaces an independent host which is gone for good, or is to be removed, in all its lanes.

Lanes are not rebalanced: a host has one lane of its own, and copies of its neighbours' lanes. All that a host had goes
to one host that has nothing, which becomes the home of that lane. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from backend_store.core.replication.moving import is_settled
from backend_store.core.replication.record import NodeId
from backend_store.shard.interface import ShardNumber
from backend_store.shard.placing import Plan
from backend_store.shard.rounds import Patience, is_lost
from backend_store.shard.view import ClusterView


class Succession(NamedTuple):
    """`plans`: of the lanes that the host had a copy of, with `heir` in its place."""

    host: NodeId
    heir: NodeId
    plans: Mapping[ShardNumber, Plan]

    def why(self, lane: ShardNumber, view: ClusterView) -> str:
        """One sentence for people."""
        reason = "it is to be removed" if self.host in view.removals else "it has been away for too long"
        is_home = self.plans[lane].replicas[0] == self.heir
        what = f"lane {lane} is {self.heir}'s from now on" if is_home else f"{self.heir} makes a copy of lane {lane}"
        return f"{what}, in the place of {self.host}: {reason}"


def heirs(view: ClusterView) -> list[NodeId]:
    """Hosts that stay in the cluster and have no copies."""
    return [name for name in sorted(view.nodes) if name not in view.leaving and not view.keeps(name)]


def due(view: ClusterView, patience: Patience, now_ms: int) -> Succession | None:
    """The next succession; None where no host is to go, no host can replace it, or something else must come first.

    A host that is gone is replaced in any case. A host that is to be removed serves until all lanes have their copies.
    """
    able = heirs(view)
    are_founded = all(plan.lanes <= len(view.plans) for plan in view.plans.values())
    if not able or not are_founded:
        return None
    gone = [member.name for member in view.members.values() if is_lost(member, view, patience, now_ms)]
    has_settled = all(
        lane in view.records and is_settled(view.records[lane], found.replicas) for lane, found in view.plans.items()
    )
    leaving = [name for name in view.removals if name in view.nodes] if has_settled else []
    for host in (*sorted(gone), *sorted(leaving)):
        mine = {lane: plan for lane, plan in view.plans.items() if host in plan.replicas}
        if mine:
            heir = min(able, key=lambda name: (_clashes(name, host, mine, view), name))
            return Succession(host, heir, {lane: _with(plan, host, heir) for lane, plan in mine.items()})
    return None


def _with(plan: Plan, host: NodeId, heir: NodeId) -> Plan:
    return replace(plan, replicas=tuple(heir if node == host else node for node in plan.replicas))


def _clashes(heir: NodeId, host: NodeId, plans: Mapping[ShardNumber, Plan], view: ClusterView) -> int:
    """Number of copies of the host's lanes that would share a zone with `heir`."""
    zones = {name: member.zone for name, member in view.members.items()} | {
        n: row.zone for n, row in view.nodes.items()
    }
    mine = zones[heir]
    others = (node for plan in plans.values() for node in plan.replicas if node != host)
    return sum(bool(mine) and zones.get(node) == mine for node in others)
