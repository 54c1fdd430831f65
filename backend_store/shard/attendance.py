"""Records the cluster's membership for the in-cluster manager: nodes that joined, left or are forgotten, and each
shard's leader."""

from __future__ import annotations

from msgspec.structs import replace

from backend_store.cluster.core.values import Delete, Operation, Put
from backend_store.core.replication.record import NodeId, PartitionRecord
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import drain_key, member_key, removal_key
from backend_store.shard.ledger import Ledger, Told
from backend_store.shard.members import EventKind, Member
from backend_store.shard.registry import encode
from backend_store.shard.rounds import Patience, is_lost
from backend_store.shard.view import ClusterView


class Attendance:
    """Tracks one term. The state at its begin makes no events."""

    def __init__(self, view: ClusterView, patience: Patience, ledger: Ledger) -> None:
        self._view = view
        self._patience = patience
        self._ledger = ledger
        self._drains = set(view.drains)
        self._removals = set(view.removals)
        self._empty = {name for name in view.removals if self._is_empty(name)}
        self._kept = {name: dict(report.quarantined) for name, report in view.reports.items()}
        self._damaged = {name: dict(report.damaged) for name, report in view.reports.items()}
        self._repairs = {name: dict(report.repairs) for name, report in view.reports.items()}
        self._led = {shard: (record.epoch, record.leader) for shard, record in view.records.items()}

    async def step(self) -> None:
        """Raises `Unavailable`, `OutcomeUnknown`."""
        await self._come_and_go()
        await self._forget()
        await self._tell_asked()
        await self._tell_led()
        await self._tell_quarantined()
        await self._tell_damaged()

    async def _come_and_go(self) -> None:
        view, now_ms = self._view, self._ledger.now_ms()
        for name, row in list(view.nodes.items()):
            known = view.members.get(name)
            here = Member(name, row.zone, is_here=True, since_ms=now_ms)
            if known is None:
                told = Told("joined", f"{name} joined, in zone {row.zone or 'none'}", name)
                await self._put(here, told)
            elif not known.is_here:
                away_s = max(0, now_ms - known.since_ms) // 1000
                await self._put(here, Told("returned", f"{name} is back after {away_s} s", name))
            elif known.zone != row.zone or known.since_ms > now_ms:  # its writer's clock was ahead
                await self._put(here)
        planned = {node for plan in view.plans.values() for node in plan.replicas}
        for name in sorted({*planned, *view.members} - view.nodes.keys()):
            known = view.members.get(name)
            if known is None or known.is_here:
                zone = "" if known is None else known.zone
                missed = Member(name, zone, is_here=False, since_ms=now_ms)
                await self._put(missed, Told("left", f"{name} left: its session has ended", name))
            elif known.since_ms > now_ms:
                await self._put(replace(known, since_ms=now_ms))

    async def _put(self, member: Member, *told: Told) -> None:
        await self._ledger.write((Put(member_key(member.name), encode(member)),), *told)

    async def _forget(self) -> None:
        """Removes members that are gone for good and have no copies."""
        view, now_ms = self._view, self._ledger.now_ms()
        for name, member in list(view.members.items()):
            if is_lost(member, view, self._patience, now_ms) and not view.keeps(name):
                gone: tuple[Operation, ...] = (
                    Delete(member_key(name)),
                    Delete(removal_key(name)),
                    Delete(drain_key(name)),
                )
                kept = sum(self._kept.get(name, {}).values())
                what = f"{kept} quarantined messages are gone with it, unless it comes back" if kept else "kept nothing"
                await self._ledger.write(gone, Told("forgotten", f"{name} is gone, and {what}", name))
                for names in (self._drains, self._removals, self._empty):
                    names.discard(name)

    async def _tell_asked(self) -> None:
        view = self._view
        await self._tell_set(view.drains, self._drains, ("draining", "hands over its leaderships, as requested"))
        await self._tell_set(self._drains, view.drains, ("drain-ended", "may lead again"), ends=self._drains)
        await self._tell_set(view.removals, self._removals, ("removing", "is being removed: its copies move elsewhere"))
        await self._tell_set(
            self._removals, view.removals, ("removal-ended", "stays, its removal was cancelled"), ends=self._removals
        )
        empty = {name for name in view.removals if self._is_empty(name)}
        self._empty &= empty
        await self._tell_set(empty, self._empty, ("emptied", "holds no copies any more and can be stopped for good"))

    async def _tell_set(
        self,
        now: set[NodeId],
        before: set[NodeId],
        said: tuple[EventKind, str],
        *,
        ends: set[NodeId] | None = None,
    ) -> None:
        """Writes an event for each node that is in `now` and not in `before`; then adds it to `before`, or removes it
        from `ends`."""
        for name in sorted(now - before):
            await self._ledger.write((), Told(said[0], f"{name} {said[1]}", name))
            if ends is None:
                before.add(name)
            else:
                ends.discard(name)

    def _is_empty(self, name: NodeId) -> bool:
        row = self._view.nodes.get(name)
        report = self._view.reports.get(name)
        has_quarantine = report is not None and bool(report.quarantined)
        return row is not None and not row.disks and not has_quarantine and not self._view.keeps(name)

    def elected(self, shard: ShardNumber, record: PartitionRecord) -> None:
        """The manager elected this leader, and has written the event."""
        self._led[shard] = (record.epoch, record.leader)

    async def _tell_led(self) -> None:
        """Writes an event for each leadership that moved by a handover."""
        for shard, record in list(self._view.records.items()):
            epoch, leader = self._led.get(shard, (0, None))
            if record.epoch <= epoch or record.leader is None:
                continue
            self._led[shard] = (record.epoch, record.leader)
            plan = self._view.plans.get(shard)
            if leader in self._view.leaving:
                reason = "it was asked to give its leaderships away"
            elif plan is not None and leader not in plan.replicas:
                reason = "its copy moves elsewhere"
            elif plan is not None and record.leader == plan.replicas[0]:
                reason = "that is its home"
            else:
                reason = "it stops"
            text = f"the lead of shard {shard} moved from {leader or 'nobody'} to {record.leader}: {reason}"
            await self._ledger.write((), Told("lead-moved", text, record.leader, shard))

    async def _tell_quarantined(self) -> None:
        """Writes an event where a backend reports more quarantined messages of a shard than before."""
        for name, report in list(self._view.reports.items()):
            before = self._kept.get(name, {})
            self._kept[name] = dict(report.quarantined)
            for shard, messages in report.quarantined.items():
                more = messages - before.get(shard, 0)
                if more > 0:
                    text = (
                        f"{name} holds {more} confirmed messages of shard {shard} that its leader lacks: see pushq "
                        "recover list"
                    )
                    await self._ledger.write((), Told("quarantined", text, name, ShardNumber(int(shard))))

    async def _tell_damaged(self) -> None:
        """Writes an event where a backend reports damaged rows, or has renewed a damaged copy."""
        for name, report in list(self._view.reports.items()):
            damaged, self._damaged[name] = self._damaged.get(name, {}), dict(report.damaged)
            for shard in sorted(report.damaged.keys() - damaged.keys()):
                rows = report.damaged[shard]
                text = f"{rows} rows of the copy of shard {shard} on {name} are corrupt: check its disk"
                await self._ledger.write((), Told("damaged", text, name, ShardNumber(int(shard))))
            repairs, self._repairs[name] = self._repairs.get(name, {}), dict(report.repairs)
            for shard, times in report.repairs.items():
                if times > repairs.get(shard, 0):
                    text = f"{name} rebuilt shard {shard} from its leader because rows on its disk were corrupt"
                    await self._ledger.write((), Told("repaired", text, name, ShardNumber(int(shard))))
