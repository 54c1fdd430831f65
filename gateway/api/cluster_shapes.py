"""What `/v1/cluster` answers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from backend_store.client.plans import NO_PLAN, Plan
from backend_store.model import TENANT_DEFAULT
from gateway.limits import SPLIT_CLUSTERS_MAX

_OVER: Final = msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": SPLIT_CLUSTERS_MAX, "uniqueItems": True})


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


class ClusterSummary(msgspec.Struct, frozen=True):
    """A cluster as the out-cluster manager knows it."""

    name: str
    is_home: bool
    """It has the definitions, keys and tenants of all."""
    model: Literal["leader_follower", "independent_hosts"] | None
    """null while that is not known here."""
    backends: int | None
    """Those that live; null while nothing was heard of the cluster, and so are the next."""
    queues: int
    """Whose messages lie there."""
    utilisation: float | None
    """How full its backends are on the average, each as its fullest of CPU, disk and commits; over 1: work waits."""
    fullest: str | None
    """Of what the fullest backend has least left: `CPU`, `disk` or `commits`."""
    state: Literal["ok", "hot", "unhealthy", "silent"]
    """Of several clusters only those that are `ok` get new queues."""
    detail: str | None
    """Which backend is fullest, and what ails the cluster; or why its backends are not the cluster of its name."""
    hot_since: str | None
    """Since when it has been hot without a break, or with its present size."""
    reported_at: str | None


class ClusterManagers(msgspec.Struct, frozen=True):
    """Who manages the clusters."""

    holder: str | None
    """The name of the one that acts; null where none ever did."""
    term: int | None
    since: str | None
    seen_at: str | None
    """When it last wrote down what it heard."""
    is_silent: bool
    """None has for 30 s: nobody says which cluster is hot."""


class ManagerEvent(msgspec.Struct, frozen=True):
    """What the out-cluster manager saw or decided, and why."""

    number: int
    at: str
    kind: str
    cluster: str | None
    text: str
    manager: str | None
    """Who managed then."""


class ClustersState(msgspec.Struct, frozen=True):
    """All clusters, whichever is shown."""

    clusters: list[ClusterSummary]
    """The home cluster first."""
    managers: ClusterManagers
    manager_events: list[ManagerEvent]
    """The last of them, newest last."""
    plan: Plan
    """Which queues would cool hot clusters, or may be merged, as a file of `pushq cluster apply-plan`."""


NO_CLUSTERS: Final = ClustersState([], ClusterManagers(None, None, None, None, is_silent=True), [], NO_PLAN)


class ClusterState(ClustersState, frozen=True):
    """One cluster, and all of them."""

    nodes: list[ClusterNode]
    shards: list[ClusterShard]
    events: list[ClusterEventView]
    """The last of them, newest last."""
    manager: str | None
    """The backend that places shards and elects leaders."""
    age_ms: int
    """So long ago at most it was so."""
    backends_known: bool = True
    """false where this server is not told the coordinator of the home cluster: `nodes`, `shards` and `events` are empty
    then, and `manager` null."""
    is_embedded: bool = False
    """true where this server keeps its messages itself: it is the one node, and there is no shard."""


class Rebalance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for copies and leaderships to be evened out."""

    dry_run: bool = False
    """Only say what would be moved."""
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
    """A queue on its way from one cluster to another."""

    tenant: str
    queue: str
    source: str
    to: str
    state: Literal["sealing", "draining", "remembering"]
    """sealing: it may still be given up. draining: publishes arrive at the new cluster, and what the old one has is
    delivered from there. remembering: the old one has ids alone, which it knows again until their window is over."""
    since: str
    """When it began to be in this state."""
    left: int | None
    """Messages that the old cluster still has, dead letters among them; null while that is not known."""
    share: float
    """Which part of the queue goes there: 1 is all of it. Of one that left in several steps, as one does that was split
    and is merged, the part that went with the last."""


class MovePage(msgspec.Struct, frozen=True):
    items: list[MoveView]
    """A queue that came by several clusters has one for each that it left."""


class MoveWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Has a queue move to another cluster, or lie in several: `to` or `over`, one of the two."""

    queue: str
    to: str | None = None
    """The cluster's name in the settings. All of the queue goes there, also of one that lies in several."""
    over: Annotated[list[str] | None, _OVER] = None
    """The names of the clusters that share it evenly."""
    tenant: str = TENANT_DEFAULT


class ClusterShare(msgspec.Struct, frozen=True):
    """Which part of a queue's publishes a cluster takes."""

    cluster: str
    share: float
    """Those of all clusters make 1."""


class QueuePlace(msgspec.Struct, frozen=True):
    """Where a queue of any tenant lies."""

    tenant: str
    queue: str
    cluster: str
    """Where publishes go, or shall go next; see `moves`. Of several the first."""
    moves: list[MoveView]
    """Those of this queue that are under way."""
    clusters: list[ClusterShare]
    """Where publishes go now."""
    goal: list[str]
    """The clusters that it is being spread over; empty when nothing more is to come."""
