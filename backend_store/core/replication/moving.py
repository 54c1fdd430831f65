"""Replica reassignment: how the in-cluster manager moves a partition to the wanted replicas, one change at a time.

A new replica is admitted empty and counts for nothing; the leader lets it join the in-sync set when it has everything.
Only then is a replica removed that is no longer wanted. The record shows the progress, so the next manager can continue
from any point.

A removed node deletes its copy after it has *let go*, a change of the same record. Fetches that it sent before may
still be on their way to the leader, and their claims no longer hold. So the node is admitted again only in another
incarnation: changes that rest on those fetches are guarded with the incarnation that sent them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from backend_store.core.replication.controller import Sessions
from backend_store.core.replication.record import (
    NO_INCARNATION,
    Change,
    ControllerIs,
    Identity,
    NodeId,
    NodeIs,
    PartitionRecord,
    admitted,
    change,
    let_go,
    removed,
)


def next_step(record: PartitionRecord, wanted: Sequence[NodeId], sessions: Sessions, *, term: int) -> Change | None:
    """Returns the change that is due; None: the reassignment is complete, or another change must come first.

    `wanted`: the wanted replicas, the preferred leader first. `sessions`: live nodes with their incarnation and disk.
    """
    if len(wanted) < record.min_in_sync:
        return None
    for node in wanted:
        if node not in record.replicas and _may_be_admitted(record, sessions.get(node)):
            return _change(admitted(record, node), term, NodeIs(node, sessions[node].inc))
    for node in sorted(record.replicas, key=lambda node: node in record.isr):
        if node not in wanted and may_be_removed(record, node, wanted):
            return _change(removed(record, node), term)
    if record.replicas != tuple(wanted) and set(record.replicas) == set(wanted):
        return _change(replace(record, replicas=tuple(wanted)), term)
    return None


def is_settled(record: PartitionRecord, wanted: Sequence[NodeId]) -> bool:
    """Whether the replicas are the wanted ones and all of them are in sync."""
    return set(record.replicas) == set(wanted) == set(record.isr)


def may_be_removed(record: PartitionRecord, node: NodeId, wanted: Sequence[NodeId]) -> bool:
    """Whether a replica may be removed: one out of sync, when enough of the wanted replicas are in sync; one in sync,
    when all of them are. A leader hands over first."""
    if node == record.leader:
        return False
    there = sum(other in record.isr for other in wanted)
    return there >= (len(wanted) if node in record.isr else record.min_in_sync)


def letting_go(record: PartitionRecord, me: Identity, wanted: Sequence[NodeId]) -> Change | None:
    """Returns the change that a node submits before it deletes its copy. None: it is or will be a replica, or has
    submitted it already.
    """
    if me.node in record.replicas or me.node in wanted or record.left.get(me.node) == me.inc:
        return None
    return change(let_go(record, me.node, me.inc), NodeIs(me.node, me.inc), id=f"{me.node} {me.inc} lets go")


def _may_be_admitted(record: PartitionRecord, session: Identity | None) -> bool:
    return session is not None and session.inc > record.left.get(session.node, NO_INCARNATION)


def _change(after: PartitionRecord, term: int, *guards: NodeIs) -> Change:
    return change(after, ControllerIs(term), *guards, id=f"controller {term}")
