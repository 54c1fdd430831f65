"""What the in-cluster manager knows and says: nodes, shards, and the moves of one round."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is a member of the cluster."""

    name: str
    zone: str = ""
    is_alive: bool = True
    """False: its copies count as lost."""
    is_draining: bool = False
    """It keeps serving until its copies stand elsewhere, and gets none."""
    is_away: bool = False
    """It keeps what it has, and gets nothing: it is expected back, or shall not lead."""
    capacity: float = 1.0
    """What it can carry, next to others."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as it is now: who keeps it, who leads."""

    id: int
    copies: tuple[str, ...]
    """Names of nodes; the one that leads among them, in no order."""
    leader: str | None
    weight: float = 1.0
    """What one copy costs its node: bytes a second, or whatever the cluster measures."""
    copies_wanted: int = 3


@dataclass(frozen=True, slots=True)
class CopyMoved:
    """A copy is made on `to`; once it is in sync, the one on `source` goes. None: one was missing."""

    shard: int
    to: str
    source: str | None


@dataclass(frozen=True, slots=True)
class CopyDropped:
    """There are more copies than wanted, and this one goes."""

    shard: int
    source: str


@dataclass(frozen=True, slots=True)
class LeadMoved:
    """A planned handover to a node that has the shard."""

    shard: int
    to: str


Move = CopyMoved | CopyDropped | LeadMoved


def applied(shards: list[Shard], moves: list[Move]) -> list[Shard]:
    """The shards after the moves have been done."""
    by_id = {shard.id: shard for shard in shards}
    for move in moves:
        shard = by_id[move.shard]
        if isinstance(move, LeadMoved):
            by_id[move.shard] = replace(shard, leader=move.to)
            continue
        kept = [name for name in shard.copies if name != move.source]
        copies = (*kept, move.to) if isinstance(move, CopyMoved) else tuple(kept)
        leader = shard.leader if shard.leader != move.source else None
        by_id[move.shard] = replace(shard, copies=copies, leader=leader)
    return [by_id[shard.id] for shard in shards]
