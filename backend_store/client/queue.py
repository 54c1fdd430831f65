"""A queue as the rest of Pushq sees it: publish, lease, settle, peek, administer."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend_store.client.cancel import CancelOutcome, cancel
from backend_store.client.dead_letters import Letters, Spot, Wanted, count
from backend_store.client.filters import PeekFilter
from backend_store.client.group_receipts import GroupReceipts
from backend_store.client.layout import PartitionInfo, layout_of
from backend_store.client.nack_log import NackLog
from backend_store.client.peek import Show, cut_short, look_through, peeked
from backend_store.client.redrive import Redrive, Redrives
from backend_store.client.streams import Gap, StreamParts
from backend_store.client.views import AskView, Views, extending, giving_back
from backend_store.core.leases.leases import Holder, Lease
from backend_store.core.leases.nack_reasons import sealed_reason
from backend_store.core.leases.receipts import INDEX_OF, by_token
from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.log.chunk import Blocks, Columns
from backend_store.core.log.records import PartitionState, Tally
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_LATE, VIEW_MAIN, VIEW_OUTBOX
from backend_store.core.ready.attempt_policy import Reason
from backend_store.model import (
    ONE_NODE,
    Block,
    Claim,
    FieldError,
    InvalidRequest,
    Overloaded,
    PeekPage,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    QueueStats,
    Replication,
    Verdict,
)
from backend_store.node.commit.transaction import Transaction, TransactionResult
from backend_store.node.limits import PEEK_LEASES_MAX, PEEK_SECONDS_MAX
from backend_store.node.node import Node
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions
from backend_store.node.views.acks import SettleReply
from backend_store.node.views.group import Mode
from backend_store.node.views.view import View

STALE = "stale-receipt"
JOBS_REMEMBERED_MAX = 16
"""Purges of one queue that can still be looked up."""

PublishReply = Callable[[Published | PushqError], None]
VerdictsReply = Callable[[list[Verdict] | PushqError], None]


@dataclass(frozen=True, slots=True)
class SettledAndPublished:
    """The answer to an ack that publishes: one verdict per receipt, one place per publish."""

    verdicts: list[Verdict]
    places: list[Published]


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge, done or in progress: the messages are gone at once, their rows are deleted afterwards."""

    id: str
    total: int
    state: str = "done"


def remember(purges: dict[str, Purge], purge: Purge) -> None:
    """Adds a purge; the oldest ones are dropped for it."""
    while len(purges) >= JOBS_REMEMBERED_MAX:
        purges.pop(next(iter(purges)))
    purges[purge.id] = purge


class EmbeddedQueue:
    """A queue whose partitions are in this process, or a companion of one. The store owns the object and gives all
    callers the same one for as long as the queue exists.
    """

    def __init__(self, node: Node, definition: QueueDefinition, partitions: Partitions, view: int = VIEW_MAIN):
        self._node = node
        self.definition = definition
        self._partitions = partitions
        self._number = view
        self._views: Views | None = None
        """None for a stream: only its groups have views."""
        self.parts = StreamParts(partitions)
        """A stream's partitions, as readers see them."""
        self._group_receipts = GroupReceipts(partitions)
        if definition.config.kind == "work" or view != VIEW_MAIN:
            self._views = Views([partition.view(view) for partition in partitions.all])
        self._wake: Callable[[], None] | None = None
        self._consumers = 0
        self.deleted = False
        self.companions: list[EmbeddedQueue] = []
        """Of a deleted queue: those of its companions and groups that were in use."""
        self.purges: dict[str, Purge] = {}
        self.redrives = Redrives(definition.name)
        self._nacks = NackLog(definition.tenant, definition.name)
        self.extras: dict[str, Any] = {}
        """Slot for what a gateway keeps per queue: its feeder, its fan-out."""
        self.groups: dict[str, EmbeddedQueue] = {}
        """Of a stream: its consumer groups in use."""
        if self.root is self:
            partitions.on_changed(self._changed)
            self._listen_to_groups()

    @property
    def consumers(self) -> int:
        """How many consumers the queue has."""
        return self._consumers

    @consumers.setter
    def consumers(self, count: int) -> None:
        self._consumers = count
        self.touch()

    def touch(self) -> None:
        """Marks the queue as changed without a commit, so that watchers look at it."""
        self._node.touched.add(self._partitions.first)

    def _changed(self) -> None:
        """Partitions came or went."""
        self._listen_to_groups()
        for group in self.groups.values():
            group._changed()
        if self._views is None:
            return
        self._views.set([partition.view(self._number) for partition in self._partitions.all])
        if self._wake is not None:
            self._views.on_ready(self._wake)
            self._node.soon(self._wake)

    def _listen_to_groups(self) -> None:
        """A group appears in a new partition with a commit of its own."""
        for partition in self._partitions.all if not self.is_companion else ():
            if partition.groups is not None:
                partition.groups.on_made = self._group_made

    def _group_made(self, name: str) -> None:
        if name in self.groups:
            self.groups[name]._changed()

    @property
    def partitions(self) -> Sequence[Partition]:
        """Partitions that may hold messages, in the order of their numbers."""
        return self._partitions.all

    @property
    def _partition(self) -> Partition:
        """The first partition."""
        return self._partitions.first

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def place(self) -> str:
        """Name under which leases are kept for a session that may return: `queue`, or `stream/group`."""
        return self.name

    @property
    def root(self) -> EmbeddedQueue:
        """The queue that owns the messages: the stream, for a consumer group."""
        return self

    @property
    def group(self) -> str | None:
        """The name, if this is a consumer group of a stream."""
        return None

    @property
    def mode(self) -> Mode | None:
        """The mode, if this is a consumer group."""
        return None

    @property
    def one_at_a_time(self) -> bool:
        """Whether one consumer at a time gets messages, so that one may be refused while another is not."""
        return False

    def take_gaps(self) -> list[Gap]:
        """For a consumer group: takes what the stream dropped before the group reached it.

        Each gap is returned once; the caller tells the consumers.
        """
        return []

    def put_back_gaps(self, gaps: Sequence[Gap]) -> None:
        """Returns gaps that a consumer may not have received: the next consumer is told."""

    def on_gap(self, tell: Callable[[], None]) -> None:
        """`tell` runs when a group has missed messages: there are gaps to take."""

    @property
    def gone(self) -> PushqError:
        """The error for its consumers once the queue is deleted."""
        return QueueNotFound(f"queue {self.name!r} was deleted")

    @property
    def tenant(self) -> str:
        return self.definition.tenant

    @property
    def uid(self) -> int:
        """Never used twice, not even by a later queue of the same name."""
        return self.definition.uid

    @property
    def config(self) -> QueueConfig:
        return self.definition.config

    # ------------------------------------------------------------------------------------------------- messages

    @property
    def is_split(self) -> bool:
        """Whether the queue has, or had, several partitions."""
        return self._partitions.map is not None

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages encoded, grouped by target partition."""
        return self._partitions.blocks(columns, trace)

    def sealed(self, blocks: list[Block]) -> list[Block]:
        """A call's blocks as they may be stored: sealed if the queue is encrypted. Raises `Unavailable`."""
        return self._partitions.sealed(blocks)

    @property
    def content_key(self) -> bytes:
        """Key for hashes of contents, so that the hashes reveal nothing; empty if contents are not sealed.

        Raises `Unavailable`.
        """
        seal = self._partitions.seal
        return seal.secret() if seal is not None and self.config.encrypted else b""

    def steady_ms(self) -> int:
        return self._node.steady_ms()

    def publish(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None = None, *, until_ms: int = 0
    ) -> None:
        """Stores the blocks of one call; `reply` runs when they are durable or refused.

        With a `claim`, repeats of the call within the queue's dedupe window store nothing. What has not begun by
        `until_ms`, by the node's steady clock, never will; what is not durable by then has an unknown outcome.
        """
        if self.is_companion:
            reply(InvalidRequest(f"{self.name!r} receives its messages automatically; publish to another queue"))
        elif claim is not None:
            self._partitions.publish_once(blocks, claim, reply, until_ms=until_ms)
        else:
            self._partitions.publish(blocks, reply, until_ms=until_ms)

    def why_full(self, messages: int = 1, size: int = 1) -> PushqError | None:
        """Why so many more messages and bytes cannot be taken now; None if they can. Always None with several
        partitions, as it depends on the message.
        """
        return self._partitions.first.why_full(messages, size) if len(self._partitions.all) == 1 else None

    @property
    def is_companion(self) -> bool:
        """Whether the queue holds another queue's dead or late messages."""
        return self._number != VIEW_MAIN

    def is_colocated_with(self, other: EmbeddedQueue) -> bool:
        """Whether an ack here may publish there in the same transaction."""
        if self.tenant != other.tenant or other.is_companion:
            return False
        return other.name in (self.name, self.config.colocate_with) or other.config.colocate_with == self.name

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[EmbeddedQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        """Acks and publishes in one commit: all of it, or nothing if one receipt no longer holds its message."""
        grouped = by_token(receipts)
        acks = self._by_view(grouped)
        if acks is None:
            reply(SettledAndPublished([_STALE] * len(receipts), []))
            return

        def decided(result: TransactionResult | PushqError) -> None:
            if isinstance(result, PushqError):
                reply(result)
            else:
                reply(SettledAndPublished(_judge(receipts, result.settled), result.places))

        targets = [(queue._partitions, blocks) for queue, blocks in publishes]
        acks[0][0].partition.settle_and_publish(Transaction(acks, targets, decided))

    def move(
        self,
        grouped: dict[str, int],
        target: EmbeddedQueue,
        blocks: list[Block],
        reply: Callable[[bool | PushqError], None],
    ) -> None:
        """Moves leased messages (token → bits), given as the blocks that the other queue is to store, in one commit.
        `reply` gets whether they moved: False if one of them is not held any more."""
        acks = self._by_view(grouped)
        if acks is None:
            reply(False)
            return

        def decided(result: TransactionResult | PushqError) -> None:
            reply(result if isinstance(result, PushqError) else bool(result.places))

        step = Transaction(acks, [(target._partitions, blocks)], decided, moves=True)
        acks[0][0].partition.settle_and_publish(step)

    def _by_view(self, grouped: dict[str, int]) -> list[tuple[View, dict[str, int]]] | None:
        """Receipts by the view that gave them out; None if one of them belongs to no view."""
        if self._views is None:
            return self._group_receipts.of_one_group(grouped) or None
        own = self._views.by_view(grouped)
        return own if sum(len(receipts) for _, receipts in own) == len(grouped) else None

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        """Acks; `reply` gets one verdict per receipt, in order, once that is durable."""
        self._ask(receipts, View.settle, reply)

    def settle_quietly(self, receipts: list[str]) -> None:
        """Acks without waiting for verdicts."""
        holders = self._views if self._views is not None else self._group_receipts
        for view, grouped in holders.by_view(by_token(receipts)):
            view.settle_soon(grouped)

    def settle_lease(self, lease: Lease) -> None:
        """Settles a whole lease: its bytes were sent, and the consumer acks automatically."""
        view = self._views.of(lease) if self._views is not None else None
        if view is not None and lease.receipts:
            view.settle_soon({lease.token: lease.bits})

    def give_back(
        self,
        receipts: list[str],
        delay_ms: int | None,
        reply: VerdictsReply,
        reason: str | None = None,
        *,
        tried: bool = True,
    ) -> None:
        """Nacks; with a delay the messages stay invisible that long. The reason is kept in the messages' history. The
        attempt counts only if `tried`.
        """
        if delay_ms and not self.can_delay:
            detail = (
                f"queue {self.name!r}: {DELAYED_RUNS_MAX} batches of messages are already delayed; nack without a delay"
            )
            reply(Overloaded(detail, retry_after_ms=1000))
            return
        due_ms = self._node.steady_ms() + delay_ms if delay_ms else delay_ms
        if reason is None:
            self._ask(receipts, giving_back(due_ms, None, tried=tried), reply)
            return
        is_secret = self.config.encrypted
        stored = sealed_reason(reason, self._partitions.seal) if is_secret else reason

        def told(verdicts: list[Verdict] | PushqError) -> None:
            if not isinstance(verdicts, PushqError) and (given := sum(one.ok for one in verdicts)):
                self._nacks.note(given, None if is_secret else reason)
            reply(verdicts)

        self._ask(receipts, giving_back(due_ms, stored, tried=tried), told)

    @property
    def can_delay(self) -> bool:
        """Whether one more message may be nacked with a delay."""
        return self._views is None or all(view.core.can_delay for view in self._views.all)

    def extend(self, receipts: list[str], visibility_ms: int, reply: VerdictsReply) -> None:
        """Extends leases: at once if leases are kept in memory, with a commit if they are stored."""
        self._ask(receipts, extending(visibility_ms), reply)

    def _ask(self, receipts: list[str], ask: AskView, reply: VerdictsReply) -> None:
        holders = self._views if self._views is not None else self._group_receipts
        holders.ask(by_token(receipts), ask, lambda done: reply(_verdicts(receipts, done)))

    def ask_grouped(self, grouped: dict[str, int], ask: AskView, reply: SettleReply) -> None:
        """Like `_ask`, for receipts as token → bits; `reply` gets those for which it succeeded."""
        holders = self._views if self._views is not None else self._group_receipts
        holders.ask(grouped, ask, reply)

    def view_of(self, lease: Lease) -> View | None:
        """The view that gave a lease out; None if it is gone."""
        return self._views.of(lease) if self._views is not None else None

    async def next_look(self) -> None:
        """Returns when the search for messages has continued: see `is_looking`."""
        await asyncio.sleep(0)

    def wanted_changed(self) -> None:
        """Consumers want less than before; an embedded queue has nothing on its way to them."""

    def give_back_lease(self, lease: Lease) -> None:
        if self._views is not None:
            view = self._views.of(lease)
        else:
            view = next((one for one, _ in self._group_receipts.by_view({lease.token: lease.bits})), None)
        if view is not None:
            view.give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        if self._views is not None and (view := self._views.of(lease)) is not None:
            view.unsent(lease)

    def detach(self, lease: Lease) -> None:
        """Does nothing: the gateway and the store end together."""

    def undeliverable(self, lease: Lease) -> None:
        """Ends leased messages that cannot be sent."""
        if self._views is not None and (view := self._views.of(lease)) is not None:
            view.undeliverable(lease)

    def end_unreadable(self, lease: Lease) -> None:
        """Ends those of a lease's messages that cannot be decoded. In a companion they stay, and are shown with the
        reason."""
        if not self.is_companion and self._views is not None and (view := self._views.of(lease)) is not None:
            view.end_unreadable(lease)

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases up to `limit` ready messages of one chunk for `holder`."""
        assert self._views is not None, f"{self.name}: a stream has no leases without a group"
        return self._views.take(limit, holder, visibility_ms)

    @property
    def has_ready(self) -> bool:
        return self._views is not None and self._views.has_ready

    def check_there(self) -> None:
        """Raises `ClusterAway` if the messages are in another cluster that cannot be reached. Never here."""

    @property
    def is_looking(self) -> bool:
        """Ready messages may not have been found yet: the search continues in the next turn of the loop."""
        return self._views is not None and any(view.is_looking for view in self._views.all)

    @property
    def ready(self) -> int:
        return sum(p.state.live for p in self._partitions.all) if self._views is None else self._views.ready

    def on_ready(self, wake: Callable[[], None], wanted: Callable[[], Mapping[int, int]] | None = None) -> None:
        """`wake` runs after each commit that may have made messages ready. `wanted` returns what consumers would take
        now (visibility in ms → messages); only a queue in another process uses it."""
        if self._views is not None:
            self._wake = wake
            self._views.on_ready(wake)

    async def cancel(self, message_id: str) -> CancelOutcome:
        """Ends a scheduled or ready message with this id; returns when that is durable."""
        if self._views is None:
            raise InvalidRequest(f"{self.name!r} is a stream, which keeps messages for all readers")
        outcome: CancelOutcome = "unknown"
        for view in self._views.all:
            outcome = await cancel(view, message_id, self._node.turnstile)
            if outcome != "unknown":
                break
        return outcome

    # ----------------------------------------------------------------------------------------------- administration

    def stats(self) -> QueueStats:
        partitions, views = self._partitions.all, self._views
        tallies = [view.tally for view in views.all] if views is not None else [p.state for p in partitions]
        number = self._number if self.group is None or views is None else views.first.number
        ages = [
            partition.log_ms() - oldest
            for partition, tally in zip(partitions, tallies, strict=True)
            if tally.live and (oldest := partition.oldest(number)) is not None
        ]
        return QueueStats(
            ready=self.ready,
            in_flight=views.sum(lambda view: view.core.in_flight) if views else 0,
            delayed=views.sum(lambda view: view.core.delayed) if views else 0,
            dead=0 if self.is_companion else self._dead,
            oldest_age_ms=max((0, *ages)),
            consumers=self.consumers + sum(group.consumers for group in self.groups.values()),
            bytes=views.sum(lambda view: view.bytes) if views else sum(tally.live_bytes for tally in tallies),
            published_total=sum(tally.published_total for tally in (*tallies, *self._past(number))),
            acked_total=sum(tally.acked_total for tally in (*tallies, *self._past(number))),
        )

    def _past(self, number: int) -> list[PartitionState | Tally]:
        """The final states of a view in retired partitions: only their totals are left, and totals never fall."""
        states = self._partitions.past.values()
        if number == VIEW_MAIN:
            return list(states)
        return [state.views[number] for state in states if number in state.views]

    @property
    def replication(self) -> Replication:
        """How the queue is replicated."""
        return ONE_NODE

    @property
    def layout(self) -> list[PartitionInfo] | None:
        """How the queue is partitioned; None if it has one partition for good, or is a companion."""
        return None if self.is_companion else layout_of(self._partitions)

    @property
    def ended(self) -> Mapping[str, int]:
        """How many messages ended without an ack, by reason. Empty for a companion: its owner counts them."""
        if self.is_companion:
            return {}
        found: Counter[str] = Counter()
        partitions = self._partitions
        for state in (*(partition.state for partition in partitions.all), *partitions.past.values()):
            found.update(state.ended)
        return found

    @property
    def _dead(self) -> int:
        """Dead letters, including those on their way to another queue."""
        tallies = [partition.state.views for partition in self._partitions.all]
        return sum(views[view].live for views in tallies for view in (VIEW_DEAD, VIEW_OUTBOX) if view in views)

    async def peek(
        self, wanted: PeekFilter, show: Show = peeked, is_enough: Callable[[], bool] = lambda: False
    ) -> PeekPage:
        """A page of messages, ended early if `is_enough`. Leases and counts nothing; all other work goes first."""
        partitions: Sequence[Partition] = self._partitions.all
        if wanted.partition is not None:
            partitions = [partition for partition in partitions if partition.index == wanted.partition]
        if not partitions:
            there = ", ".join(str(partition.index) for partition in self._partitions.all)
            detail = f"queue {self.name!r} has no partition {wanted.partition}, only {there}"
            raise InvalidRequest(detail, errors=(FieldError("/query/partition", detail),))
        if wanted.state == "dead" and self._number == VIEW_LATE:
            return PeekPage()
        pages = look_through(partitions, wanted, self._number, show)
        page = await self._node.turnstile.through(cut_short(pages, is_enough), seconds_max=PEEK_SECONDS_MAX)
        if self._partition.closed:
            raise self.gone
        return page

    def held_by(self, partition: int, offset: int) -> Lease | None:
        """The lease that holds a message; None if there is none, or it is not among the first `PEEK_LEASES_MAX`."""
        for view in self._views.all if self._views is not None else ():
            if view.partition.index == partition:
                return view.core.leases.holding(offset, most=PEEK_LEASES_MAX)
        return None

    @property
    def owner(self) -> str:
        """The queue that a companion belongs to."""
        return self._partition.label

    def dead_letters(self, wanted: Wanted, to: str | None, *, own: bool) -> Letters:
        """What a redrive moves: the messages of a companion, or of this queue's own companion and outbox.

        `own`: also dead letters that other queues sent here, whether these still name this queue or are deleted.
        Messages left by a deleted queue count as this queue's work, unless other queues name it as dead-letter queue,
        or `to` or the reason asks for them.
        """
        views = self._views
        if views is not None and self.is_companion:
            return Letters(views.all, wanted, to)
        dead = [partition.view(VIEW_DEAD) for partition in self._partitions.all]
        dead += [p.view(VIEW_OUTBOX) for p in self._partitions.all if VIEW_OUTBOX in p.views]  # for another queue
        definitions = self._node.metadata.of_tenant(self.tenant)
        is_named = any(one.config.dead_letter_queue == self.name for one in definitions)
        has_some = is_named or any(partition.state.letters is not False for partition in self._partitions.all)
        inherited = is_named or to is not None or getattr(wanted, "reason", None) == Reason.QUEUE_DELETED
        return Letters([*views.all, *dead] if own and has_some and views is not None else dead, wanted, to, inherited)

    async def count_letters(self, letters: Letters) -> Counter[str]:
        """How many messages a redrive would move now, by target queue."""
        return (await self.count_some_letters(letters, None, seconds_max=math.inf))[0]

    async def count_some_letters(
        self, letters: Letters, after: Spot | None, *, seconds_max: float
    ) -> tuple[Counter[str], Spot | None]:
        """The same for messages after a place, and the place where counting stopped because time was up; None at the
        end."""
        return await self._node.turnstile.through(count(letters, after), seconds_max=seconds_max)

    def redrive(
        self,
        redrive_id: str,
        letters: Letters,
        *,
        total: int,
        rate_per_s: float | None,
        find: Callable[[str], EmbeddedQueue],
        done: int = 0,
    ) -> Redrive:
        """Starts to move dead letters back. One redrive of a queue runs at a time; raises `Conflict`. `done`: how many
        an earlier process moved.
        """
        job = Redrive(redrive_id, total, rate_per_s, done, begun_ms=self._node.clock_ms())
        self.redrives.start(job, letters, lambda name: find(name)._partitions)
        return job

    async def begin_redrive(
        self,
        redrive_id: str,
        letters: Letters,
        *,
        total: int,
        rate_per_s: float | None,
        find: Callable[[str], EmbeddedQueue],
    ) -> Redrive:
        """`redrive`, for callers that do not know where the queue is."""
        return self.redrive(redrive_id, letters, total=total, rate_per_s=rate_per_s, find=find)

    def _purge_in(self, partition: Partition) -> asyncio.Future[int | PushqError]:
        done: asyncio.Future[int | PushqError] = asyncio.get_running_loop().create_future()
        partition.purge(done.set_result, self._number)
        return done

    async def purge(self, purge_id: str) -> Purge:
        """Drops every message stored so far; returns when that is durable."""
        total = 0
        for waiting in [self._purge_in(partition) for partition in self._partitions.all]:
            count = await waiting
            if isinstance(count, PushqError):
                raise count
            total += count
        purge = Purge(purge_id, total)
        self._node.sweeper.wake()
        remember(self.purges, purge)
        return purge


def _verdicts(receipts: list[str], done: dict[str, int] | PushqError) -> list[Verdict] | PushqError:
    return done if isinstance(done, PushqError) else _judge(receipts, done)


def _judge(receipts: list[str], done: dict[str, int]) -> list[Verdict]:
    """One verdict per receipt, from token → bits."""
    get = done.get
    out = []
    for receipt in receipts:
        index = INDEX_OF.get(receipt[-2:])
        ok = index is not None and get(receipt[:-2], 0) >> index & 1
        out.append(_OK if ok else _STALE)
    return out


_OK = Verdict(True)
_STALE = Verdict(False, STALE)
