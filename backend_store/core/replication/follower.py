"""A follower: finds the offset up to which its log equals the leader's, truncates, and copies what follows.

A fetch names the end of the log and the epoch of its last entry, and is sent only when the whole log is on disk. If the
leader has another entry there, the follower steps back through its epochs, one fetch each, until the leader agrees (one
step is not enough after two quick failovers, KIP-279); only then does it truncate its log, once. If the leader's log
begins later, or if entries whose effects cannot be undone are missing there, the follower takes a snapshot.
"""

from __future__ import annotations

from backend_store.core.log.chunk import CorruptEntry
from backend_store.core.replication.effects import (
    Append,
    Apply,
    Effect,
    Reread,
    Send,
    StageRows,
    Switch,
    Trim,
    Truncate,
)
from backend_store.core.replication.entries import Entry, decode
from backend_store.core.replication.limits import EARLY_PAUSE_MS, MISSED_FACTOR_MAX
from backend_store.core.replication.log import ProtocolBroken, ReplicaLog
from backend_store.core.replication.messages import (
    Answer,
    AskSnapshot,
    Diverged,
    Fetch,
    Fetched,
    SnapshotBase,
    SnapshotPage,
    TooOld,
    WrongEpoch,
)
from backend_store.core.replication.record import Identity, NodeId, PartitionRecord
from backend_store.core.replication.settings import Settings
from backend_store.model import Epoch, Offset


class Install:
    """The state of a snapshot that is being fetched."""

    def __init__(self) -> None:
        self.base: SnapshotBase | None = None
        self.whole_from = Offset(0)
        self.after = b""


class Follower:
    """The follower role of a replica under one leader. The replica owns it."""

    def __init__(
        self,
        me: Identity,
        record: PartitionRecord,
        leader: NodeId,
        log: ReplicaLog,
        settings: Settings,
        out: list[Effect],
        *,
        request: int,
    ):
        """`request`: request numbers continue from here; no two requests of a node have the same number."""
        self._me = me
        self._log = log
        self._settings = settings
        self._out = out
        self._record = record
        self.leader = leader
        self.request = request
        self.asked_ms: int | None = None
        """When the pending request was sent; None if there is none."""
        self.timeout_ms = settings.fetch_timeout_ms
        """How long the pending request may take."""
        self._patience_ms = settings.fetch_timeout_ms
        """How long the next request may take: longer if answers took long."""
        self._first: tuple[int, int] | None = None
        """The first of the requests for the next entries: its number, and when it was sent."""
        self._early_ms = EARLY_PAUSE_MS
        """How long to wait for a leader that does not know yet that it leads."""
        self.fetch_sent_ms: int | None = None
        self._heard_ms = 0
        self._told = Offset(0)
        self._probe: tuple[Offset, Epoch] | None = None
        """The offset and epoch that the next fetch asks about, while the logs diverge; None: the end of the log."""
        self._install: Install | None = None
        self._is_one = False
        """True once the leader has answered that its log contains the whole of this one."""
        self._agreed = Offset(0)
        """Offset up to which, at most, the log that the snapshot replaces equals the leader's."""
        self._has_parted = False
        """True if the leader's log is known to have nothing of this log from `_agreed` on."""
        self._applies_to = log.applied
        if record.mode == "async" and not log.is_whole:
            # Pages of the unfinished snapshot may contain what the previous leader had applied but this one lacks.
            self._take_snapshot(log.high_watermark)

    # ---------------------------------------------------------------------------------------------------- requests

    def go_on(self, now_ms: int) -> None:
        """Sends the next request, if none is pending and the whole log is on disk."""
        if self.asked_ms is None and self._log.is_clean:
            self._ask(now_ms)

    def look(self, now_ms: int) -> None:
        """Gives up a request that has timed out, and sends the next one."""
        if self.asked_ms is not None and now_ms - self.asked_ms >= self.timeout_ms:
            self._missed()
        self.go_on(now_ms)

    def learned(self, record: PartitionRecord) -> None:
        """Takes a newer record with the same leader."""
        self._record = record

    def committed(self, now_ms: int) -> None:
        self._advance()
        self.go_on(now_ms)

    def _ask(self, now_ms: int) -> None:
        self.request += 1
        self.asked_ms, self.timeout_ms = now_ms, self._patience_ms
        self._first = self._first or (self.request, now_ms)
        record = self._record
        said = (record.partition, record.epoch, self.request, self._me)
        if self._install is not None:
            self._out.append(Send(self.leader, AskSnapshot(*said, self._install.after, self._log.high_watermark)))
            return
        self.fetch_sent_ms = now_ms
        end, last_epoch = self._position()
        fetch = Fetch(*said, end, last_epoch, self._log.is_whole and self._probe is None, self._heard_ms)
        self._out.append(Send(self.leader, fetch))

    def _position(self) -> tuple[Offset, Epoch]:
        return self._probe or (self._log.end, self._log.last_epoch)

    # ----------------------------------------------------------------------------------------------------- answers

    def on_answer(self, answer: Answer, now_ms: int) -> None:
        """Handles an answer. Only the answer to the latest request counts, and only once."""
        if not self._is_awaited(answer):
            self._be_patient(answer, now_ms)
            return
        self._answered(now_ms)
        match answer:
            case Fetched():
                self._on_fetched(answer)
            case Diverged():
                self._on_diverged(answer)
            case TooOld():
                self._take_snapshot(self._log.high_watermark)
            case SnapshotPage():
                self._on_page(answer, now_ms)
            case WrongEpoch():
                self._on_wrong_epoch(answer, now_ms)
                return
        self.go_on(now_ms)

    def _is_awaited(self, answer: Answer) -> bool:
        is_ours = answer.epoch == self._record.epoch or type(answer) is WrongEpoch
        return self.asked_ms is not None and answer.request == self.request and is_ours

    def _missed(self) -> None:
        self.asked_ms = None
        shortest_ms, longest_ms = self._settings.fetch_timeout_ms, self._settings.fetch_timeout_ms_max
        most_ms = min(MISSED_FACTOR_MAX * shortest_ms, longest_ms)
        self._patience_ms = max(self._patience_ms, min(2 * self._patience_ms, most_ms))

    def _be_patient(self, answer: Answer, now_ms: int) -> None:
        """Extends the time-outs when an answer arrives late: the line is slow, and more requests make it slower."""
        if self._first is None or answer.epoch != self._record.epoch:
            return
        number, first_ms = self._first
        if number <= answer.request < self.request:
            longest_ms = self._settings.fetch_timeout_ms_max
            self._patience_ms = max(self._patience_ms, min(2 * (now_ms - first_ms), longest_ms))
            self.timeout_ms = max(self.timeout_ms, self._patience_ms)

    def _answered(self, now_ms: int) -> None:
        settings = self._settings
        took_ms = 0 if self._first is None else now_ms - self._first[1]
        self._patience_ms = min(max(2 * took_ms, settings.fetch_timeout_ms), settings.fetch_timeout_ms_max)
        self.asked_ms = self._first = None

    def _pause(self, now_ms: int, for_ms: int) -> None:
        self.asked_ms, self.timeout_ms = now_ms, for_ms

    def _on_wrong_epoch(self, answer: WrongEpoch, now_ms: int) -> None:
        """Pauses: briefly if the new leader has not heard of its epoch yet, else a time-out, and rereads the record."""
        if answer.epoch < self._record.epoch:
            self._pause(now_ms, self._early_ms)
            self._early_ms = min(2 * self._early_ms, self._settings.fetch_timeout_ms)
        else:
            self._pause(now_ms, self._settings.fetch_timeout_ms)
            self._out.append(Reread())

    def reconnected(self, now_ms: int) -> None:
        """Sends the pending request again over a new connection: its answer may be lost with the old one."""
        if self.asked_ms is not None:
            self.asked_ms = self._first = None
            self._patience_ms = self._settings.fetch_timeout_ms
            self.go_on(now_ms)

    def _on_fetched(self, answer: Fetched) -> None:
        if self._install is not None or answer.start != self._position()[0]:
            return
        try:
            entries = self._decoded(answer)
        except CorruptEntry:
            return
        self._heard_ms = max(self._heard_ms, answer.sent_ms)
        if not self._agree(answer.start):
            return
        self._is_one = True
        if entries:
            self._log.append(entries)
            self._out.append(Append(tuple(entries)))
        self._told = answer.high_watermark
        self._advance()
        if self._log.trim(answer.trim):
            self._out.append(Trim(self._log.start))

    def _decoded(self, answer: Fetched) -> list[Entry]:
        """Returns the entries of an answer, verified and chained. Raises `CorruptEntry`."""
        entries = [decode(data, partition=self._record.partition) for data in answer.entries]
        end = answer.start
        for entry, before in zip(entries, [None, *entries], strict=False):
            if entry.offset != end or (before is not None and entry.prev_crc != before.crc):
                raise CorruptEntry(f"entry of offset {entry.offset} came where {end} was asked for")
            end = entry.end
        return entries

    def _agree(self, end: Offset) -> bool:
        """The leader's log equals this one up to `end`: truncates the rest, or starts a snapshot and returns False.

        Raises `ProtocolBroken` if that would undo what is final.
        """
        log = self._log
        self._probe = None
        if end == log.end:
            return True
        is_undone = end < log.applied or end < log.whole_from
        if is_undone and self._record.mode == "async":
            self._take_snapshot(end, has_parted=True)
            return False
        if is_undone or end < log.high_watermark:
            raise ProtocolBroken(f"asked to undo what is final: the logs part at {end}, below {log.high_watermark}")
        log.truncate(end)
        self._out.append(Truncate(end, keeps=self._record.mode == "async"))
        return True

    def _on_diverged(self, answer: Diverged) -> None:
        """Steps back to the next offset up to which the logs may be equal. Raises `ProtocolBroken`
        if that would undo what is final, or if there is none.
        """
        log, (asked, last_epoch) = self._log, self._position()
        if self._install is not None or answer.asked != asked:
            return
        known, end = log.end_of(min(answer.common, last_epoch))
        position = min(end, answer.end, asked) if known == answer.common else min(end, asked)
        if (position < log.high_watermark and self._record.mode == "sync") or position == asked:
            raise ProtocolBroken(f"the logs part below {asked}, and {log.high_watermark} is final")
        if position < log.start:
            self._take_snapshot(position, has_parted=True)
        else:
            self._probe = (position, log.epoch_before(position))

    def _advance(self) -> None:
        """Moves the high watermark to the leader's, as far as this log is on disk and known to equal the leader's."""
        log = self._log
        log.advance(self._told)
        if log.high_watermark > self._applies_to:
            self._applies_to = log.high_watermark
            self._out.append(Apply(log.high_watermark))

    # ---------------------------------------------------------------------------------------------------- snapshots

    def _take_snapshot(self, agreed: Offset, *, has_parted: bool = False) -> None:
        self._probe = None
        self._agreed = agreed
        self._has_parted = has_parted
        self._install = Install()

    def renew(self) -> bool:
        """Starts to fetch all rows from the leader again; the old ones count until the new ones are complete. Returns
        False if that is not possible now.

        The log stays, since it equals the leader's: the replica keeps everything that it has acknowledged.
        """
        if self._install is not None or self._probe is not None or not self._is_one:
            return False
        self._take_snapshot(self._log.end)
        return True

    def _may_switch(self) -> bool:
        """Whether the snapshot may replace the state, because no in-sync set relies on this replica.

        The state of an async leader may contain what is not committed yet; a replica that took it could not lead until
        its log has come so far. So a member leaves the in-sync set first; the leader proposes that when it is asked for
        a snapshot.
        """
        record = self._record
        return record.mode == "sync" or self._me.node not in (*record.isr, *record.elr)

    def _on_page(self, page: SnapshotPage, now_ms: int) -> None:
        install = self._install
        if install is None or page.after != install.after:
            return
        if install.base is None:
            if page.base.end < self._log.high_watermark:
                self._install = Install()
                return
            install.base = page.base
        if page.is_last and not self._may_switch():
            self._pause(now_ms, self._settings.fetch_timeout_ms)  # then it requests this page again
            return
        install.whole_from = max(install.whole_from, page.applied)
        self._out.append(StageRows(page.rows, is_first=not install.after))
        if page.rows:
            install.after = page.rows[-1][0]
        if page.is_last:
            self._switch(install.base, install.whole_from)

    def _switch(self, base: SnapshotBase, whole_from: Offset) -> None:
        log = self._log
        keeps = self._record.mode == "async" and log.end > self._agreed
        self._out.append(Switch(base, self._agreed, keeps, self._has_parted))
        log.reset(base, whole_from=whole_from, end=self._agreed)
        self._told = Offset(0)
        self._applies_to = log.applied
        self._install = None
