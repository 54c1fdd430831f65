"""The in-cluster manager: one backend at a time, elected through the coordinator, places shards and elects leaders.

It checks all shards several times a second. Each change carries the manager's term: the election of a later manager
makes all changes of this one that are still on their way void. The target of a shard is its plan, the present state is
its record; both are at the coordinator, and the next manager continues from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from backend_store.cluster.coordinator import Coordinator, SessionLost
from backend_store.cluster.core.values import Delete, Operation, Put, absent
from backend_store.cluster.election import Election
from backend_store.cluster.fencing import Right
from backend_store.cluster.mirror import Mirror
from backend_store.cluster.session import Session
from backend_store.core.placement.values import CopyMoved, Move
from backend_store.core.replication.controller import decide
from backend_store.core.replication.moving import next_step
from backend_store.core.replication.record import Mode, NodeId, PartitionRecord, first_record
from backend_store.model import PushqError
from backend_store.shard import successions
from backend_store.shard.attendance import Attendance
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import MANAGER, REBALANCE, plan_key, record_key
from backend_store.shard.ledger import Ledger, Told
from backend_store.shard.limits import MANAGER_PAUSE_SECONDS, ROUND_SECONDS, SHARDS_MAX, STEP_SECONDS
from backend_store.shard.members import EventKind
from backend_store.shard.placing import Modes, Plan, place, place_lane
from backend_store.shard.registry import encode, logs_of, sessions_of
from backend_store.shard.rounds import Patience, due, planned, why
from backend_store.shard.view import ClusterView

log = structlog.get_logger("pushq.manager")


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that must be the same on all backends of a cluster."""

    shards: int = 4
    replicas: int = 3
    min_in_sync: int = 2
    mode: Mode = "sync"
    patience: Patience = field(default_factory=Patience)
    lanes: int = 0
    """With independent hosts: the number of hosts that have a lane, which is a shard whose home is its host for as long
    as the host belongs to the cluster. 0: shards are led by elected nodes, and are placed where there is room."""
    async_shards: int = 0
    """Further shards, for queues that ask for mode async."""

    @property
    def shards_all(self) -> int:
        return self.lanes or min(self.shards + self.async_shards, SHARDS_MAX)


class Manager:
    def __init__(self, coordinator: Coordinator, mirror: Mirror, view: ClusterView, me: NodeId, rules: Rules) -> None:
        """`mirror` keeps `view` up to date."""
        self._coordinator = coordinator
        self._mirror = mirror
        self._view = view
        self._me = me
        self._rules = rules
        self._round_at = 0.0
        self.is_manager = False
        self.elections = 0
        self.moves = 0
        """Copies that this manager began to make on other nodes."""
        self.failures = 0
        """Internal errors (our bugs) that this manager met."""

    async def run(self, session: Session) -> None:
        """Campaigns and manages for as long as the session lives, whatever happens: no other node is elected while it
        does."""
        election = Election(self._coordinator, MANAGER)
        while not session.is_lost:
            try:
                await self._manage(session, election)
            except SessionLost:
                return
            except Exception:
                self.failures += 1
                log.exception("the manager failed")
                await asyncio.sleep(MANAGER_PAUSE_SECONDS)

    async def _manage(self, session: Session, election: Election) -> None:
        """Manages from the election to the session's end; resigns after an error that it cannot go on from."""
        right = await election.campaign(session, self._me.encode())
        log.info("manages the cluster", term=right.created_at)
        self.is_manager = True
        try:
            await self._work(session, right)
        except SessionLost:
            raise
        except Exception:
            with contextlib.suppress(PushqError):
                await election.resign(right)
            raise
        finally:
            self.is_manager = False

    async def _work(self, session: Session, right: Right) -> None:
        await self._mirror.wait_filled()
        await self._mirror.wait_revision(right.created_at)
        ledger = Ledger(self._coordinator, self._mirror, self._view, self._me, right)
        attendance = Attendance(self._view, self._rules.patience, ledger)
        while not session.is_lost:
            await self._tried(attendance.step())
            await self._tried(self._step(ledger, attendance))
            await self._tried(self._round(ledger))
            await asyncio.sleep(STEP_SECONDS)

    async def _tried(self, work: Coroutine[Any, Any, None]) -> None:
        """Logs a failure, which is retried in the next round and does not keep other work from being done."""
        try:
            await self._guarded(None, work)
        except SessionLost:
            raise
        except PushqError as error:
            log.warning("the manager could not do what is due", error=error.detail)

    async def _step(self, ledger: Ledger, attendance: Attendance) -> None:
        view = self._view
        for number in range(self._rules.shards_all):
            shard = ShardNumber(number)
            if shard not in view.plans:
                await self._guarded(shard, self._plan(shard, ledger))
            elif shard not in view.records:
                await self._guarded(shard, self._found(view.plans[shard], ledger))
        for shard, record in list(view.records.items()):
            await self._guarded(shard, self._go_on(shard, record, ledger, attendance))

    async def _go_on(self, shard: ShardNumber, record: PartitionRecord, ledger: Ledger, attendance: Attendance) -> None:
        if not await self._elect(shard, record, ledger, attendance):
            await self._approach(shard, record, ledger)

    async def _guarded(self, shard: ShardNumber | None, work: Coroutine[Any, Any, None]) -> None:
        """Isolates one shard: records that make no sense here must not hold up other shards or other work."""
        try:
            await work
        except PushqError:
            raise
        except Exception:
            self.failures += 1
            log.exception("the manager failed at a shard", shard=shard)

    async def _plan(self, shard: ShardNumber, ledger: Ledger) -> None:
        view, rules = self._view, self._rules
        if rules.lanes:
            await self._plan_lane(shard, ledger)
            return
        zones = {name: row.zone for name, row in view.nodes.items() if name not in view.leaving}
        chosen = place(shard, view.plans.values(), zones, replicas=rules.replicas)
        if chosen is None:
            return
        mode = Modes(rules.mode, rules.shards, rules.async_shards).of(shard, view.plans.values())
        plan = Plan(shard, chosen, rules.min_in_sync, mode)
        told = Told("placed", f"shard {shard} is placed on {', '.join(chosen)}", shard=shard)
        key = plan_key(shard)
        await ledger.write((Put(key, encode(plan)),), told, compares=(absent(key),))

    async def _plan_lane(self, lane: ShardNumber, ledger: Ledger) -> None:
        """Plans a lane for a host that has none, once all hosts that are to have a lane are registered."""
        view, rules = self._view, self._rules
        zones = {name: row.zone for name, row in view.nodes.items() if name not in view.leaving}
        holders = place_lane(
            lane, view.plans, zones, lanes=rules.lanes, holders_max=rules.replicas, min_in_sync=rules.min_in_sync
        )
        if holders is None:
            return
        plan = Plan(lane, holders, rules.min_in_sync, "sync" if lane == 0 else rules.mode, rules.lanes)
        told = Told("placed", f"lane {lane} is {holders[0]}'s; holders are {', '.join(holders)}", shard=lane)
        key = plan_key(lane)
        await ledger.write((Put(key, encode(plan)),), told, compares=(absent(key),))

    async def _found(self, plan: Plan, ledger: Ledger) -> None:
        """Writes the shard's first record, once all its replicas have said which copy they have: all are empty."""
        sessions = sessions_of(self._view.nodes, plan.shard)
        if not all(node in sessions for node in plan.replicas):
            return
        disks = {node: sessions[node].disk for node in plan.replicas}
        record = first_record(plan.shard, disks, min_in_sync=plan.min_in_sync, mode=plan.mode)
        key = record_key(plan.shard)
        await ledger.write((Put(key, encode(record)),), compares=(absent(key),))

    async def _elect(self, shard: ShardNumber, record: PartitionRecord, ledger: Ledger, attendance: Attendance) -> bool:
        """Returns whether something was to be done."""
        nodes = self._view.nodes
        wanted = decide(record, sessions_of(nodes, shard), term=ledger.term, logs=logs_of(nodes, shard))
        if wanted is None:
            return False
        after, told = wanted.record, []
        if after.epoch != record.epoch:
            reason = "nobody led it" if record.leader is None else f"{record.leader} is gone"
            text = f"{after.leader} is elected leader of shard {shard}: {reason}"
            told.append(Told("elected", text, after.leader, shard))
        made = await ledger.submit(shard, wanted, *told)
        if told and made is not None and made.is_made:
            self.elections += 1
            attendance.elected(shard, after)
        return True

    async def _approach(self, shard: ShardNumber, record: PartitionRecord, ledger: Ledger) -> None:
        """Makes the next step from the shard's present replicas to the planned ones."""
        plan = self._view.plans.get(shard)
        if plan is None or any(epoch > record.epoch for epoch, _ in logs_of(self._view.nodes, shard).values()):
            return  # a record older than the logs does not say which node has what
        change = next_step(record, plan.replicas, sessions_of(self._view.nodes, shard), term=ledger.term)
        if change is None:
            return
        after, in_sync = change.record, ", ".join(change.record.isr)
        begun = [node for node in after.replicas if node not in record.replicas]
        gone = [node for node in record.replicas if node not in after.replicas]
        told = [
            *(Told("copy-begun", f"{node} begins to copy shard {shard}", node, shard) for node in begun),
            *(
                Told("copy-removed", f"{node} keeps shard {shard} no more: {in_sync} have all of it", node, shard)
                for node in gone
            ),
        ]
        await ledger.submit(shard, change, *told)

    # ------------------------------------------------------------------------------------------------------- rounds

    async def _round(self, ledger: Ledger) -> None:
        """Decides where copies and leaderships should be, and writes the new plans."""
        now = asyncio.get_running_loop().time()
        view, is_asked = self._view, self._view.is_rebalance_asked
        if now < self._round_at and not is_asked:
            return
        self._round_at = now + ROUND_SECONDS
        if self._rules.lanes:
            await self._succeed(ledger)
        moves = [] if self._rules.lanes else due(view, self._rules.patience, ledger.now_ms(), is_asked=is_asked)
        by_shard: dict[int, list[Move]] = {}
        for move in moves:
            by_shard.setdefault(move.shard, []).append(move)
        for shard, plan in planned(view.plans, moves).items():
            if set(plan.replicas) != set(view.plans[shard].replicas):
                self.moves += 1
            told = [_told(move, view, is_asked=is_asked) for move in by_shard[shard] if isinstance(move, CopyMoved)]
            await ledger.write((Put(plan_key(shard), encode(plan)),), *told)
        if is_asked:
            done: tuple[Operation, ...] = (Delete(REBALANCE),)
            await ledger.write(done)

    async def _succeed(self, ledger: Ledger) -> None:
        """Lanes stay with their hosts. A host that goes is replaced by another one in all of its lanes, or in none."""
        view = self._view
        found = successions.due(view, self._rules.patience, ledger.now_ms())
        if found is None:
            return
        kind: EventKind = "copy-moved" if found.host in view.nodes else "copy-replaced"
        told = [Told(kind, found.why(lane, view), found.heir, lane) for lane in found.plans]
        puts = tuple(Put(plan_key(lane), encode(plan)) for lane, plan in found.plans.items())
        if await ledger.write(puts, *told):
            self.moves += len(puts)


def _told(move: CopyMoved, view: ClusterView, *, is_asked: bool) -> Told:
    is_there = move.source is not None and move.source in view.nodes
    return Told(
        "copy-moved" if is_there else "copy-replaced",
        why(move, view, is_asked=is_asked),
        NodeId(move.to),
        ShardNumber(move.shard),
    )
