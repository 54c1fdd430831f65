"""A backend's view of its cluster: the coordinator's records below `backend/`, decoded as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from backend_store.cluster.core.values import Event
from backend_store.core.replication.record import NodeId, PartitionRecord
from backend_store.shard.interface import ShardLeader, ShardNumber
from backend_store.shard.keys import (
    DRAINS,
    EVENTS,
    FORMAT,
    MEMBERS,
    NODES,
    REBALANCE,
    REMOVALS,
    REPORTS,
    parse_shard_key,
)
from backend_store.shard.members import ClusterEvent, Member, Report, decode_event, decode_member, decode_report
from backend_store.shard.placing import Plan, decode_plan
from backend_store.shard.registry import NodeRow, decode_node, decode_record

log = structlog.get_logger("pushq.cluster")

_decode_leader = msgspec.json.Decoder(ShardLeader).decode

Key = TypeVar("Key")
Row = TypeVar("Row")


class ClusterView:
    """Kept up to date by a `Mirror`, which calls `told`."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeRow] = {}
        self.members: dict[NodeId, Member] = {}
        self.drains: set[NodeId] = set()
        self.removals: set[NodeId] = set()
        self.reports: dict[NodeId, Report] = {}
        self.plans: dict[ShardNumber, Plan] = {}
        self.records: dict[ShardNumber, PartitionRecord] = {}
        self.leaders: dict[ShardNumber, ShardLeader] = {}
        self.is_rebalance_asked = False
        self._events: dict[bytes, ClusterEvent] = {}
        self.on_told: Callable[[], None] = lambda: None
        """Called after each batch of events: anything in the view may have changed."""
        self.on_format: Callable[[int], None] = lambda format: None
        self.on_nodes: Callable[[], None] = lambda: None
        self.on_plan: Callable[[Plan], None] = lambda plan: None
        self.on_record: Callable[[ShardNumber, PartitionRecord], None] = lambda shard, record: None

    @property
    def events(self) -> list[ClusterEvent]:
        """The last events of the cluster, newest last."""
        return sorted(self._events.values(), key=lambda event: event.number)

    @property
    def leaving(self) -> set[NodeId]:
        """Nodes that give their leaderships away and get none."""
        return self.drains | self.removals

    @property
    def copies_missing(self) -> int:
        """Number of copies that are planned, and are not in sync."""
        return sum(
            len(set(plan.replicas).difference(record.isr if (record := self.records.get(shard)) else ()))
            for shard, plan in self.plans.items()
        )

    def keepers(self, shard: ShardNumber) -> set[NodeId]:
        """Nodes that have a copy of a shard, or are planned to have one."""
        plan, record = self.plans.get(shard), self.records.get(shard)
        return {*(() if plan is None else plan.replicas), *(() if record is None else record.replicas)}

    def keeps(self, node: NodeId) -> list[ShardNumber]:
        """The shards of which a node has a copy, or is planned to have one."""
        return [shard for shard in sorted({*self.plans, *self.records}) if node in self.keepers(shard)]

    def told(self, events: tuple[Event, ...]) -> None:
        for event in events:
            try:
                self._take(event)
            except msgspec.MsgspecError as error:
                log.error("a record of the coordinator cannot be read", key=event.key.decode(), error=str(error))
        self.on_told()

    def _take(self, event: Event) -> None:
        key, value = event.key, None if event.record is None else event.record.value
        if key.startswith(NODES):
            _keep(self.nodes, NodeId(key.removeprefix(NODES).decode()), value, decode_node)
            self.on_nodes()
        elif key.startswith(MEMBERS):
            _keep(self.members, NodeId(key.removeprefix(MEMBERS).decode()), value, decode_member)
        elif key.startswith(REPORTS):
            _keep(self.reports, NodeId(key.removeprefix(REPORTS).decode()), value, decode_report)
        elif key.startswith(EVENTS):
            _keep(self._events, key, value, decode_event)
        elif key.startswith((DRAINS, REMOVALS)):
            asked = self.drains if key.startswith(DRAINS) else self.removals
            name = NodeId(key.removeprefix(DRAINS).removeprefix(REMOVALS).decode())
            (asked.discard if value is None else asked.add)(name)
        elif key == REBALANCE:
            self.is_rebalance_asked = value is not None
        elif key == FORMAT and value is not None:
            self.on_format(msgspec.json.decode(value, type=int))
        elif (parsed := parse_shard_key(key)) is not None:
            self._take_shard(*parsed, value)

    def _take_shard(self, shard: ShardNumber, what: bytes, value: bytes | None) -> None:
        if what == b"plan" and value is not None:
            plan = self.plans[shard] = decode_plan(value)
            self.on_plan(plan)
        elif what == b"record" and value is not None:
            record = self.records[shard] = decode_record(value)
            self.on_record(shard, record)
        elif what == b"leader":
            self.leaders.pop(shard, None)
            if value is not None:
                self.leaders[shard] = _decode_leader(value)


def _keep(rows: dict[Key, Row], key: Key, value: bytes | None, decode: Callable[[bytes], Row]) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = decode(value)
