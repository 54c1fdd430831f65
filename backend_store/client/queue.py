"""A queue as the rest of Pushq sees it: publish, hand out, settle, look at."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from backend_store.client.cancel import CancelOutcome, cancel
from backend_store.client.dead_letters import Letters, Wanted, count
from backend_store.client.filters import PeekFilter
from backend_store.client.peek import look
from backend_store.client.redrive import Redrive, Redrives
from backend_store.core.chunk import Chunk
from backend_store.core.cursor import StreamStart, resolve
from backend_store.core.leases import Holder, Lease
from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.receipts import INDEX_OF, by_token
from backend_store.core.shelves import VIEW_DEAD, VIEW_GROUPS, VIEW_LATE, VIEW_MAIN, VIEW_OUTBOX
from backend_store.model import (
    Block,
    FieldError,
    InvalidRequest,
    Offset,
    Overloaded,
    PeekPage,
    Position,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    QueueStats,
    Verdict,
)
from backend_store.node.joint import Joint, JointResult
from backend_store.node.limits import PEEK_SECONDS_MAX
from backend_store.node.node import Node
from backend_store.node.partition import Partition
from backend_store.node.seeking import offset_at_time, read_at
from backend_store.node.view import SettleReply, View

log = structlog.get_logger("pushq.queue")

STALE = "stale-receipt"
JOBS_REMEMBERED_MAX = 16
"""Purges of one queue that can still be asked about."""

PublishReply = Callable[[Published | PushqError], None]
VerdictsReply = Callable[[list[Verdict] | PushqError], None]
AskView = Callable[[View, dict[str, int], SettleReply], None]


@dataclass(frozen=True, slots=True)
class SettledAndPublished:
    """The answer to an ack that publishes: a verdict a receipt, a place a publish."""

    verdicts: list[Verdict]
    places: list[Published]


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge, done or under way: the messages are gone at once, their rows are swept afterwards."""

    id: str
    total: int
    state: str = "done"


class EmbeddedQueue:
    """A queue whose one partition is here, or the companion of one. The object is one for all who ask, for as long as
    the queue exists.
    """

    def __init__(self, node: Node, definition: QueueDefinition, partition: Partition, view: int = VIEW_MAIN):
        self._node = node
        self.definition = definition
        self._partition = partition
        self._view = partition.view(view) if definition.config.kind == "work" or view != VIEW_MAIN else None
        self.consumers = 0
        self.deleted = False
        self.companions: list[EmbeddedQueue] = []
        """Of a queue that was deleted: those of its companions that somebody had asked for."""
        self.purges: dict[str, Purge] = {}
        self.redrives = Redrives(definition.name)
        self.extras: dict[str, Any] = {}
        """Room for what a gateway keeps per queue: its feeder, its fan-out."""
        self.groups: dict[str, EmbeddedQueue] = {}
        """Of a stream: those of its consumer groups that somebody uses."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def place(self) -> str:
        """Under which leases are kept for a session that may come back: `queue`, or `stream/group`."""
        return self.name

    @property
    def root(self) -> EmbeddedQueue:
        """The queue whose messages these are: of a consumer group the stream."""
        return self

    @property
    def group(self) -> str | None:
        """The consumer group of a stream that this is."""
        return None

    @property
    def one_at_a_time(self) -> bool:
        """Whether one consumer may be refused while another one is not: it alone gets messages for now."""
        return False

    def take_gap(self) -> tuple[int, int] | None:
        """Of a consumer group: the first and last offset of what the stream dropped before the group came so far.

        Once: whoever takes it tells the consumers.
        """
        return None

    def on_gap(self, tell: Callable[[], None]) -> None:
        """`tell` runs when a group misses something: there is a gap to take."""

    @property
    def gone(self) -> PushqError:
        """What its consumers are told when it is deleted."""
        return QueueNotFound(f"queue {self.name!r} was deleted")

    @property
    def tenant(self) -> str:
        return self.definition.tenant

    @property
    def config(self) -> QueueConfig:
        return self.definition.config

    # ------------------------------------------------------------------------------------------------- messages

    def publish(self, blocks: list[Block], reply: PublishReply) -> None:
        """Stores blocks of one call in one partition; `reply` runs when they are durable or refused."""
        if self.is_companion:
            reply(InvalidRequest(f"messages come to {self.name!r} by themselves; publish to a queue of your own"))
            return
        self._partition.publish(blocks, reply)

    @property
    def is_companion(self) -> bool:
        """Whether it holds another queue's dead or late messages."""
        return self._view is not None and 0 < self._view.number < VIEW_GROUPS

    def is_colocated_with(self, other: EmbeddedQueue) -> bool:
        """Whether an ack here may publish there in the same step."""
        if self.tenant != other.tenant or other.is_companion:
            return False
        return other.name in (self.name, self.config.colocate_with) or other.config.colocate_with == self.name

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[EmbeddedQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        """Acks and publishes with one commit: all of it, or nothing where one receipt does not hold its message."""
        grouped = by_token(receipts)
        view = self._view if self._view is not None else self._group_of(grouped)
        if view is None:
            reply(SettledAndPublished([_STALE] * len(receipts), []))
            return

        def decided(result: JointResult | PushqError) -> None:
            if isinstance(result, PushqError):
                reply(result)
            else:
                reply(SettledAndPublished(_judge(receipts, result.settled), result.places))

        targets = [(queue._partition, blocks) for queue, blocks in publishes]
        self._partition.settle_and_publish(Joint(view, grouped, targets, decided))

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        """Acks; `reply` gets one verdict a receipt, in their order, once that is durable."""
        if self._view is None:
            self._ask_groups(receipts, View.settle, reply)
            return
        self._view.settle(by_token(receipts), lambda done: reply(_verdicts(receipts, done)))

    def _ask_groups(self, receipts: list[str], ask: AskView, reply: VerdictsReply) -> None:
        """Of a stream: each receipt is the business of the group that gave it out."""
        groups = self._partition.groups
        assert groups is not None, f"{self.name}: a queue has a view or groups"
        groups.each(by_token(receipts), ask, lambda done: reply(_verdicts(receipts, done)))

    def _group_of(self, grouped: dict[str, int]) -> View | None:
        """Of a stream: the one group that gave out all these receipts."""
        views = self._partition.groups.by_view(grouped) if self._partition.groups is not None else {}
        return next((view for view, own in views.items() if len(own) == len(grouped)), None)

    def settle_quietly(self, receipts: list[str]) -> None:
        """Acks whose verdicts nobody waits for."""
        if self._view is not None:
            self._view.settle_soon(by_token(receipts))
        elif self._partition.groups is not None:
            for view, grouped in self._partition.groups.by_view(by_token(receipts)).items():
                view.settle_soon(grouped)

    def settle_lease(self, lease: Lease) -> None:
        """Settles all of a lease: its bytes have left, and the consumer acks automatically."""
        if self._view is not None and lease.receipts:
            self._view.settle_soon({lease.token: lease.bits})

    def give_back(
        self, receipts: list[str], delay_ms: int | None, reply: VerdictsReply, reason: str | None = None
    ) -> None:
        """Nacks; with a delay the messages stay out of sight so long. The reason stands in the messages' history."""
        view = self._view
        if delay_ms and view is not None and not view.core.can_delay:
            detail = f"queue {self.name!r}: {DELAYED_RUNS_MAX} batches wait for their time; nack without a delay"
            reply(Overloaded(detail, retry_after_ms=1000))
            return
        if reason is not None:
            log.info("nacked", tenant=self.tenant, queue=self.name, receipts=len(receipts), reason=reason)
        due_ms = self._node.steady_ms() + delay_ms if delay_ms else delay_ms
        if view is None:
            self._ask_groups(receipts, lambda one, own, told: one.give_back(own, due_ms, reason, told), reply)
            return
        view.give_back(by_token(receipts), due_ms, reason, lambda done: reply(_verdicts(receipts, done)))

    def extend(self, receipts: list[str], visibility_ms: int, reply: VerdictsReply) -> None:
        """Moves the end of leases: at once where a lease is memory, with a commit where it is stored."""
        if self._view is None:
            self._ask_groups(receipts, lambda one, own, told: one.extend(own, visibility_ms, told), reply)
            return
        self._view.extend(by_token(receipts), visibility_ms, lambda held: reply(_verdicts(receipts, held)))

    def give_back_lease(self, lease: Lease) -> None:
        view = self._view if self._view is not None else self._group_of({lease.token: lease.bits})
        if view is not None:
            view.give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        if self._view is not None:
            self._view.unsent(lease)

    def undeliverable(self, lease: Lease) -> None:
        """Ends messages that were leased and cannot be sent to anybody."""
        if self._view is not None:
            self._view.undeliverable(lease)

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases up to `limit` ready messages of one chunk for `holder`."""
        assert self._view is not None, f"{self.name}: a stream has no leases without a group"
        return self._view.take(limit, holder, visibility_ms)

    @property
    def has_ready(self) -> bool:
        return self._view is not None and self._view.has_ready

    @property
    def ready(self) -> int:
        return self._partition.state.live if self._view is None else self._view.ready

    def on_ready(self, wake: Callable[[], None]) -> None:
        """`wake` runs after each commit that may have made messages ready."""
        if self._view is not None:
            self._view.on_ready = wake

    async def cancel(self, message_id: str) -> CancelOutcome:
        """Ends a scheduled or ready message of that id; returns when that is durable."""
        if self._view is None:
            raise InvalidRequest(f"{self.name!r} is a stream: it keeps its messages for all who read it")
        return await cancel(self._view, message_id, self._node.turnstile)

    # ---------------------------------------------------------------------------------------------------- streams

    def on_appended(self, appended: Callable[[list[Chunk]], None]) -> None:
        """`appended` gets the chunks of each commit, in order."""
        self._partition.on_appended = appended

    def read(self, offset: Offset) -> Chunk | None:
        """The first stored chunk that has or follows `offset`."""
        return read_at(self._partition, max(offset, self._partition.state.floor))

    def on_purged(self, purged: Callable[[], None]) -> None:
        """`purged` runs after everything stored so far was dropped."""
        self._partition.on_purged = purged

    @property
    def floor(self) -> Offset:
        """Everything below is gone."""
        return Offset(self._partition.state.floor)

    @property
    def end(self) -> Position:
        state = self._partition.state
        return Position(state.epoch, state.high_watermark)

    def start(self, wanted: Any) -> StreamStart:
        """Where a reader that asks for `wanted` begins, and whether it misses something."""
        return resolve(self._partition.state, wanted, lambda time_ms: offset_at_time(self._partition, time_ms))

    # ----------------------------------------------------------------------------------------------- administration

    def stats(self) -> QueueStats:
        state, view = self._partition.state, self._view
        tally = view.tally if view is not None else state
        oldest = self._partition.oldest(view.number if view is not None else VIEW_MAIN) if tally.live else None
        age_ms = max(0, self._node.clock_ms() - oldest) if oldest is not None else 0
        return QueueStats(
            ready=self.ready,
            in_flight=view.core.in_flight if view else 0,
            delayed=view.core.delayed if view else 0,
            dead=0 if self.is_companion else self._dead,
            oldest_age_ms=age_ms,
            consumers=self.consumers + sum(group.consumers for group in self.groups.values()),
            bytes=tally.live_bytes,
            published_total=tally.published_total,
            acked_total=tally.acked_total,
        )

    @property
    def ended(self) -> Mapping[str, int]:
        """How many messages ended without an ack, by reason; a companion's are its owner's."""
        return {} if self.is_companion else self._partition.state.ended

    @property
    def _dead(self) -> int:
        """Dead letters, those on their way to another queue among them."""
        views = self._partition.state.views
        return sum(views[view].live for view in (VIEW_DEAD, VIEW_OUTBOX) if view in views)

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        """A page of messages; nothing is leased or counted, and everybody else goes first."""
        index = self._partition.index
        if wanted.partition not in (None, index):
            detail = f"queue {self.name!r} has no partition {wanted.partition}, only {index}"
            raise InvalidRequest(detail, errors=(FieldError("/query/partition", detail),))
        number = self._view.number if self._view is not None and self.group is None else VIEW_MAIN
        if wanted.state == "dead" and number == VIEW_LATE:
            return PeekPage()
        page = await self._node.turnstile.through(look(self._partition, wanted, number), seconds_max=PEEK_SECONDS_MAX)
        if self._partition.closed:
            raise self.gone
        return page

    @property
    def owner(self) -> str:
        """The queue that a companion belongs to."""
        return self._partition.label

    def dead_letters(self, wanted: Wanted, to: str | None, *, own: bool) -> Letters:
        """What a redrive is about: the messages of a companion, or of this queue's own companion.

        `own`: other queues name this one for their dead letters, so those that lie here as well.
        """
        view = self._view
        if view is not None and self.is_companion:
            return Letters([view], wanted, to)
        dead = self._partition.view(VIEW_DEAD)
        return Letters([view, dead] if own and view is not None else [dead], wanted, to)

    async def count_letters(self, letters: Letters) -> Counter[str]:
        """How many messages a redrive would move now, by the queue they go to."""
        return await self._node.turnstile.through(count(letters), seconds_max=math.inf)

    def redrive(
        self,
        redrive_id: str,
        letters: Letters,
        *,
        total: int,
        rate_per_s: float | None,
        find: Callable[[str], EmbeddedQueue],
    ) -> Redrive:
        """Starts to move dead letters back. One redrive of a queue runs at a time."""
        job = Redrive(redrive_id, total, rate_per_s)
        self.redrives.start(job, letters, lambda name: find(name)._partition)
        return job

    async def purge(self, purge_id: str) -> Purge:
        """Drops every message stored so far; returns when that is durable."""
        done: asyncio.Future[int | PushqError] = asyncio.get_running_loop().create_future()
        self._partition.purge(done.set_result, self._view.number if self._view is not None else VIEW_MAIN)
        total = await done
        if isinstance(total, PushqError):
            raise total
        purge = Purge(purge_id, total)
        self._node.sweeper.wake()
        while len(self.purges) >= JOBS_REMEMBERED_MAX:
            self.purges.pop(next(iter(self.purges)))
        self.purges[purge_id] = purge
        return purge


def _verdicts(receipts: list[str], done: dict[str, int] | PushqError) -> list[Verdict] | PushqError:
    return done if isinstance(done, PushqError) else _judge(receipts, done)


def _judge(receipts: list[str], done: dict[str, int]) -> list[Verdict]:
    """One verdict a receipt, from token → bits."""
    get = done.get
    out = []
    for receipt in receipts:
        index = INDEX_OF.get(receipt[-2:])
        ok = index is not None and get(receipt[:-2], 0) >> index & 1
        out.append(_OK if ok else _STALE)
    return out


_OK = Verdict(True)
_STALE = Verdict(False, STALE)
