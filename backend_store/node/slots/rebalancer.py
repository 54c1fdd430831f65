"""Carries out a queue's partition plans on one node: moves slots between partitions, retires empty partitions.

Each partition decides by its own log (`partition_slots`), and the metadata store owns the table; `Rebalancer` connects
the two. It keeps no state of its own: after a crash the slot books and the table tell how to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import structlog

from backend_store.core.leases.leases import ChunkState, Lease
from backend_store.core.log.records import PartitionState, Tally
from backend_store.core.partitions.expansion import EXPAND_CHECK_MS, wanted_partitions
from backend_store.core.partitions.slots import SlotTable, resized, with_opened, with_retired
from backend_store.model import PushqError, QueueNotFound
from backend_store.node.limits import RETENTION_STEP_MS, SLOT_LOOK_SECONDS
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions
from backend_store.node.transfer.transfer import step_of
from backend_store.node.views.view import FOR_EVER_MS

log = structlog.get_logger("pushq.slots")

Change = Callable[[SlotTable], SlotTable]


class Plans(Protocol):
    """What `Rebalancer` needs from its node."""

    def later(self, seconds: float, call: Callable[[], None]) -> None: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` as a task until it ends or the node closes."""

    async def plan(self, queue: Partitions, change: Change) -> None:
        """Changes the queue's table and tells its partitions. Raises `QueueNotFound`."""

    async def retired(self, queue: Partitions, partition: Partition) -> None:
        """The partition is retired in the table and empty. Returns when it is closed."""


class Rebalancer:
    """The moves of one queue; `Queues` owns it."""

    def __init__(self, queue: Partitions, node: Plans):
        self._queue = queue
        self._node = node
        self._is_due = False
        self._looks_later = False
        self._is_planning = False
        self._low_since_ms: int | None = None
        """Since when the queue has had too little load for its partitions."""
        self._checks_later = False

    def wake(self) -> None:
        """Something changed: takes the next steps in the next turn of the loop."""
        if not self._is_due:
            self._is_due = True
            self._node.soon(self._step)

    def _look_later(self) -> None:
        if not self._looks_later:
            self._looks_later = True
            self._node.later(self._look_seconds, self._look)

    @property
    def _look_seconds(self) -> float:
        """A stream that waits only for its retention needs no frequent checks."""
        queue = self._queue
        waits = queue.config.kind == "stream" and queue.map is not None and not queue.map.table.moves
        return RETENTION_STEP_MS / 1000 if waits else SLOT_LOOK_SECONDS

    def _look(self) -> None:
        self._looks_later = False
        self._step()

    def _step(self) -> None:
        self._is_due = False
        queue = self._queue
        if queue.first.is_gone:
            return
        for partition in queue.all if queue.map is not None else ():
            assert partition.slotting is not None
            partition.slotting.tidy()
            self._fetch(partition)
            self._ask(partition)
        if not self._is_planning and (change := self._next_change()) is not None:
            self._is_planning = True
            self._node.background(self._plan(change), f"slots of {queue.label}")
        if not self.is_at_rest:
            self._look_later()
        if queue.config.auto_expand is not None:
            self._check_later()

    def _check_later(self) -> None:
        if not self._checks_later:
            self._checks_later = True
            self._node.later(EXPAND_CHECK_MS / 1000, self._check)

    def _check(self) -> None:
        self._checks_later = False
        self._step()

    @property
    def is_at_rest(self) -> bool:
        """Nothing is in progress, and nothing waits."""
        queue = self._queue
        if queue.map is None:
            return True
        table = queue.map.table
        if table.moves or any(member.role == "draining" for member in table.members.values()):
            return False
        keepers = [partition.slotting.keeper for partition in queue.all if partition.slotting is not None]
        return not any(keeper.drains or keeper.holds or keeper.book is not keeper.ahead for keeper in keepers)

    def listen(self) -> None:
        """Partitions were added: subscribes to their decisions."""
        for partition in self._queue.all:
            if partition.slotting is not None:
                partition.slotting.on_changed = self.wake
                partition.slotting.on_due = partial(self._follow, partition)

    def _fetch(self, target: Partition) -> None:
        assert target.slotting is not None
        fetch = target.slotting.keeper.fetch()
        source = self._queue.get(fetch.move.source) if fetch is not None else None
        if fetch is None or source is None or source.slotting is None:
            return
        page = source.slotting.page(fetch)
        if page is not None:
            target.slotting.take(page)
        else:
            source.slotting.seal(fetch.move)

    def _ask(self, target: Partition) -> None:
        """Releases slots whose earlier messages are settled."""
        assert target.slotting is not None
        for question in target.slotting.keeper.questions():
            source = self._queue.get(question.source)
            if source is None or source.slotting is None or target.slotting.keeper.answers_itself(question):
                target.slotting.release(question.version, question.slots)
            elif slots := source.slotting.keeper.drained(question, source.slotting.is_unsettled):
                target.slotting.release(question.version, slots)

    # ---------------------------------------------------------------------------------------------- the table

    def _next_change(self) -> Change | None:
        """The next change of the table, if any."""
        queue = self._queue
        if queue.map is None:
            return self._resize()
        for partition in queue.all:
            assert partition.slotting is not None
            for move in partition.slotting.keeper.opened_moves():
                return partial(with_opened, move=move)
            since = partition.slotting.may_retire()
            if since is not None:
                return partial(with_retired, number=partition.index, since=since)
        return self._resize() if not queue.map.table.moves else None

    def _resize(self) -> Change | None:
        """A plan for as many partitions as the queue's config or its load asks for."""
        queue, config = self._queue, self._queue.config
        wanted, rule = config.partitions, config.auto_expand
        if rule is not None:
            loads = [_load(partition, rule.of) for partition in queue.all]
            wanted, self._low_since_ms = wanted_partitions(
                rule,
                loads,
                partitions=queue.open_count,
                least=config.partitions,
                low_since_ms=self._low_since_ms,
                now_ms=queue.steady_ms(),
            )
            wanted = max(wanted, config.partitions)
        if wanted == queue.open_count:
            return None
        log.info("a queue changes its partitions", queue=queue.label, now=queue.open_count, wanted=wanted)
        return partial(resized, partitions=wanted)

    async def _plan(self, change: Change) -> None:
        queue = self._queue
        try:
            await self._node.plan(queue, change)
            assert queue.map is not None
            for partition in queue.all:
                if queue.map.table.members[partition.index].role == "retired":
                    await self._node.retired(queue, partition)
        except QueueNotFound:
            return  # deleted meanwhile
        finally:
            self._is_planning = False
        self.wake()

    # ------------------------------------------------------------------------------------------ scheduled messages

    def _follow(self, partition: Partition, state: ChunkState, bits: int) -> None:
        """Moves due messages to their slot's present partition, in one transaction."""
        main = partition.main
        chunk = state.chunk or partition.chunk_at(state.base, state.shelf, exactly=True)
        if main is None or chunk is None:
            return
        lease = main.claim(chunk, bits, _Carrier(), FOR_EVER_MS)
        if lease is not None:
            lease.chunk = chunk
            main.end_unreadable(lease)
            self._carry(partition, lease)

    def _carry(self, partition: Partition, lease: Lease) -> None:
        main = partition.main
        if partition.closed or main is None or not lease.bits:
            return

        def decided(has_moved: bool, error: PushqError | None) -> None:
            if not has_moved and lease.bits:
                # Must not be delivered here: newer messages of its key may be out already where the slot is.
                self._node.later(SLOT_LOOK_SECONDS, partial(self._carry, partition, lease))

        try:
            step = step_of(main, lease, self._queue, {}, decided)
        except PushqError as error:
            decided(False, error)
            return
        partition.settle_and_publish(step)


def _load(partition: Partition, of: str) -> int:
    """What a partition holds, on all its shelves."""
    tallies: list[PartitionState | Tally] = [partition.state, *partition.state.views.values()]
    if of == "partition_bytes":
        return sum(tally.live_bytes for tally in tallies)
    return sum(tally.live for tally in tallies)


class _Carrier:
    """Holds messages on their way to another partition."""

    gateway = ""

    def released(self, count: int) -> None:
        """There is no credit to return."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """The lease lasts until the messages have moved."""

    def sendable(self) -> None:
        """Sends nothing."""
