"""The keys of shards and backends at the coordinator, and their values. All values are JSON.

| Key | Value | Written by |
| --- | --- | --- |
| `backend/incarnation/NODE` | number of the node's last life | the node, before it begins one |
| `backend/node/NODE` | `NodeRow` | the node; bound to its session |
| `backend/life/NODE/INC` | empty | the node; bound to its session; writes are fenced with it |
| `backend/manager` | name of the node | the elected in-cluster manager; its creation is the term |
| `backend/shard/NUMBER/plan` | `Plan` | the manager |
| `backend/shard/NUMBER/record` | `PartitionRecord`: leader, epoch, in-sync set | manager and leader, compare-and-set |
| `backend/shard/NUMBER/leader` | `ShardLeader` | the leader while it serves; bound to its session |
| `backend/drain/NODE` | empty | an operator: the node gives its leaderships away and gets none |
| `backend/removal/NODE` | empty | an operator: its copies go elsewhere, too |
| `backend/rebalance` | `asked` | an operator: copies and leaderships are evened out now; the manager deletes it |
| `backend/member/NODE` | `Member` | the manager: who belongs to the cluster, present or away |
| `backend/event/SLOT` | `ClusterEvent` | the manager: the last events, in a ring |
| `backend/format` | number of the records' format; 1 if missing | no program yet: a version that changes it will |
| `backend/report/NODE` | `Report` | the node; bound to its session |
"""

from __future__ import annotations

from typing import Final

from backend_store.core.replication.record import Incarnation, NodeId
from backend_store.shard.interface import ShardNumber
from backend_store.shard.limits import EVENTS_MAX

ROOT: Final = b"backend/"
NODES: Final = ROOT + b"node/"
SHARDS: Final = ROOT + b"shard/"
DRAINS: Final = ROOT + b"drain/"
REMOVALS: Final = ROOT + b"removal/"
MEMBERS: Final = ROOT + b"member/"
EVENTS: Final = ROOT + b"event/"
REPORTS: Final = ROOT + b"report/"
REBALANCE: Final = ROOT + b"rebalance"
MANAGER: Final = ROOT + b"manager"
FORMAT: Final = ROOT + b"format"
RECORDS_FORMAT: Final = 1
"""Changes when records change so that the version before would misread them."""


def incarnation_key(node: NodeId) -> bytes:
    return ROOT + b"incarnation/" + node.encode()


def node_key(node: NodeId) -> bytes:
    return NODES + node.encode()


def life_key(node: NodeId, inc: Incarnation) -> bytes:
    return ROOT + b"life/%b/%d" % (node.encode(), inc)


def drain_key(node: NodeId) -> bytes:
    return DRAINS + node.encode()


def removal_key(node: NodeId) -> bytes:
    return REMOVALS + node.encode()


def member_key(node: NodeId) -> bytes:
    return MEMBERS + node.encode()


def event_key(number: int) -> bytes:
    return EVENTS + b"%05d" % (number % EVENTS_MAX)


def report_key(node: NodeId) -> bytes:
    return REPORTS + node.encode()


def plan_key(shard: ShardNumber) -> bytes:
    return SHARDS + b"%05d/plan" % shard


def record_key(shard: ShardNumber) -> bytes:
    return SHARDS + b"%05d/record" % shard


def leader_key(shard: ShardNumber) -> bytes:
    return SHARDS + b"%05d/leader" % shard


def parse_shard_key(key: bytes) -> tuple[ShardNumber, bytes] | None:
    """(shard, "plan", "record" or "leader") of a key of `SHARDS`; None for any other."""
    number, _, what = key.removeprefix(SHARDS).partition(b"/")
    if not key.startswith(SHARDS) or not number.isdigit():
        return None
    return ShardNumber(int(number)), what
