"""Bodies of requests and answers of `/v1/cluster`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from backend_store.client.plans import NO_PLAN, Plan
from backend_store.model import TENANT_DEFAULT
from gateway.limits import SPLIT_CLUSTERS_MAX

_OVER: Final = msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": SPLIT_CLUSTERS_MAX, "uniqueItems": True})


class ClusterNode(msgspec.Struct, frozen=True):
    """A backend that is alive, or that shards are placed on."""

    name: str
    zone: str | None
    """Its availability zone; null while unknown."""
    address: str | None
    """Its address for gateways; null while it is not alive."""
    alive: bool
    draining: bool
    """It hands its leaderships over, and gets none."""
    removing: bool
    """Its copies are moved to other backends, too."""
    copies: int
    """Shards of which it has a copy, is to have one, or keeps quarantined messages. If 0 and `removing`, it may be
    stopped for good."""
    since: str | None
    """When it joined, or was found missing."""
    disk_used_bytes: int | None
    """Used bytes of the file system of its data folder, by whatever data; null while it has not reported."""
    disk_free_bytes: int | None


class ClusterShard(msgspec.Struct, frozen=True):
    """A replicated log with queues in it."""

    name: str
    leader: str | None
    """The elected leader; null while there is none."""
    epoch: int
    replicas: list[str]
    in_sync: list[str]
    """In-sync replicas. With fewer than `min_in_sync`, no write is confirmed."""
    wanted: list[str]
    """Wanted replicas, the preferred leader first. While they differ from `replicas`, copies are being made."""
    lag: dict[str, int | None]
    """Entries of the leader's log that each follower lacks, as of some seconds ago; null: it has not fetched yet."""
    min_in_sync: int
    mode: Literal["sync", "async"]
    serving: bool
    """Whether the leader has taken over and answers gateways."""


class ClusterEventView(msgspec.Struct, frozen=True):
    """What the cluster's manager observed or did, and why."""

    number: int
    at: str
    kind: str
    text: str
    node: str | None
    shard: str | None
    manager: str | None
    """The manager at that time."""


class ClusterSummary(msgspec.Struct, frozen=True):
    """A cluster as the out-cluster manager knows it."""

    name: str
    is_home: bool
    """Whether it has the definitions, keys and tenants of all clusters."""
    model: Literal["leader_follower", "independent_hosts"] | None
    """null while unknown to this gateway."""
    backends: int | None
    """Number of backends alive; null, like the fields below, while nothing was heard of the cluster."""
    queues: int
    """Queues whose messages are in this cluster."""
    utilisation: float | None
    """Average utilisation of its backends, each the maximum of CPU, disk and commits; above 1, work waits."""
    fullest: str | None
    """The scarcest resource of the fullest backend: `CPU`, `disk` or `commits`."""
    state: Literal["ok", "hot", "unhealthy", "silent"]
    """If there are several clusters, only those that are `ok` get new queues."""
    detail: str | None
    """The fullest backend and the cluster's problem; or why its backends are not the cluster of this name."""
    hot_since: str | None
    """Since when it has been hot without interruption, or at its present size."""
    reported_at: str | None


class ClusterManagers(msgspec.Struct, frozen=True):
    """The out-cluster managers."""

    holder: str | None
    """The name of the active manager; null if there never was one."""
    term: int | None
    since: str | None
    seen_at: str | None
    """When it last stored what it heard."""
    is_silent: bool
    """No manager has done so for 30 s: which cluster is hot is unknown."""


class ManagerEvent(msgspec.Struct, frozen=True):
    """What the out-cluster manager observed or decided, and why."""

    number: int
    at: str
    kind: str
    cluster: str | None
    text: str
    manager: str | None
    """The manager at that time."""


class ClustersState(msgspec.Struct, frozen=True):
    """The state of all clusters."""

    clusters: list[ClusterSummary]
    """The home cluster first."""
    managers: ClusterManagers
    manager_events: list[ManagerEvent]
    """The latest events, newest last."""
    plan: Plan
    """Moves that would relieve hot clusters, and possible merges, in the format of `pushq cluster apply-plan`."""


NO_CLUSTERS: Final = ClustersState([], ClusterManagers(None, None, None, None, is_silent=True), [], NO_PLAN)


class ClusterState(ClustersState, frozen=True):
    """The state of one cluster, with that of all."""

    nodes: list[ClusterNode]
    shards: list[ClusterShard]
    events: list[ClusterEventView]
    """The latest events, newest last."""
    manager: str | None
    """The backend that places shards and elects leaders."""
    age_ms: int
    """Maximum age of this state."""
    backends_known: bool = True
    """false where this server is not told the coordinator of the home cluster: `nodes`, `shards` and `events` are empty
    then, and `manager` null."""
    is_embedded: bool = False
    """true where this server keeps its messages itself: it is the one node, and there is no shard."""


class Rebalance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for copies and leaderships to be rebalanced."""

    dry_run: bool = False
    """Only report what would be moved."""
    cluster: str | None = None
    """The cluster's name in the settings; null is the home cluster."""


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


class MoveView(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """A move of a queue from one cluster to another."""

    tenant: str
    queue: str
    source: str
    to: str
    state: Literal["sealing", "draining", "remembering"]
    """sealing: the move may still be given up. draining: publishes go to the new cluster, and the old one delivers what
    it still has. remembering: the old one has only ids, for deduplication until their window is over."""
    since: str
    """When it entered this state."""
    left: int | None
    """Messages that the old cluster still has, including dead letters; null while unknown."""
    share: float
    """The part of the queue that moves: 1 is all of it. If it left in several steps, as when split and merged again,
    the part of the last step."""


class MovePage(msgspec.Struct, frozen=True):
    items: list[MoveView]
    """A queue that moved through several clusters has one item for each that it left."""


class MoveWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Moves a queue to another cluster, or splits it over several: either `to` or `over`."""

    queue: str
    to: str | None = None
    """The cluster's name in the settings. The whole queue moves there, even if it is split over several."""
    over: Annotated[list[str] | None, _OVER] = None
    """The names of the clusters that share it evenly."""
    tenant: str = TENANT_DEFAULT


class ClusterShare(msgspec.Struct, frozen=True):
    """The part of a queue's publishes that a cluster takes."""

    cluster: str
    share: float
    """The shares of all clusters add up to 1."""


class QueuePlace(msgspec.Struct, frozen=True):
    """The clusters of a queue of any tenant."""

    tenant: str
    queue: str
    cluster: str
    """The cluster that publishes go to, or will go to next, see `moves`; the first one of several."""
    moves: list[MoveView]
    """Moves of this queue in progress."""
    clusters: list[ClusterShare]
    """The clusters that publishes go to now."""
    goal: list[str]
    """The clusters that it is being split over; empty when that is complete."""
