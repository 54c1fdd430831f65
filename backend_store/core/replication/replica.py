"""One replica of a partition: follows or leads as the partition's record says, and never by an older word.

Shells call it and then do what `take` returns, in that order. It leads only when the record names its node in this
very life, in an epoch that its own log has not seen; it obeys no record of an epoch below the last one in its log.
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
"""Numbers of requests in one life; the life's own number stands above them."""
DRIFT_PERCENT_MAX = 10
"""How much faster one node's steady clock may run than another's, for what rests on clocks at all."""


def first_request(me: Identity) -> int:
    """Where a life's request numbers begin: an answer to the life before must not be taken for one to this."""
    return me.inc << REQUEST_BITS


class Replica:
    def __init__(
        self,
        me: Identity,
        stored: StoredLog,
        tail: Iterable[Entry] = (),
        *,
        settings: Settings | None = None,
        now_ms: int,
    ):
        """`tail`: the verified entries above `stored.base`. Times are of the node's steady clock, unless said."""
        self.me = me
        self.log = ReplicaLog(stored, tail)
        self.settings = settings or Settings()
        self.record: PartitionRecord | None = None
        self.role: Leader | Follower | None = None
        self.is_ahead = False
        """The last record that came is older than the log, and is not obeyed."""
        self._out: list[Effect] = []
        self._request = first_request(me)
        # What it lent its leader in the life before it does not know.
        self._lent_ms = now_ms

    def take(self) -> list[Effect]:
        """What to do, in this order."""
        taken = self._out[:]
        self._out.clear()
        return taken

    @property
    def leader(self) -> Leader | None:
        return self.role if isinstance(self.role, Leader) else None

    # --------------------------------------------------------------------------------------------------- the record

    def on_record(self, record: PartitionRecord, *, now_ms: int, wall_ms: int) -> None:
        """A record was read, was announced, or is the outcome of a change."""
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
        """A change was refused; `record` is what it was compared with."""
        leader = self.leader
        if leader is not None and record.version == change.expects:
            leader.reshaping.refused(change)
            leader.advance(now_ms)
        self.on_record(record, now_ms=now_ms, wall_ms=wall_ms)

    def rejoin(self, inc: Incarnation, *, now_ms: int, wall_ms: int) -> None:
        """The session was lost and the node has a new one: what this replica was it has to become again."""
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
        """There is a new line to that node: what was on its way from there may be lost."""
        if isinstance(self.role, Follower) and self.role.leader == node:
            self.role.reconnected(now_ms)

    def fetched(self, fetch: Fetch, entries: tuple[bytes, ...], *, now_ms: int) -> None:
        """The shell has read the entries of a `Serve`. A partition that leads no more has nothing to say."""
        if self.leader is not None and self.leader.epoch == fetch.epoch:
            self.leader.fetched(fetch, entries, now_ms)

    def page(self, ask: AskSnapshot, rows: tuple[Row, ...], *, is_last: bool) -> None:
        """The shell has read the rows of a `ServeSnapshot`, as they are applied now."""
        if self.leader is not None and self.leader.epoch == ask.epoch:
            self.leader.page(ask, rows, is_last=is_last)

    # ----------------------------------------------------------------------------------------------------- commits

    def applied_to(self, end: Offset) -> None:
        """The entries below are applied, in what the next commit makes durable."""
        self.log.apply_to(end)

    def staged(self) -> Mark:
        """A commit begins, with all that was asked for so far and `log.stored()`."""
        return self.log.staged()

    def committed(self, mark: Mark, *, now_ms: int) -> None:
        """The commit that began with `mark` is durable."""
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
        """The entries that were made of `drafts`, or why none were. Wait for their ends to be confirmed."""
        leader = self.leader
        return "not-leader" if leader is None else leader.append(drafts, now_ms=now_ms, wall_ms=wall_ms)

    def wait(self, end: Offset, ticket: Any, *, now_ms: int) -> bool:
        """`ticket` is confirmed or abandoned: also of one who published again what the log has, confirmed or not.

        False: too many wait already, and the caller is told `overloaded`; publishing again with the same id is safe.
        """
        leader = self.leader
        assert leader is not None, "only a leader confirms"
        if not leader.wait(end, ticket):
            return False
        if end <= leader.confirmed_end(now_ms):
            leader.advance(now_ms)
        return True

    def renew(self, *, now_ms: int) -> bool:
        """A follower's rows are damaged: they are taken anew from its leader. Whether that begins now."""
        if not isinstance(self.role, Follower) or not self.role.renew():
            return False
        self.role.go_on(now_ms)
        return True

    def hand_over(self, target: NodeId | None, *, now_ms: int) -> None:
        """Takes nothing new; when `target` has everything, it leads. None: resigns, when everything is committed."""
        if self.leader is not None:
            self.leader.leave(target, now_ms)

    def keep_lease(self, until_ms: int) -> None:
        """The coordinator confirmed a heartbeat: it keeps this node's session until then, by this node's clock."""
        if self.leader is not None:
            self.leader.lease_until_ms = max(self.leader.lease_until_ms, until_ms)

    def lose_lease(self) -> None:
        """The coordinator does not keep this node's session any more, however long it was to."""
        if self.leader is not None:
            self.leader.lease_until_ms = 0

    def has_ended(self, nodes: Collection[NodeId]) -> None:
        """The coordinator has no session of these any more: the next `look` takes them out of the in-sync set."""
        if self.leader is not None:
            self.leader.reshaping.gone = nodes

    def look(self, *, now_ms: int) -> None:
        """What time brings; to be called by `next_look_ms`."""
        if self.role is not None:
            self.role.look(now_ms)

    def next_look_ms(self, now_ms: int) -> int | None:
        """When `look` must be called at the latest."""
        match self.role:
            case Leader():
                return now_ms + self.settings.look_ms
            case Follower() as follower:
                asked_ms = follower.asked_ms
                return now_ms + self.settings.look_ms if asked_ms is None else asked_ms + follower.timeout_ms
            case None:
                return None
