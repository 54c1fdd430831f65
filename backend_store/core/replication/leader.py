"""A leader: appends entries, answers fetches, advances the high watermark, and confirms what is committed.

It begins with a barrier, the first entry of its epoch. Until the barrier is confirmed, all inherited entries are in
doubt: the leader accepts publishes, but delivers nothing and answers no duplicate publish. It never truncates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from backend_store.core.replication.effects import (
    Append,
    Apply,
    Confirm,
    Effect,
    Lead,
    Send,
    Serve,
    ServeSnapshot,
    Trim,
)
from backend_store.core.replication.entries import ENTRY_BARRIER, Draft, Entry, seal
from backend_store.core.replication.limits import UNCOMMITTED_BYTES_MAX, UNCOMMITTED_ENTRIES_MAX
from backend_store.core.replication.log import ReplicaLog
from backend_store.core.replication.messages import (
    AskSnapshot,
    Diverged,
    Fetch,
    Fetched,
    Message,
    Row,
    SnapshotPage,
    TooOld,
)
from backend_store.core.replication.progress import Followers, Progress
from backend_store.core.replication.record import Identity, NodeId, PartitionRecord
from backend_store.core.replication.reshaping import Reshaping
from backend_store.core.replication.settings import Settings
from backend_store.core.replication.waiting import Waiting
from backend_store.model import Offset

Refusal = Literal["not-leader", "not-durable", "leaving", "overloaded"]
"""Why nothing is appended. `not-durable`: too few replicas are in sync, or no lease proves that this one leads."""


class Leader:
    """The leader role of a replica in one epoch. The replica owns it."""

    def __init__(
        self,
        me: Identity,
        record: PartitionRecord,
        log: ReplicaLog,
        settings: Settings,
        out: list[Effect],
        *,
        now_ms: int,
        wall_ms: int,
        confirms_from_ms: int,
    ):
        """`confirms_from_ms`: an async partition confirms nothing earlier; the previous leader might still do so."""
        self._me = me
        self._log = log
        self._settings = settings
        self._out = out
        self._confirms_from_ms = confirms_from_ms
        self.followers = Followers(now_ms)
        self.reshaping = Reshaping(me, record, log, self.followers, settings, out)
        self.waiting = Waiting()
        self._applies_to = log.applied
        self.epoch = record.epoch
        self.lease_until_ms = 0
        """The coordinator keeps this node's session until then, by this node's clock."""
        out.append(Lead(self.epoch))
        self.barrier = log.end
        self._append([Draft(1, (), ENTRY_BARRIER)], wall_ms)

    @property
    def record(self) -> PartitionRecord:
        return self.reshaping.record

    # ------------------------------------------------------------------------------------------------------ appending

    def refusal(self, now_ms: int) -> Refusal | None:
        """Returns why nothing may be appended now, or None."""
        if self.reshaping.is_leaving:
            return "leaving"
        if self.record.mode == "sync":
            if self.record.is_short:
                return "not-durable"
        elif not self._is_vouched_for(now_ms):
            return "not-durable"
        entries, size = self._log.unsettled
        if entries >= UNCOMMITTED_ENTRIES_MAX or size >= UNCOMMITTED_BYTES_MAX or self.waiting.is_full:
            return "overloaded"
        return None

    def append(self, drafts: Sequence[Draft], *, now_ms: int, wall_ms: int) -> tuple[Entry, ...] | Refusal:
        """Appends entries and sends them to followers that wait. Returns the entries, or why none were appended."""
        refusal = self.refusal(now_ms)
        return self._append(drafts, wall_ms) if refusal is None else refusal

    def _append(self, drafts: Sequence[Draft], wall_ms: int) -> tuple[Entry, ...]:
        log, entries = self._log, []
        for draft in drafts:
            last = log.last
            time_ms = max(last.time_ms, wall_ms)
            entry = seal(
                draft,
                partition=self.record.partition,
                epoch=self.epoch,
                offset=log.end,
                time_ms=time_ms,
                prev_crc=last.crc,
            )
            log.append([entry])
            entries.append(entry)
        self._out.append(Append(tuple(entries)))
        for progress in self.followers.parked():
            self._serve(progress)
        return tuple(entries)

    # ------------------------------------------------------------------------------------------------------ confirming

    def advance(self, now_ms: int) -> None:
        """Moves the high watermark as far as all counted replicas have the log, and confirms what that allows."""
        log = self._log
        if log.high_watermark < log.durable_end and not self.record.is_short:
            ends = [self.followers.end_of(node, disks) for node, disks in self.reshaping.counted()]
            log.advance(min([log.durable_end, *ends]))
        confirmed = self.confirmed_end(now_ms)
        final = max(log.high_watermark, confirmed)
        if final > self._applies_to:
            self._applies_to = final
            self._out.append(Apply(final))
        tickets = self.waiting.take(confirmed)
        if tickets:
            self._out.append(Confirm(tickets))

    def confirmed_end(self, now_ms: int) -> Offset:
        """Returns the offset below which callers may be answered: 0 until the barrier is confirmed."""
        log = self._log
        end = log.high_watermark
        if self.record.mode == "async" and self._is_vouched_for(now_ms):
            end = max(end, log.durable_end)
        return end if end > self.barrier else Offset(0)

    def is_serving(self, now_ms: int) -> bool:
        """Whether messages may be delivered now: inherited entries are confirmed, and acks could be appended."""
        log = self._log
        return self.refusal(now_ms) is None and self.confirmed_end(now_ms) > 0 and log.applied >= log.whole_from

    def is_vouched_for(self, now_ms: int) -> bool:
        """Whether no other replica can lead now, in either mode. Deliveries rest on that, and so on clocks."""
        return self._is_vouched_for(now_ms)

    def has_lease(self, now_ms: int) -> bool:
        return now_ms < self.lease_until_ms

    def _is_vouched_for(self, now_ms: int) -> bool:
        """Whether no other replica can lead now: this node has a session, or all electable replicas follow this one."""
        if now_ms < self._confirms_from_ms:
            return False
        if self.has_lease(now_ms):
            return True
        peers = [self.followers.get(node) for node in self.reshaping.electable()]
        limit_ms = now_ms - self._settings.peer_lease_ms
        return bool(peers) and all(
            peer is not None and peer.heard_ms is not None and peer.heard_ms > limit_ms for peer in peers
        )

    # ------------------------------------------------------------------------------------------------------- fetches

    def on_fetch(self, fetch: Fetch, now_ms: int) -> None:
        """Compares the follower's log with this one; sends entries, `Diverged` or `TooOld`, or holds the fetch."""
        node, log = fetch.sender.node, self._log
        if node not in self.record.replicas or node == self._me.node:
            return
        progress = self.followers.of(fetch, now_ms)
        if progress is None:
            return
        common, end = log.end_of(fetch.last_epoch)
        if fetch.end < log.start or (fetch.end and end < log.start):
            self._send(node, TooOld(self.record.partition, self.epoch, fetch.request, log.start))
        elif fetch.end and (common != fetch.last_epoch or fetch.end > end or log.epoch_before(fetch.end) != common):
            self._send(node, Diverged(self.record.partition, self.epoch, fetch.request, fetch.end, common, end))
        else:
            self._matched(progress, fetch, now_ms)

    def _matched(self, progress: Progress, fetch: Fetch, now_ms: int) -> None:
        progress.matched(fetch, self._log.end, now_ms)
        progress.parked = fetch
        self.advance(now_ms)
        if self.reshaping.is_leaving or fetch.sender.node not in self.record.isr:
            # Changes that are due by time alone, such as dropping a replica that lags, wait for the next `look`.
            self.reshaping.propose(now_ms, barrier=self.barrier)
        if fetch.end < self._log.end:
            self._serve(progress)

    def fetched(self, fetch: Fetch, entries: tuple[bytes, ...], now_ms: int) -> None:
        """Answers a fetch with the entries that the shell has read."""
        log = self._log
        answer = Fetched(
            self.record.partition,
            self.epoch,
            fetch.request,
            fetch.end,
            entries,
            log.high_watermark,
            log.start,
            now_ms,
        )
        self._send(fetch.sender.node, answer)

    def _serve(self, progress: Progress) -> None:
        assert progress.parked is not None
        self._out.append(Serve(progress.parked))
        progress.parked = None

    def _send(self, node: NodeId, message: Message) -> None:
        self._out.append(Send(node, message))

    # ------------------------------------------------------------------------------------------------------ snapshots

    def on_ask_snapshot(self, ask: AskSnapshot, now_ms: int) -> None:
        """Serves a page of a snapshot, and keeps the log that follows it."""
        if ask.sender.node not in self.record.replicas:
            return
        progress = self.followers.of(ask, now_ms)
        if progress is None:
            return
        # A new leader may know a lower high watermark than its followers; it has the entries, or it would not lead.
        self._log.advance(ask.high_watermark)
        self.advance(now_ms)
        if self.record.mode == "async" or ask.sender.node in self.record.isr:
            # An in-sync replica that renews its rows fetches nothing meanwhile, so commits must not wait for it.
            self.reshaping.give_up(ask.sender.node)
            self.reshaping.propose(now_ms, barrier=self.barrier)
        if not ask.after or progress.snapshot is None:
            progress.snapshot = self._log.settled
        progress.snapshot_ms = now_ms
        self._out.append(ServeSnapshot(ask))

    def page(self, ask: AskSnapshot, rows: tuple[Row, ...], *, is_last: bool) -> None:
        """Answers a snapshot request with a page of rows that the shell has read, as they are applied now."""
        log = self._log
        answer = SnapshotPage(
            self.record.partition,
            self.epoch,
            ask.request,
            ask.after,
            log.snapshot_base(),
            rows,
            max(log.applied, log.whole_from),
            is_last,
        )
        self._send(ask.sender.node, answer)

    # ------------------------------------------------------------------------------------------------------- trimming

    def trim(self, now_ms: int) -> None:
        """Trims the log that no replica needs any more; a replica that is too far behind does not count."""
        point = self.trim_point(now_ms)
        if self._log.trim(point):
            self._out.append(Trim(self._log.start))

    def trim_point(self, now_ms: int) -> Offset:
        log = self._log
        point = min(log.applied, log.high_watermark)
        for node in self.record.replicas:
            if node != self._me.node:
                needs = self._needs(node, now_ms)
                if needs < point and log.size_from(needs) <= self._settings.catchup_bytes_max:
                    point = needs
        return point

    def _needs(self, node: NodeId, now_ms: int) -> Offset:
        """Returns the offset from which on a replica needs the log; the whole log while its position is unknown."""
        progress = self.followers.get(node)
        if progress is None:
            return self._log.start
        if progress.snapshot is not None and now_ms - progress.snapshot_ms < self._settings.snapshot_keep_ms:
            return progress.snapshot
        return self._log.start if progress.end is None else progress.end

    # ---------------------------------------------------------------------------------------------------------- time

    def look(self, now_ms: int) -> None:
        """Handles what is due by time: fetches that have waited, changes, and confirmations that a lease allows."""
        self.advance(now_ms)
        self.reshaping.propose(now_ms, barrier=self.barrier)
        self.trim(now_ms)
        for progress in self.followers.parked():
            if now_ms - progress.fetched_ms >= self._settings.fetch_wait_ms:
                self._serve(progress)

    def leave(self, target: NodeId | None, now_ms: int) -> None:
        """Hands over to a member of the in-sync set, or resigns."""
        self.reshaping.leave(target, now_ms)

    def wait(self, end: Offset, ticket: Any) -> bool:
        """Has `ticket` confirmed when the log is confirmed up to `end`. Returns False if too many tickets wait."""
        if self.waiting.is_full:
            return False
        self.waiting.add(end, ticket)
        return True
