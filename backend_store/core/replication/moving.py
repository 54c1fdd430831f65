"""How the in-cluster manager brings a partition's replicas to those that are wanted: one step at a time, each a change.

A new replica is admitted with nothing and counts for nothing; the leader lets it join the in-sync set when it has
everything. Only then one that is not wanted any more goes. Whatever happens in between, the record says how far it is,
and who manages next goes on from there.

A node that was taken out deletes its copy after it has *let go*, a change of the same record. Fetches that it sent
before may still be on their way to the leader, and say what is not true any more. So it is admitted again only in
another life: what rests on those fetches is guarded with the life that they are of.
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
    """The change that is due; None: all is done, or something must come first.

    `wanted`: the replicas as they shall be, the one that shall lead first. `sessions`: who lives, with the copies.
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
    """Whether the replicas are those that are wanted, and all of them are in sync."""
    return set(record.replicas) == set(wanted) == set(record.isr)


def may_be_removed(record: PartitionRecord, node: NodeId, wanted: Sequence[NodeId]) -> bool:
    """Whether nobody misses it: one that is out of sync goes when enough of those wanted have everything, one that is
    in sync when all of them do. A leader hands over first."""
    if node == record.leader:
        return False
    there = sum(other in record.isr for other in wanted)
    return there >= (len(wanted) if node in record.isr else record.min_in_sync)


def letting_go(record: PartitionRecord, me: Identity, wanted: Sequence[NodeId]) -> Change | None:
    """What a node asks for before it deletes a copy; None: it is, or shall be, a replica, or has asked already."""
    if me.node in record.replicas or me.node in wanted or record.left.get(me.node) == me.inc:
        return None
    return change(let_go(record, me.node, me.inc), NodeIs(me.node, me.inc), id=f"{me.node} {me.inc} lets go")


def _may_be_admitted(record: PartitionRecord, session: Identity | None) -> bool:
    return session is not None and session.inc > record.left.get(session.node, NO_INCARNATION)


def _change(after: PartitionRecord, term: int, *guards: NodeIs) -> Change:
    return change(after, ControllerIs(term), *guards, id=f"controller {term}")
