"""What `/v1/cluster` answers."""

from __future__ import annotations

from typing import Literal

import msgspec


class ClusterNode(msgspec.Struct, frozen=True):
    """A backend: one that lives, or that shards are placed on."""

    name: str
    zone: str | None
    """Where it stands; null while that is not known."""
    address: str | None
    """Where gateways find it; null while it is not alive."""
    alive: bool
    draining: bool
    """It gives its leaderships away, and gets none."""
    removing: bool
    """Its copies go elsewhere, too."""
    copies: int
    """Shards of which it has a copy, shall have one, or keeps quarantined messages. 0 and `removing`: it may be stopped
    for good."""
    since: str | None
    """When it came, or was missed."""
    disk_used_bytes: int | None
    """Of the file system of its data folder, with all that else is there; null while it has not said."""
    disk_free_bytes: int | None


class ClusterShard(msgspec.Struct, frozen=True):
    """A replicated log with queues in it."""

    name: str
    leader: str | None
    """Who was elected; null while nobody is."""
    epoch: int
    replicas: list[str]
    in_sync: list[str]
    """Fewer than `min_in_sync`: nothing is confirmed."""
    wanted: list[str]
    """Who shall keep it, the one first that shall lead. Others than `replicas`: copies are on their way."""
    lag: dict[str, int | None]
    """Entries of the leader's log that each other replica lacks, as of some seconds ago; null: it has not asked."""
    min_in_sync: int
    mode: Literal["sync", "async"]
    serving: bool
    """Whether the leader has taken over and answers gateways."""


class ClusterEventView(msgspec.Struct, frozen=True):
    """What the manager saw or did, and why."""

    number: int
    at: str
    kind: str
    text: str
    node: str | None
    shard: str | None
    manager: str | None
    """Who managed then."""


class ClusterState(msgspec.Struct, frozen=True):
    nodes: list[ClusterNode]
    shards: list[ClusterShard]
    events: list[ClusterEventView]
    """The last of them, newest last."""
    manager: str | None
    """The backend that places shards and elects leaders."""
    age_ms: int
    """So long ago at most it was so."""


class Rebalance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for copies and leaderships to be evened out."""

    dry_run: bool = False
    """Only say what would be moved."""


class ClusterMove(msgspec.Struct, frozen=True):
    shard: str
    kind: Literal["copy", "lead", "drop"]
    to: str | None
    source: str | None
    why: str


class Rebalanced(msgspec.Struct, frozen=True):
    moves: list[ClusterMove]
    """What this round moves; more may follow when it is done."""
    started: bool
    """False for a dry run."""
