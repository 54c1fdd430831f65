"""Decides which moves are due: the plans of `core.placement`, held back while something else must come first. No I/O.

A copy that is lost is replaced in any case. Copies of a node that is to be removed wait until no other copy is in
progress. Rebalancing also waits until all members are present, and for some time after a member came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from backend_store.core.placement.planning import plan
from backend_store.core.placement.values import CopyDropped, CopyMoved, LeadMoved, Move, Node, Shard
from backend_store.core.replication.moving import is_settled
from backend_store.core.replication.record import NodeId
from backend_store.shard.interface import ShardNumber
from backend_store.shard.limits import REBALANCE_AFTER_SECONDS, REPLACE_AFTER_SECONDS
from backend_store.shard.members import Member
from backend_store.shard.placing import Plan
from backend_store.shard.view import ClusterView


class Patience(NamedTuple):
    """How long the manager waits before it moves anything."""

    replace_after_s: float = REPLACE_AFTER_SECONDS
    """For a node to return; 0: for ever."""
    rebalance_after_s: float = REBALANCE_AFTER_SECONDS
    """After a node came; 0: until an operator asks."""


def is_lost(member: Member, view: ClusterView, patience: Patience, now_ms: int) -> bool:
    """Whether a member's copies are to be made elsewhere: it has been away for too long, or is to be removed."""
    if member.name in view.nodes:
        return False
    after_ms = patience.replace_after_s * 1000
    is_late = after_ms > 0 and not member.is_here and now_ms - member.since_ms >= after_ms
    return is_late or member.name in view.removals


def nodes_of(view: ClusterView, patience: Patience, now_ms: int) -> list[Node]:
    """The members as the placement core sees them."""
    return [
        Node(
            member.name,
            member.zone,
            is_alive=not is_lost(member, view, patience, now_ms),
            is_draining=member.name in view.removals,
            is_away=member.name not in view.nodes or member.name in view.drains,
        )
        for member in view.members.values()
    ]


def due(view: ClusterView, patience: Patience, now_ms: int, *, is_asked: bool) -> list[Move]:
    """The moves of this round. `is_asked`: an operator asked for rebalancing now."""
    nodes = nodes_of(view, patience, now_ms)
    shards = [
        Shard(shard, tuple(found.replicas), found.replicas[0], copies_wanted=len(found.replicas))
        for shard, found in view.plans.items()
    ]
    alive = {node.name for node in nodes if node.is_alive}
    has_settled = all(
        shard in view.records and is_settled(view.records[shard], found.replicas) for shard, found in view.plans.items()
    )
    is_calm = has_settled and (is_asked or _is_quiet(view, patience, now_ms))

    def may(move: Move) -> bool:
        if isinstance(move, LeadMoved):
            return is_calm
        if isinstance(move, CopyMoved) and (move.source is None or move.source not in alive):
            return True
        return is_calm or (has_settled and move.source in view.removals)

    return [move for move in plan(nodes, shards) if may(move)]


def _is_quiet(view: ClusterView, patience: Patience, now_ms: int) -> bool:
    """Whether all members are present and may lead, and have been so for some time."""
    after_ms = patience.rebalance_after_s * 1000
    members = view.members.values()
    return (
        after_ms > 0 and not view.drains and all(one.is_here and now_ms - one.since_ms >= after_ms for one in members)
    )


def planned(plans: Mapping[ShardNumber, Plan], moves: Sequence[Move]) -> dict[ShardNumber, Plan]:
    """The plans that the moves change. The replica that is to lead comes first."""
    after: dict[ShardNumber, Plan] = {}
    for move in moves:
        shard = ShardNumber(move.shard)
        before = after.get(shard, plans[shard])
        match move:
            case LeadMoved(_, to):
                home = NodeId(to)
                replicas = (home, *(node for node in before.replicas if node != home))
            case CopyMoved(_, to, source):
                replicas = (*(node for node in before.replicas if node != source), NodeId(to))
            case CopyDropped(_, source):
                replicas = tuple(node for node in before.replicas if node != source)
        after[shard] = replace(before, replicas=replicas)
    return after


def why(move: Move, view: ClusterView, *, is_asked: bool) -> str:
    """One sentence for people."""
    if isinstance(move, LeadMoved):
        return f"leadership of shard {move.shard} goes to {move.to}: rebalancing"
    source = move.source or "nobody"
    if isinstance(move, CopyDropped):
        return f"{source} drops its copy of shard {move.shard}: there is one too many"
    if move.source is not None and move.source not in view.nodes:
        reason = "it is to be removed" if move.source in view.removals else "it has been away for too long"
        return f"{move.to} makes a copy of shard {move.shard} to replace {source}: {reason}"
    reason = "it is to be removed" if move.source in view.removals else "rebalancing"
    asked = ", as was asked" if is_asked and move.source not in view.removals else ""
    return f"the copy of shard {move.shard} moves from {source} to {move.to}: {reason}{asked}"
