"""A queue as the rest of Pushq sees it: publish, hand out, settle, look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from backend_store.client.peek import PeekFilter, peek
from backend_store.client.redrive import CHUNKS_PER_TURN, Redrive, Redriver, Wanted, batches
from backend_store.core.chunk import Chunk
from backend_store.core.cursor import StreamStart, resolve
from backend_store.core.leases import Holder, Lease
from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.receipts import INDEX_OF, by_token
from backend_store.core.shelves import VIEW_DEAD, VIEW_GROUPS, VIEW_MAIN
from backend_store.model import (
    CHUNK_MESSAGES_MAX,
    Block,
    Conflict,
    InvalidRequest,
    Offset,
    Overloaded,
    PeekPage,
    Position,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueStats,
    Verdict,
)
from backend_store.node.joint import Joint, JointResult
from backend_store.node.node import Node
from backend_store.node.partition import Partition
from backend_store.node.view import View

log = structlog.get_logger("pushq.queue")

STALE = "stale-receipt"
JOBS_REMEMBERED_MAX = 16
"""Purges, and redrives, of one queue that can still be asked about."""

PublishReply = Callable[[Published | PushqError], None]
VerdictsReply = Callable[[list[Verdict] | PushqError], None]


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
        self.redrives: dict[str, Redrive] = {}
        self.extras: dict[str, Any] = {}
        """Room for what a gateway keeps per queue: its feeder, its fan-out."""

    @property
    def name(self) -> str:
        return self.definition.name

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
        if self._view is None:
            reply(SettledAndPublished([_STALE] * len(receipts), []))
            return

        def decided(result: JointResult | PushqError) -> None:
            if isinstance(result, PushqError):
                reply(result)
            else:
                reply(SettledAndPublished(_judge(receipts, result.settled), result.places))

        targets = [(queue._partition, blocks) for queue, blocks in publishes]
        self._partition.settle_and_publish(Joint(self._view, by_token(receipts), targets, decided))

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        """Acks; `reply` gets one verdict a receipt, in their order, once that is durable."""
        if self._view is None:
            reply([_STALE] * len(receipts))
            return
        self._view.settle(by_token(receipts), lambda done: reply(_verdicts(receipts, done)))

    def settle_quietly(self, receipts: list[str]) -> None:
        """Acks whose verdicts nobody waits for."""
        if self._view is not None:
            self._view.settle_soon(by_token(receipts))

    def settle_lease(self, lease: Lease) -> None:
        """Settles all of a lease: its bytes have left, and the consumer acks automatically."""
        if self._view is not None and lease.receipts:
            self._view.settle_soon({lease.token: lease.bits})

    def give_back(self, receipts: list[str], delay_ms: int, reply: VerdictsReply, reason: str | None = None) -> None:
        """Nacks; with a delay the messages stay out of sight so long. The reason stands in the messages' history."""
        view = self._view
        if view is None:
            reply([_STALE] * len(receipts))
            return
        if delay_ms and not view.core.can_delay:
            detail = f"queue {self.name!r}: {DELAYED_RUNS_MAX} batches wait for their time; nack without a delay"
            reply(Overloaded(detail, retry_after_ms=1000))
            return
        if reason is not None:
            log.info("nacked", tenant=self.tenant, queue=self.name, receipts=len(receipts), reason=reason)
        due_ms = self._node.steady_ms() + delay_ms if delay_ms else 0
        view.give_back(by_token(receipts), due_ms, reason, lambda done: reply(_verdicts(receipts, done)))

    def extend(self, receipts: list[str], visibility_ms: int, reply: VerdictsReply) -> None:
        """Moves the end of leases: at once where a lease is memory, with a commit where it is stored."""
        if self._view is None:
            reply([_STALE] * len(receipts))
            return
        self._view.extend(by_token(receipts), visibility_ms, lambda held: reply(_verdicts(receipts, held)))

    def give_back_lease(self, lease: Lease) -> None:
        if self._view is not None:
            self._view.give_back_lease(lease)

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

    def cancel(self, message_id: str) -> Literal["cancelled", "in_flight", "unknown"]:
        """Ends a scheduled or ready message of that id; it counts when the commit it asks for lands."""
        if self._view is None:
            return "unknown"
        place = self._partition.find_message(message_id)
        if place is None:
            return "unknown"
        return "cancelled" if self._view.cancel(*place) else "in_flight"

    # ---------------------------------------------------------------------------------------------------- streams

    def on_appended(self, appended: Callable[[list[Chunk]], None]) -> None:
        """`appended` gets the chunks of each commit, in order."""
        self._partition.on_appended = appended

    def read(self, offset: Offset) -> Chunk | None:
        """The first stored chunk that has or follows `offset`."""
        state = self._partition.state
        at = max(offset, state.floor)
        found = self._partition.read(Offset(at))
        if found is not None and found.base == at:
            return found  # the usual case: a reader goes on where a chunk begins
        found = self._partition.read(Offset(max(state.floor, at - CHUNK_MESSAGES_MAX + 1)))
        while found is not None and found.base + found.count <= at:
            found = self._partition.read(Offset(found.base + 1))
        return found

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
        return resolve(self._partition.state, wanted, self._time_to_offset)

    def _time_to_offset(self, time_ms: int) -> Offset:
        """The first message stored at or after a time, by bisection over the log's offsets."""
        low, high = self._partition.state.floor, self._partition.state.end
        while low < high:
            middle = (low + high) // 2
            chunk = self._partition.read(Offset(middle))
            if chunk is None or chunk.time_ms >= time_ms:
                high = middle
            else:
                low = chunk.base + 1
        chunk = self._partition.read(Offset(low))
        return Offset(self._partition.state.end) if chunk is None else chunk.base

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
            dead=self._dead,
            oldest_age_ms=age_ms,
            consumers=self.consumers,
            bytes=tally.live_bytes,
            published_total=tally.published_total,
            acked_total=tally.acked_total,
        )

    @property
    def _dead(self) -> int:
        dead = self._partition.state.views.get(VIEW_DEAD)
        return dead.live if dead is not None else 0

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        return await peek(self._partition, wanted)

    @property
    def owner(self) -> str:
        """The queue that a companion belongs to."""
        return self._partition.label

    def redrive_source(self) -> View:
        if self._view is None:
            raise InvalidRequest(f"{self.name!r} is a stream: it has no dead letters; see {self.name}.dead")
        return self._view

    async def count_redrive(self, wanted: Wanted, to: str | None) -> int:
        """How many messages a redrive would move now; everybody else gets a turn between chunks."""
        total = 0
        for number, batch in enumerate(batches(self.redrive_source(), wanted, to)):
            total += batch.bits.bit_count()
            if number % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
        return total

    async def redrive(
        self,
        redrive_id: str,
        wanted: Wanted,
        to: str | None,
        rate_per_s: float | None,
        find: Callable[[str], EmbeddedQueue | None],
    ) -> Redrive:
        """Starts to move dead letters back. One redrive of a queue runs at a time."""
        running = next((job for job in self.redrives.values() if job.state == "running"), None)
        if running is not None:
            raise Conflict(f"redrive {running.id} of queue {self.name!r} runs already: wait for it, or cancel it")
        job = Redrive(redrive_id, await self.count_redrive(wanted, to), rate_per_s)

        def target(name: str) -> Partition | None:
            queue = find(name)
            return queue._partition if queue is not None else None

        while len(self.redrives) >= JOBS_REMEMBERED_MAX:
            self.redrives.pop(next(iter(self.redrives)))
        self.redrives[redrive_id] = job
        redriver = Redriver(self.redrive_source(), job, wanted, to, target)
        job.task = asyncio.get_running_loop().create_task(redriver.run(), name=f"redrive {redrive_id}")
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
