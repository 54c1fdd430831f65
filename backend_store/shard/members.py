"""Who belongs to the cluster, here or away, and what happened to it: rows that the in-cluster manager alone writes."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from backend_store.core.replication.record import NodeId
from backend_store.shard.interface import ShardNumber


class Member(msgspec.Struct, frozen=True):
    """A backend that has been here, until it is taken out or forgotten."""

    name: NodeId
    zone: str
    is_here: bool
    since_ms: int
    """Wall-clock time at which it came, or was missed."""


EventKind = Literal[
    "joined",
    "left",
    "returned",
    "forgotten",
    "draining",
    "drain-ended",
    "removing",
    "removal-ended",
    "emptied",
    "placed",
    "elected",
    "lead-moved",
    "copy-replaced",
    "copy-moved",
    "copy-begun",
    "copy-removed",
    "quarantined",
    "damaged",
    "repaired",
]


class ClusterEvent(msgspec.Struct, frozen=True):
    """What the manager saw or did, and why."""

    number: int
    """Rises with each; that of an act which the coordinator refused is left out."""
    time_ms: int
    kind: EventKind
    text: str
    node: NodeId | None = None
    shard: ShardNumber | None = None
    manager: NodeId | None = None


class Report(msgspec.Struct, frozen=True):
    """What a backend says of itself every few seconds, while something of it changes."""

    disk_used: int
    """Bytes of its file system."""
    disk_free: int
    lag: dict[str, dict[NodeId, int | None]] = {}
    """Of each shard that it leads, by the shard's number: entries that each other replica does not have yet; null while
    nothing is known of it."""
    quarantined: dict[str, int] = {}
    """Confirmed messages that it keeps, since the leader that came after lacks them, by the shard's number."""
    used: float | None = None
    """How full it is, the fullest of CPU, disk and commits, in steps of 0.05; null of one that is too old to say."""
    damaged: dict[str, int] = {}
    """Rows of its copies that are not what was written, by the shard's number."""
    repairs: dict[str, int] = {}
    """How often each of these was taken anew for that, since the process began."""


ASKED: Final = b"asked"
"""What stands in the record that asks for a round of placement."""

decode_member = msgspec.json.Decoder(Member).decode
decode_event = msgspec.json.Decoder(ClusterEvent).decode
decode_report = msgspec.json.Decoder(Report).decode
