"""The members of the cluster, present or away, and the events of the cluster: rows that only the in-cluster manager
writes, and the backends' own reports."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from backend_store.core.replication.record import NodeId
from backend_store.shard.interface import ShardNumber


class Member(msgspec.Struct, frozen=True):
    """A backend that has been in the cluster, until it is taken out or forgotten."""

    name: NodeId
    zone: str
    is_here: bool
    since_ms: int
    """Wall-clock time at which it joined or returned, or was missed."""


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
    """Rises with each event; numbers of acts that the coordinator refused are skipped."""
    time_ms: int
    kind: EventKind
    text: str
    node: NodeId | None = None
    shard: ShardNumber | None = None
    manager: NodeId | None = None


class Report(msgspec.Struct, frozen=True):
    """A backend's report of itself, every few seconds while something of it changes."""

    disk_used: int
    """Bytes of its file system."""
    disk_free: int
    lag: dict[str, dict[NodeId, int | None]] = {}
    """For each shard that it leads, by the shard's number: entries that each other replica does not have yet; null
    while that is not known."""
    quarantined: dict[str, int] = {}
    """Confirmed messages in its quarantine, because a later leader lacks them, by the shard's number."""
    used: float | None = None
    """How full the node is: the highest of CPU, disk and commits, in steps of 0.05; null from a version that does not
    report."""
    damaged: dict[str, int] = {}
    """Rows of its copies that differ from what was written, by the shard's number."""
    repairs: dict[str, int] = {}
    """How often each of these copies was renewed because of damage, since the process began."""


ASKED: Final = b"asked"
"""Value of the record that asks for a round of placement."""

decode_member = msgspec.json.Decoder(Member).decode
decode_event = msgspec.json.Decoder(ClusterEvent).decode
decode_report = msgspec.json.Decoder(Report).decode
