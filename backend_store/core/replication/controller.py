"""Leader election: the decisions of the in-cluster manager about registrations and partitions without a leader.

The manager reads the partition's record and the sessions, both possibly stale, and submits a change. The coordinator
compares the record's version, the manager's term and the sessions on which the decision is based, and refuses the
change if any of them has moved on.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from backend_store.core.replication.record import (
    Change,
    ControllerIs,
    Identity,
    NodeId,
    NodeIs,
    PartitionRecord,
    change,
    disowned,
    elected,
)
from backend_store.model import Epoch, Offset

Sessions = Mapping[NodeId, Identity]
"""Live sessions by node."""
Logs = Mapping[NodeId, tuple[Epoch, Offset]]
"""Last epoch and end of each node's log, as of the start of its session."""
NO_LOGS: Logs = {}


def is_stale(known: Identity | None, asks: Identity) -> bool:
    """Whether a registration has an incarnation that is over or already known: neither may revive a session."""
    return known is not None and asks.inc <= known.inc


def decide(
    record: PartitionRecord, sessions: Sessions, *, term: int, unclean: bool = False, logs: Logs = NO_LOGS
) -> Change | None:
    """Returns the change that a partition needs now, or None.

    `unclean` lets any live replica lead when all replicas that have the committed log are gone, which loses what only
    they had.
    """
    gone = [sessions[node] for node in record.disks if _has_lost_disk(record, sessions, node)]
    after = record
    for identity in gone:
        after = disowned(after, identity.node)
    known = max((epoch for epoch, _ in logs.values()), default=record.epoch)
    if known > record.epoch:
        # The coordinator was restored from a copy: no replica obeys this record, and its in-sync set is unreliable.
        chosen = _longest(record, sessions, logs)
        if chosen is not None:
            gone.append(chosen)
            after = _elect(replace(after, epoch=known, isr=(), elr=()), chosen, sessions)
    elif not _has_leader(after, sessions):
        chosen = _choose(after, sessions, unclean=unclean)
        if chosen is not None:
            gone.append(chosen)
            after = _elect(after, chosen, sessions)
    if after is record:
        return None
    guards = [NodeIs(identity.node, identity.inc) for identity in gone]
    return change(after, ControllerIs(term), *guards, id=f"controller {term}")


def _has_leader(record: PartitionRecord, sessions: Sessions) -> bool:
    session = None if record.leader is None else sessions.get(record.leader)
    return session is not None and session.inc == record.leader_inc


def _has_lost_disk(record: PartitionRecord, sessions: Sessions, node: NodeId) -> bool:
    return node in sessions and sessions[node].disk != record.disks[node]


def _is_whole(record: PartitionRecord, sessions: Sessions, node: NodeId) -> bool:
    return node in sessions and sessions[node].disk == record.disks.get(node)


def _choose(record: PartitionRecord, sessions: Sessions, *, unclean: bool) -> Identity | None:
    ranked = [node for group in (record.isr, record.elr) for node in record.replicas if node in group]
    alive = [node for node in ranked if _is_whole(record, sessions, node)]
    if alive:  # a leader that resigned may be the only one in sync; it comes last, because it may be cut off
        return sessions[min(alive, key=lambda node: node == record.resigned)]
    if unclean:
        return next((sessions[node] for node in record.replicas if node in sessions), None)
    return None


def _longest(record: PartitionRecord, sessions: Sessions, logs: Logs) -> Identity | None:
    """Returns the replica that has everything ever committed, whatever the in-sync set was: that with the latest epoch,
    and the longest log of those. None while a replica is away, or if a node that is no replica by this record has more,
    which an operator must resolve.
    """
    if not all(node in sessions and node in logs for node in record.replicas):
        return None
    chosen = max(record.replicas, key=lambda node: logs[node])
    return sessions[chosen] if logs[chosen] == max(logs.values()) else None


def _elect(record: PartitionRecord, chosen: Identity, sessions: Sessions) -> PartitionRecord:
    if chosen.node not in (*record.isr, *record.elr):
        disks = {chosen.node: chosen.disk}
        return elected(replace(record, isr=(chosen.node,), elr=(), disks=disks), chosen, lambda node: True)
    return elected(record, chosen, lambda node: _is_whole(record, sessions, node))
