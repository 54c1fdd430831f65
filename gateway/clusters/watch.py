"""Mirrors the coordinator's records of one cluster of backends, for the gateway's `/v1/cluster` operations."""

from __future__ import annotations

import asyncio
import time
from typing import assert_never

import structlog

from backend_store.client import timestamp
from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Delete, Operation, Put, Transaction
from backend_store.cluster.etcd.driver import EtcdConfig, open_etcd
from backend_store.cluster.mirror import Mirror
from backend_store.core.placement.values import CopyDropped, CopyMoved, LeadMoved, Move
from backend_store.core.replication.record import NodeId
from backend_store.model import Conflict, NotFound, PushqError, Unavailable
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import MANAGER, REBALANCE, ROOT, drain_key, removal_key
from backend_store.shard.members import ASKED, ClusterEvent
from backend_store.shard.rounds import Patience, due, why
from backend_store.shard.successions import heirs
from backend_store.shard.view import ClusterView
from gateway.api.shapes.clusters import (
    NO_CLUSTERS,
    ClusterEventView,
    ClusterMove,
    ClusterNode,
    ClusterShard,
    ClustersState,
    ClusterState,
    Rebalanced,
)
from gateway.limits import CLUSTER_RETRY_SECONDS, CLUSTER_STALE_SECONDS_MAX

log = structlog.get_logger("pushq.cluster")


class ClusterWatch:
    """The watch of one cluster; its owner runs `run` in a task. Without the coordinator only this view is unavailable:
    the gateway goes on."""

    def __init__(self, etcd: EtcdConfig, patience: Patience) -> None:
        """`patience`: the backends' setting, to compute what they would move."""
        self._etcd = etcd
        self._patience = patience
        self._view = ClusterView()
        self._coordinator: Coordinator | None = None
        self._mirror: Mirror | None = None

    async def run(self) -> None:
        """Follows the coordinator, and reconnects after errors. Runs until cancelled."""
        while True:
            try:
                await self._follow()
            except PushqError as error:
                log.warning("the cluster's coordinator cannot be read", error=error.detail)
            await asyncio.sleep(CLUSTER_RETRY_SECONDS)

    async def _follow(self) -> None:
        coordinator = await open_etcd(self._etcd)
        try:
            self._view = ClusterView()
            self._mirror = Mirror(coordinator, ROOT, told=self._view.told)
            self._coordinator = coordinator
            await self._mirror.run()
        finally:
            self._coordinator = None
            await coordinator.close()

    # ------------------------------------------------------------------------------------------------------- the view

    def _fresh(self) -> tuple[Mirror, ClusterView]:
        """The mirror and the view. Raises `Unavailable` if they are older than `CLUSTER_STALE_SECONDS_MAX`."""
        mirror = self._mirror
        if mirror is None or mirror.staleness_s > CLUSTER_STALE_SECONDS_MAX:
            raise Unavailable(
                "the cluster's coordinator is not responding, so the cluster's state is unknown; retry later"
            )
        return mirror, self._view

    def state(self, all_of_them: ClustersState = NO_CLUSTERS) -> ClusterState:
        """The cluster's state, at most `CLUSTER_STALE_SECONDS_MAX` old. Raises `Unavailable`."""
        mirror, view = self._fresh()
        manager = mirror.records.get(MANAGER)
        return ClusterState(
            clusters=all_of_them.clusters,
            managers=all_of_them.managers,
            manager_events=all_of_them.manager_events,
            plan=all_of_them.plan,
            nodes=[self._node(name) for name in self._names()],
            shards=[self._shard(number) for number in sorted(view.plans)],
            events=[_event(event) for event in view.events],
            manager=None if manager is None else manager.value.decode(),
            age_ms=max(0, round(mirror.staleness_s * 1000)),
        )

    def _names(self) -> list[NodeId]:
        view = self._view
        planned = (node for plan in view.plans.values() for node in plan.replicas)
        return sorted({*view.nodes, *view.members, *view.leaving, *planned})

    def _node(self, name: NodeId) -> ClusterNode:
        view = self._view
        row, member, report = view.nodes.get(name), view.members.get(name), view.reports.get(name)
        known = row or member
        kept = {*view.keeps(name), *(() if row is None else map(int, row.disks))}
        kept |= set() if report is None else set(map(int, report.quarantined))
        return ClusterNode(
            name,
            zone=None if known is None else known.zone,
            address=None if row is None else row.service,
            alive=row is not None,
            draining=name in view.drains,
            removing=name in view.removals,
            copies=len(kept),
            since=None if member is None else timestamp(member.since_ms),
            disk_used_bytes=None if report is None else report.disk_used,
            disk_free_bytes=None if report is None else report.disk_free,
        )

    def _shard(self, number: ShardNumber) -> ClusterShard:
        view = self._view
        plan, record, leader = view.plans[number], view.records.get(number), view.leaders.get(number)
        wanted: list[str] = list(plan.replicas)
        if record is None:
            return ClusterShard(
                str(number), None, 0, wanted, [], wanted, {}, plan.min_in_sync, plan.mode, serving=False
            )
        report = None if record.leader is None else view.reports.get(record.leader)
        lag = {} if report is None else report.lag.get(str(number), {})
        return ClusterShard(
            str(number),
            record.leader,
            record.epoch,
            list(record.replicas),
            list(record.isr),
            wanted,
            {str(node): entries for node, entries in lag.items()},
            record.min_in_sync,
            record.mode,
            serving=leader is not None and leader.epoch == record.epoch,
        )

    def backends(self) -> dict[str, str | None]:
        """Backend → its service address, or None if it is away; for all backends of the cluster. Raises
        `Unavailable`."""
        _, view = self._fresh()
        return {
            str(name): view.nodes[name].service if name in view.nodes and view.nodes[name].service else None
            for name in self._names()
        }

    # ---------------------------------------------------------------------------------------------------------- acts

    async def drain(self, name: str, *, is_wanted: bool) -> ClusterNode:
        """Asks a backend to hand its leaderships over, or allows it leaderships again.

        Raises `NotFound`, `Unavailable`, `OutcomeUnknown`.
        """
        return await self._ask_node(name, drain_key(NodeId(name)), is_wanted=is_wanted)

    async def remove(self, name: str, *, is_wanted: bool) -> ClusterNode:
        """Asks for a backend's copies to be made elsewhere, or withdraws that.

        Raises `Conflict` for an independent host that no other one can replace, `NotFound`, `Unavailable`,
        `OutcomeUnknown`.
        """
        _, view = self._fresh()
        if is_wanted and _is_of_hosts(view) and not _may_be_followed(NodeId(name), view):
            raise Conflict(
                f"{name} is an independent host with a lane, and no host without a lane can take its place: start "
                "another host first"
            )
        return await self._ask_node(name, removal_key(NodeId(name)), is_wanted=is_wanted)

    async def _ask_node(self, name: str, key: bytes, *, is_wanted: bool) -> ClusterNode:
        self._fresh()
        if name not in self._names():
            raise NotFound(f"the cluster has no backend {name[:100]!r}")
        await self._write(Put(key, b"") if is_wanted else Delete(key))
        return self._node(NodeId(name))

    async def rebalance(self, *, is_dry: bool) -> Rebalanced:
        """Asks the manager for a round of rebalancing; returns the moves that are due. `is_dry`: only returns them.
        Raises `Conflict` for independent hosts, `Unavailable`, `OutcomeUnknown`."""
        _, view = self._fresh()
        if _is_of_hosts(view):
            raise Conflict(
                "the cluster's backends are independent hosts with a lane each; there is nothing to rebalance"
            )
        moves = [_move(move, view) for move in due(view, self._patience, time.time_ns() // 1_000_000, is_asked=True)]
        if not is_dry:
            await self._write(Put(REBALANCE, ASKED))
        return Rebalanced(moves, started=not is_dry)

    async def _write(self, act: Operation) -> None:
        """Writes to the coordinator, and returns when the mirror has the change. Raises `Unavailable`,
        `OutcomeUnknown`."""
        coordinator, mirror = self._coordinator, self._mirror
        if coordinator is None or mirror is None:
            raise Unavailable("the cluster's coordinator is not responding; retry later")
        outcome = await coordinator.transact(Transaction(then=(act,)))
        try:
            async with asyncio.timeout(CLUSTER_STALE_SECONDS_MAX):
                await mirror.wait_revision(outcome.revision)
        except TimeoutError:
            raise Unavailable("the request is stored but not visible here yet; check again") from None


def _is_of_hosts(view: ClusterView) -> bool:
    return any(plan.lanes for plan in view.plans.values())


def _may_be_followed(name: NodeId, view: ClusterView) -> bool:
    """Whether a host can be removed: it has no lane, is to be replaced already, or there is a free host to replace
    it."""
    planned = {node for plan in view.plans.values() for node in plan.replicas}
    if name not in planned or name in view.removals:
        return True
    return len(heirs(view)) > len(view.removals & planned)


def _event(event: ClusterEvent) -> ClusterEventView:
    shard = None if event.shard is None else str(event.shard)
    return ClusterEventView(
        event.number, timestamp(event.time_ms), event.kind, event.text, event.node, shard, event.manager
    )


def _move(move: Move, view: ClusterView) -> ClusterMove:
    reason, shard = why(move, view, is_asked=True), str(move.shard)
    match move:
        case CopyMoved(_, to, source):
            return ClusterMove(shard, "copy", to, source, reason)
        case LeadMoved(_, to):
            return ClusterMove(shard, "lead", to, None, reason)
        case CopyDropped(_, source):
            return ClusterMove(shard, "drop", None, source, reason)
        case _:
            assert_never(move)
