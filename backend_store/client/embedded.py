"""The store in this process: queues over the partitions of one node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from backend_store.client.peek import PeekFilter, peek
from backend_store.core.chunk import Chunk
from backend_store.core.cursor import StreamStart, resolve
from backend_store.core.kept import KeptSession
from backend_store.core.leases import Holder, Lease
from backend_store.core.limits import DELAYED_RUNS_MAX, READY_RUNS_AHEAD
from backend_store.core.receipts import INDEX_OF, by_token
from backend_store.metadata.embedded import Metadata
from backend_store.model import (
    CHUNK_MESSAGES_MAX,
    Block,
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
from backend_store.node.node import Node
from backend_store.node.partition import Partition

log = structlog.get_logger("pushq.queue")

STALE = "stale-receipt"

PublishReply = Callable[[Published | PushqError], None]
VerdictsReply = Callable[[list[Verdict] | PushqError], None]


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge, done or under way: the messages are gone at once, their rows are swept afterwards."""

    id: str
    total: int
    state: str = "done"


class EmbeddedQueue:
    """A queue whose one partition is here. The object is one for all who ask, for as long as the queue exists."""

    def __init__(self, node: Node, definition: QueueDefinition, partition: Partition):
        self._node = node
        self.definition = definition
        self._partition = partition
        self.consumers = 0
        self.deleted = False
        self.purges: dict[str, Purge] = {}
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
        self._partition.publish(blocks, reply)

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        """Acks; `reply` gets one verdict a receipt, in their order, once that is durable."""
        if self._partition.view is None:
            reply([_STALE] * len(receipts))
            return
        self._partition.settle(by_token(receipts), lambda done: reply(_verdicts(receipts, done)))

    def settle_quietly(self, receipts: list[str]) -> None:
        """Acks whose verdicts nobody waits for."""
        if self._partition.view is not None:
            self._partition.settle_soon(by_token(receipts))

    def settle_lease(self, lease: Lease) -> None:
        """Settles all of a lease: its bytes have left, and the consumer acks automatically."""
        self._partition.settle_soon({lease.token: lease.bits})

    def give_back(self, receipts: list[str], delay_ms: int, reply: VerdictsReply, reason: str | None = None) -> None:
        """Nacks; with a delay the messages stay out of sight so long. A reason is for the log's reader."""
        view = self._partition.view
        if view is None:
            reply([_STALE] * len(receipts))
            return
        if delay_ms and not view.can_delay:
            detail = f"queue {self.name!r}: {DELAYED_RUNS_MAX} batches wait for their time; nack without a delay"
            reply(Overloaded(detail, retry_after_ms=1000))
            return
        if reason is not None:
            log.info("nacked", tenant=self.tenant, queue=self.name, receipts=len(receipts), reason=reason)
        due_ms = self._node.steady_ms() + delay_ms if delay_ms else 0
        self._partition.give_back(by_token(receipts), due_ms, lambda done: reply(_verdicts(receipts, done)))

    def extend(self, receipts: list[str], visibility_ms: int) -> list[Verdict]:
        """Moves the end of leases; a lease is memory, so the answer is immediate."""
        if self._partition.view is None:
            return [_STALE] * len(receipts)
        held = self._partition.extend(by_token(receipts), visibility_ms, self._node.steady_ms())
        return _judge(receipts, held)

    def give_back_lease(self, lease: Lease) -> None:
        self._partition.give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        self._partition.unsent(lease)

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases up to `limit` ready messages of one chunk for `holder`."""
        return self._partition.take(limit, holder, visibility_ms, self._node.steady_ms())

    @property
    def has_ready(self) -> bool:
        return self._partition.has_ready

    @property
    def ready(self) -> int:
        view = self._partition.view
        waiting = self._partition.state.live
        return waiting if view is None else max(0, waiting - view.in_flight - view.delayed)

    def on_ready(self, wake: Callable[[], None]) -> None:
        """`wake` runs after each commit that may have made messages ready."""
        self._partition.on_ready = wake

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
        state, view = self._partition.state, self._partition.view
        oldest = self._partition.read(Offset(state.floor)) if state.live else None
        age_ms = max(0, self._node.clock_ms() - oldest.time_ms) if oldest is not None else 0
        return QueueStats(
            ready=self.ready,
            in_flight=view.in_flight if view else 0,
            delayed=view.delayed if view else 0,
            oldest_age_ms=age_ms,
            consumers=self.consumers,
            bytes=state.live_bytes,
            published_total=state.published_total,
            acked_total=state.acked_total,
        )

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        return await peek(self._partition, wanted)

    async def purge(self, purge_id: str) -> Purge:
        """Drops every message stored so far; returns when that is durable."""
        done: asyncio.Future[int | PushqError] = asyncio.get_running_loop().create_future()
        self._partition.purge(done.set_result)
        total = await done
        if isinstance(total, PushqError):
            raise total
        purge = Purge(purge_id, total)
        self._node.sweeper.wake()
        while len(self.purges) >= READY_RUNS_AHEAD:
            self.purges.pop(next(iter(self.purges)))
        self.purges[purge_id] = purge
        return purge


class EmbeddedStore:
    """All queues of one embedded node, and the metadata beside them."""

    def __init__(self, node: Node):
        self.node = node
        self._queues: dict[int, EmbeddedQueue] = {}

    @property
    def steady_ms(self) -> Callable[[], int]:
        """The clock that leases go by: it does not jump when somebody sets the time."""
        return self.node.steady_ms

    @property
    def metadata(self) -> Metadata:
        return self.node.metadata

    def queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Raises `QueueNotFound`."""
        definition = self.node.metadata.find(tenant, name)
        found = self._queues.get(definition.uid)
        if found is None:
            found = EmbeddedQueue(self.node, definition, self.node.partition(definition))
            self._queues[definition.uid] = found
        return found

    def queues(self) -> list[EmbeddedQueue]:
        return list(self._queues.values())

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[EmbeddedQueue, bool]:
        """Raises `Conflict` when the queue exists with another config."""
        _, created = await self.node.metadata.create_queue(tenant, name, config, self.node.clock_ms())
        return self.queue(tenant, name), created

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> EmbeddedQueue | None:
        """None when somebody else changed it first."""
        changed = await self.node.metadata.update_queue(tenant, name, config, version)
        if changed is None:
            return None
        queue = self.queue(tenant, name)
        queue.definition = changed
        return queue

    async def delete_queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Removes the queue and its messages; whoever consumes it must be told by the caller."""
        queue = self.queue(tenant, name)
        await self.node.delete_queue(tenant, name)
        queue.deleted = True
        self._queues.pop(queue.definition.uid, None)
        return queue

    def take_kept(self) -> tuple[list[KeptSession], dict[str, Lease]]:
        """The sessions that the last clean stop kept, and their leases by token. Once only."""
        kept = self.node.kept_sessions, self.node.kept_leases
        self.node.kept_sessions, self.node.kept_leases = [], {}
        return kept

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        """Closes cleanly: leases stay as they are, and `sessions` may come back to theirs after the next start."""
        await self.node.close(sessions)


async def open_store(directory: Path) -> EmbeddedStore:
    """Opens or makes the data folder and recovers what is in it. Raises `storage` errors the CLI explains."""
    from backend_store.storage.env import open_engine
    from backend_store.storage.writer import prepare_interpreter

    prepare_interpreter()
    node = Node(open_engine(directory), directory=directory)
    await node.start()
    return EmbeddedStore(node)


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
