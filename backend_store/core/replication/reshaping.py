"""A leader's changes of the partition's record: lets followers join, drops those that lag, hands over, resigns.

One change is pending at a time, and until its outcome is known both the old and the new record count: a commit must
already include a replica that joins, and still include one that is dropped. If the answer to a change is lost, the same
change is submitted again, until the record has moved on or the change is refused for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from backend_store.core.replication.effects import Effect, Submit
from backend_store.core.replication.limits import UNFOLLOWED_BYTES_PER_MS
from backend_store.core.replication.log import ReplicaLog
from backend_store.core.replication.progress import Followers
from backend_store.core.replication.record import (
    Change,
    DiskId,
    Identity,
    NodeId,
    NodeIs,
    PartitionRecord,
    change,
    disowned,
    dropped,
    handed_over,
    joined,
    resigned,
)
from backend_store.core.replication.settings import Settings
from backend_store.model import Offset


class Reshaping:
    """The pending and due changes of the record in one epoch. The leader owns it."""

    def __init__(
        self,
        me: Identity,
        record: PartitionRecord,
        log: ReplicaLog,
        followers: Followers,
        settings: Settings,
        out: list[Effect],
    ):
        self._me = me
        self._log = log
        self._followers = followers
        self._settings = settings
        self._out = out
        self._number = 0
        self._asked_ms = 0
        self._leaving_until_ms = 0
        self.record = record
        self.pending: Change | None = None
        self.joining: NodeId | None = None
        """The node that the pending change lets join: it counts at once."""
        self.is_leaving = False
        """True while the leader hands over or resigns, and appends nothing."""
        self.target: NodeId | None = None
        self._gives_up: NodeId | None = None
        self.gone: Collection[NodeId] = ()
        """Members whose sessions have ended: they are dropped before they lag. Only a hint, as lag is."""
        self._short_since_ms: int | None = None
        """Since when too few replicas are in sync; None: enough are."""

    # ----------------------------------------------------------------------------------------------- counted replicas

    def counted(self) -> Iterator[tuple[NodeId, dict[NodeId, DiskId]]]:
        """Yields the other nodes that a commit needs, each with the disks of its membership."""
        for node in self.record.isr:
            if node != self._me.node:
                yield node, self.record.disks
        if self.joining is not None and self.pending is not None:
            yield self.joining, self.pending.record.disks

    def electable(self) -> set[NodeId]:
        """Returns the other nodes that might be elected without the consent of this one."""
        found = {*self.record.isr, *self.record.elr}
        if self.joining is not None:
            found.add(self.joining)
        return found - {self._me.node}

    # ------------------------------------------------------------------------------------------------------- outcomes

    def learned(self, record: PartitionRecord) -> None:
        """Takes a newer record of this epoch: it contains the pending change, or that will never be made."""
        self.record = record
        if self.pending is not None and record.version > self.pending.expects:
            self.pending = self.joining = None

    def refused(self, change: Change) -> None:
        """Drops a change that was refused at the version it expected: a guard failed, and guards fail for ever."""
        if self.pending is not None and self.pending.id == change.id:
            self.pending = self.joining = None

    # ------------------------------------------------------------------------------------------------------- changes

    def leave(self, target: NodeId | None, now_ms: int) -> None:
        """Hands over to a member of the in-sync set, or resigns. The leader gives that up after `handover_ms_max`."""
        self.is_leaving, self.target = True, target
        self._leaving_until_ms = now_ms + self._settings.handover_ms_max
        self.propose(now_ms, barrier=Offset(0))

    def give_up(self, node: NodeId) -> None:
        """Removes a member that is about to replace its data, so that no commit or election counts on it."""
        self._gives_up = node

    def propose(self, now_ms: int, *, barrier: Offset) -> None:
        """Submits the change that is due, or the pending one again after `change_retry_ms`."""
        self._stop_waiting(now_ms)
        if self.pending is not None:
            if now_ms - self._asked_ms >= self._settings.change_retry_ms:
                self._asked_ms = now_ms
                self._out.append(Submit(self.pending))
            return
        if self._gives_up is not None:
            self._propose_giving_up(self._gives_up, now_ms)
        elif self.is_leaving:
            self._propose_leaving(now_ms)
        else:
            self._propose_join(now_ms, barrier)
        if self.pending is None:
            self._propose_drop(now_ms)
        if self.pending is None:
            self._propose_another(now_ms)

    def _stop_waiting(self, now_ms: int) -> None:
        """Gives up a handover that takes too long, unless it may have been made: then another node may already lead."""
        may_be_made = self.pending is not None and self.pending.record.leader != self._me.node
        if self.is_leaving and now_ms >= self._leaving_until_ms and not may_be_made:
            self.is_leaving, self.target = False, None

    def _propose_leaving(self, now_ms: int) -> None:
        log, record, target = self._log, self.record, self.target
        if target is None:
            if log.high_watermark == log.end:
                self._submit(resigned(record), now_ms)
        elif target in record.isr and self._followers.end_of(target, record.disks) == log.end == log.durable_end:
            progress = self._followers.get(target)
            assert progress is not None
            inc = progress.identity.inc
            self._submit(handed_over(record, target, inc), now_ms, NodeIs(target, inc))

    def _propose_giving_up(self, node: NodeId, now_ms: int) -> None:
        self._gives_up = None
        if node in (*self.record.isr, *self.record.elr):
            self._submit(disowned(self.record, node), now_ms)

    def _propose_join(self, now_ms: int, barrier: Offset) -> None:
        for node in self.record.replicas:
            progress = self._followers.get(node)
            if node in self.record.isr or progress is None or not progress.is_whole or progress.end is None:
                continue
            is_near = now_ms - progress.fetched_ms < self._settings.lag_ms_max and node not in self.gone
            if is_near and progress.end >= self._log.high_watermark and progress.end > barrier:
                progress.caught_up_ms = now_ms
                identity = progress.identity
                self.joining = node
                self._submit(joined(self.record, node, identity.disk), now_ms, NodeIs(node, identity.inc))
                return

    def _propose_drop(self, now_ms: int) -> None:
        for node in self.record.isr:
            lags = now_ms - self._followers.caught_up_ms(node) > self._settings.lag_ms_max
            if node != self._me.node and (lags or node in self.gone):
                self._submit(dropped(self.record, node), now_ms)
                return

    def _propose_another(self, now_ms: int) -> None:
        """Resigns if too few replicas are in sync, none fetches, and others are alive that could lead: then this leader
        may be the one that is cut off.

        It has confirmed nothing that they lack, and confirms nothing before enough are in sync again.
        """
        record, (_, size) = self.record, self._log.unsettled
        limit_ms = self._settings.unfollowed_ms + size // UNFOLLOWED_BYTES_PER_MS
        if record.mode != "sync" or not record.is_short:
            self._short_since_ms = None
            return
        if self._short_since_ms is None:
            self._short_since_ms = now_ms
        asked_ms = max(map(self._followers.asked_ms, record.replicas))
        is_followed = now_ms - max(asked_ms, self._short_since_ms) < limit_ms
        if not is_followed and any(node not in self.gone for node in record.elr):
            self._submit(resigned(record), now_ms)

    def _submit(self, after: PartitionRecord, now_ms: int, *guards: NodeIs) -> None:
        me = self._me
        self._number += 1
        self._asked_ms = now_ms
        self.pending = change(
            after, NodeIs(me.node, me.inc), *guards, id=f"{me.node} {me.inc} {self.record.epoch} {self._number}"
        )
        self._out.append(Submit(self.pending))
