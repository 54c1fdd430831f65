"""One replica of a partition: leads or follows as the partition's record says, and never by an older record.

A shell calls it and then performs the effects that `take` returns, in order. The replica leads only if the record names
its node in this incarnation and an epoch that its own log has not seen; it ignores a record whose epoch is below the
last one in its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from backend_store.core.replication.effects import Abandon, Effect, Follow, Reread, Send
from backend_store.core.replication.entries import Draft, Entry
from backend_store.core.replication.follower import Follower
from backend_store.core.replication.leader import Leader, Refusal
from backend_store.core.replication.log import Mark, ReplicaLog, StoredLog
from backend_store.core.replication.messages import AskSnapshot, Fetch, Message, Request, Row, WrongEpoch
from backend_store.core.replication.record import Change, Identity, Incarnation, NodeId, PartitionRecord
from backend_store.core.replication.settings import Settings
from backend_store.model import Epoch, Offset

REQUEST_BITS = 32
"""Bits of a request's number within one incarnation; the incarnation's own number is above them."""
DRIFT_PERCENT_MAX = 10
"""How much faster one node's steady clock may run than another's, where safety rests on clocks."""


def first_request(me: Identity) -> int:
    """Returns the first request number of an incarnation, so that an answer to the previous one is not mistaken."""
    return me.inc << REQUEST_BITS


class Replica:
    """The state of one replica: its log, the record it obeys, and its role. The shell of the partition owns it."""

    def __init__(
        self,
        me: Identity,
        stored: StoredLog,
        tail: Iterable[Entry] = (),
        *,
        settings: Settings | None = None,
        now_ms: int,
    ):
        """`tail`: the verified entries above `stored.base`. All times but `wall_ms` are of the node's steady clock."""
        self.me = me
        self.log = ReplicaLog(stored, tail)
        self.settings = settings or Settings()
        self.record: PartitionRecord | None = None
        self.role: Leader | Follower | None = None
        self.is_ahead = False
        """True if the last record received is older than the log and was ignored."""
        self._out: list[Effect] = []
        self._request = first_request(me)
        # What the previous incarnation lent its leader is not known.
        self._lent_ms = now_ms

    def take(self) -> list[Effect]:
        """Returns the effects since the last call, to be performed in this order."""
        taken = self._out[:]
        self._out.clear()
        return taken

    @property
    def leader(self) -> Leader | None:
        return self.role if isinstance(self.role, Leader) else None

    # --------------------------------------------------------------------------------------------------- the record

    def on_record(self, record: PartitionRecord, *, now_ms: int, wall_ms: int) -> None:
        """Takes a record that was read, was announced, or is the outcome of a change."""
        known = self.record
        if known is not None and record.version <= known.version:
            return
        self.is_ahead = record.epoch < self.log.last_epoch
        if self.is_ahead:
            return
        self.record = record
        goes_on = known is not None and (known.epoch, known.leader) == (record.epoch, record.leader)
        goes_on = goes_on and self.me.node in record.replicas
        match self.role:
            case Leader() as leader if goes_on:
                leader.reshaping.learned(record)
                leader.advance(now_ms)
                leader.reshaping.propose(now_ms, barrier=leader.barrier)
            case Follower() as follower if goes_on:
                follower.learned(record)
            case _:
                self._step_down()
                self._take_role(record, now_ms, wall_ms)

    def on_refused(self, change: Change, record: PartitionRecord, *, now_ms: int, wall_ms: int) -> None:
        """Handles a refused change; `record` is the record that it was compared with."""
        leader = self.leader
        if leader is not None and record.version == change.expects:
            leader.reshaping.refused(change)
            leader.advance(now_ms)
        self.on_record(record, now_ms=now_ms, wall_ms=wall_ms)

    def rejoin(self, inc: Incarnation, *, now_ms: int, wall_ms: int) -> None:
        """Takes a new incarnation after the session was lost: the replica gives up its role and takes one anew."""
        record, self.record = self.record, None
        self._step_down()
        self.me = replace(self.me, inc=inc)
        self._request = first_request(self.me)
        if record is not None:
            self.on_record(record, now_ms=now_ms, wall_ms=wall_ms)

    def _step_down(self) -> None:
        match self.role:
            case Leader() as leader:
                self._out.append(Follow())
                tickets = leader.waiting.take_all()
                if tickets:
                    self._out.append(Abandon(tickets))
            case Follower() as follower:
                self._request = follower.request
                self._lent_ms = follower.fetch_sent_ms or self._lent_ms
            case None:
                pass
        self.role = None

    def _take_role(self, record: PartitionRecord, now_ms: int, wall_ms: int) -> None:
        me, out = self.me, self._out
        if record.leader is None or me.node not in record.replicas:
            return
        if record.leader != me.node:
            self.role = Follower(me, record, record.leader, self.log, self.settings, out, request=self._request)
            self.role.go_on(now_ms)
        elif record.leader_inc == me.inc and record.epoch > self.log.last_epoch:
            lent_ms = self.settings.peer_lease_ms * (100 + DRIFT_PERCENT_MAX) // 100
            from_ms = now_ms if record.is_released else self._lent_ms + lent_ms
            self.role = Leader(
                me, record, self.log, self.settings, out, now_ms=now_ms, wall_ms=wall_ms, confirms_from_ms=from_ms
            )

    # ---------------------------------------------------------------------------------------------------- messages

    def on_message(self, message: Message, *, now_ms: int) -> None:
        """Handles a request or an answer of another replica."""
        match message:
            case Fetch() | AskSnapshot():
                self._on_request(message, now_ms)
            case _:
                if isinstance(self.role, Follower):
                    self.role.on_answer(message, now_ms)

    def _on_request(self, request: Request, now_ms: int) -> None:
        leader = self.leader
        if leader is None or request.epoch != leader.epoch:
            epoch = Epoch(0) if self.record is None else self.record.epoch
            if request.epoch > epoch:
                self._out.append(Reread())
            self._out.append(
                Send(request.sender.node, WrongEpoch(request.partition, epoch, request.request)),
            )
            return
        match request:
            case Fetch():
                leader.on_fetch(request, now_ms)
            case AskSnapshot():
                leader.on_ask_snapshot(request, now_ms)
            case _:
                assert_never(request)

    def reconnected(self, node: NodeId, *, now_ms: int) -> None:
        """Handles a new connection to a node: answers that were on their way from there may be lost."""
        if isinstance(self.role, Follower) and self.role.leader == node:
            self.role.reconnected(now_ms)

    def fetched(self, fetch: Fetch, entries: tuple[bytes, ...], *, now_ms: int) -> None:
        """Answers a fetch with the entries of a `Serve`. Does nothing if the replica no longer leads in that epoch."""
        if self.leader is not None and self.leader.epoch == fetch.epoch:
            self.leader.fetched(fetch, entries, now_ms)

    def page(self, ask: AskSnapshot, rows: tuple[Row, ...], *, is_last: bool) -> None:
        """Answers with the rows of a `ServeSnapshot`, as they are applied now."""
        if self.leader is not None and self.leader.epoch == ask.epoch:
            self.leader.page(ask, rows, is_last=is_last)

    # ----------------------------------------------------------------------------------------------------- commits

    def applied_to(self, end: Offset) -> None:
        """Notes that the entries below `end` are applied, by what the next commit makes durable."""
        self.log.apply_to(end)

    def staged(self) -> Mark:
        """Returns the mark of a commit that begins now, with all effects so far and `log.stored()`."""
        return self.log.staged()

    def committed(self, mark: Mark, *, now_ms: int) -> None:
        """Handles that the commit of `mark` is durable."""
        self.log.committed(mark)
        match self.role:
            case Leader() as leader:
                leader.advance(now_ms)
                if leader.reshaping.is_leaving:
                    leader.reshaping.propose(now_ms, barrier=leader.barrier)
            case Follower() as follower:
                follower.committed(now_ms)
            case None:
                pass

    # -------------------------------------------------------------------------------------------------- as a leader

    def append(self, drafts: Sequence[Draft], *, now_ms: int, wall_ms: int) -> tuple[Entry, ...] | Refusal:
        """Appends `drafts`. Returns the entries, whose ends the caller should `wait` for, or why none were appended."""
        leader = self.leader
        return "not-leader" if leader is None else leader.append(drafts, now_ms=now_ms, wall_ms=wall_ms)

    def wait(self, end: Offset, ticket: Any, *, now_ms: int) -> bool:
        """Has `ticket` confirmed or abandoned later. The ticket may be that of a duplicate publish, whose original is
        in the log, confirmed or not.

        Returns False if too many tickets wait: the caller then answers `overloaded`, and publishing again with the same
        id is safe.
        """
        leader = self.leader
        assert leader is not None, "only a leader confirms"
        if not leader.wait(end, ticket):
            return False
        if end <= leader.confirmed_end(now_ms):
            leader.advance(now_ms)
        return True

    def renew(self, *, now_ms: int) -> bool:
        """Has a follower's damaged rows fetched from its leader again. Returns whether that begins now."""
        if not isinstance(self.role, Follower) or not self.role.renew():
            return False
        self.role.go_on(now_ms)
        return True

    def hand_over(self, target: NodeId | None, *, now_ms: int) -> None:
        """Stops appending and lets `target` lead once it has everything. None: resigns once everything is committed."""
        if self.leader is not None:
            self.leader.leave(target, now_ms)

    def keep_lease(self, until_ms: int) -> None:
        """Extends the lease: the coordinator keeps this node's session until then, by this node's clock."""
        if self.leader is not None:
            self.leader.lease_until_ms = max(self.leader.lease_until_ms, until_ms)

    def lose_lease(self) -> None:
        """Ends the lease: the coordinator has ended this node's session early."""
        if self.leader is not None:
            self.leader.lease_until_ms = 0

    def has_ended(self, nodes: Collection[NodeId]) -> None:
        """Notes nodes without a session at the coordinator: the next `look` drops them from the in-sync set."""
        if self.leader is not None:
            self.leader.reshaping.gone = nodes

    def look(self, *, now_ms: int) -> None:
        """Handles what is due by time; to be called no later than `next_look_ms`."""
        if self.role is not None:
            self.role.look(now_ms)

    def next_look_ms(self, now_ms: int) -> int | None:
        """Returns when `look` must be called at the latest; None: not at all."""
        match self.role:
            case Leader():
                return now_ms + self.settings.look_ms
            case Follower() as follower:
                asked_ms = follower.asked_ms
                return now_ms + self.settings.look_ms if asked_ms is None else asked_ms + follower.timeout_ms
            case None:
                return None
