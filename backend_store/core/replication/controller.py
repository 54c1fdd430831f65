"""What the in-cluster manager decides: who is registered, and who leads a partition whose leader is gone.

It reads the partition's record and the sessions, both perhaps out of date, and asks for a change. The record's version,
its own term and the sessions that the decision rests on are compared where the change is made: what it did not know
refuses the change.
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
"""The last epoch of a replica's log, and where it ends, as of when its session began."""
NO_LOGS: Logs = {}


def is_stale(known: Identity | None, asks: Identity) -> bool:
    """Whether a registration is of a life that is over, or known already: neither may bring a session back."""
    return known is not None and asks.inc <= known.inc


def decide(
    record: PartitionRecord, sessions: Sessions, *, term: int, unclean: bool = False, logs: Logs = NO_LOGS
) -> Change | None:
    """The change that a partition needs now, or None.

    `unclean` lets any live replica lead when all that had the committed log are gone: what only they had is lost.
    """
    gone = [sessions[node] for node in record.disks if _has_lost_disk(record, sessions, node)]
    after = record
    for identity in gone:
        after = disowned(after, identity.node)
    known = max((epoch for epoch, _ in logs.values()), default=record.epoch)
    if known > record.epoch:
        # No replica obeys it. Who is in sync it does not say either: it is of a coordinator put back from a copy.
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
    if alive:  # who gave its leadership back may be the only one in sync, and cut off from those who could follow it
        return sessions[min(alive, key=lambda node: node == record.resigned)]
    if unclean:
        return next((sessions[node] for node in record.replicas if node in sessions), None)
    return None


def _longest(record: PartitionRecord, sessions: Sessions, logs: Logs) -> Identity | None:
    """Who has all that was ever committed, whoever was in sync: the youngest and longest log of all. None while one of
    them is away, or where a node that is no replica by this record has more: that is an operator's to mend."""
    if not all(node in sessions and node in logs for node in record.replicas):
        return None
    chosen = max(record.replicas, key=lambda node: logs[node])
    return sessions[chosen] if logs[chosen] == max(logs.values()) else None


def _elect(record: PartitionRecord, chosen: Identity, sessions: Sessions) -> PartitionRecord:
    if chosen.node not in (*record.isr, *record.elr):
        disks = {chosen.node: chosen.disk}
        return elected(replace(record, isr=(chosen.node,), elr=(), disks=disks), chosen, lambda node: True)
    return elected(record, chosen, lambda node: _is_whole(record, sessions, node))
