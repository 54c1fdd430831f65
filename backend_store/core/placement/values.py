"""Input and output of a placement round: nodes, shards, and moves."""

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
    """It serves until its copies are elsewhere, and gets no new ones."""
    is_away: bool = False
    """It keeps its copies and gets no new ones, nor leads: it is expected back, or is not meant to lead."""
    capacity: float = 1.0
    """The load that it can carry, relative to other nodes."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The current state of a shard: which nodes have copies, and which leads."""

    id: int
    copies: tuple[str, ...]
    """Names of nodes, including the leader, in no order."""
    leader: str | None
    weight: float = 1.0
    """The load of one copy on its node, in bytes per second or whatever unit the cluster measures."""
    copies_wanted: int = 3


@dataclass(frozen=True, slots=True)
class CopyMoved:
    """A copy is created on `to`; once it is in sync, the one on `source` is dropped. None: a copy was missing."""

    shard: int
    to: str
    source: str | None


@dataclass(frozen=True, slots=True)
class CopyDropped:
    """A copy is dropped because there are more than wanted."""

    shard: int
    source: str


@dataclass(frozen=True, slots=True)
class LeadMoved:
    """A planned handover of the leadership to a node that has a copy."""

    shard: int
    to: str


Move = CopyMoved | CopyDropped | LeadMoved


def applied(shards: list[Shard], moves: list[Move]) -> list[Shard]:
    """Returns the shards after the moves."""
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
