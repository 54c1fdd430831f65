"""Redrives: dead letters go back to the queues they came from, or to another one.

A job walks the queue once, in the order in which the messages died, and moves those that its filter wants: each with one
commit, so neither a crash nor a cancellation leaves a message twice or nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import structlog

from backend_store.core.bits import indexes
from backend_store.core.chunk import Chunk
from backend_store.core.shelves import MAIN, SHELF_OF_VIEW, VIEW_MAIN
from backend_store.model import Offset, PushqError
from backend_store.node.burying import origins
from backend_store.node.limits import TRANSFER_LEASE_MS, TRANSFER_RETRY_SECONDS
from backend_store.node.transfer import move

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.view import View

log = structlog.get_logger("pushq.redrive")

CHUNKS_PER_TURN = 4
REFUSALS_MAX = 60
"""How often in a row a redrive tries a queue that takes nothing, before it fails."""

State = Literal["running", "done", "cancelled", "failed"]
Find = Callable[[str], "Partition | None"]
Wanted = Callable[[Chunk, int, dict[str, Any]], bool]
"""(chunk, index, what the message says of its end) → whether it goes back."""


@dataclass(slots=True)
class Redrive:
    """A redrive under way, or how it ended."""

    id: str
    total: int
    rate_per_s: float | None
    done: int = 0
    state: State = "running"
    error: str | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def cancel(self) -> None:
        """What was moved stays moved; nothing more is."""
        if self.state == "running":
            self.state = "cancelled"
            if self.task is not None:
                self.task.cancel()


class Batch:
    """Messages of one chunk that go to one queue with one priority."""

    __slots__ = ("bits", "chunk", "priority", "target")

    def __init__(self, chunk: Chunk, target: str, priority: int):
        self.chunk = chunk
        self.target = target
        self.priority = priority
        self.bits = 0


def batches(view: View, wanted: Wanted, to: str | None) -> Iterator[Batch]:
    """What is to be moved, chunk by chunk. A message that names no queue it came from stays, unless `to` names one."""
    partition = view.partition
    shelf = MAIN if view.number == VIEW_MAIN else SHELF_OF_VIEW[view.number]
    chunk = partition.read(Offset(view.floor), shelf)
    while chunk is not None:
        state = view.core.state(chunk.base)
        settled = view.partition.progress(chunk.base, view.number).settled
        free = state.free if state is not None else ((1 << chunk.count) - 1) & ~settled
        yield from _split(chunk, free, wanted, to)
        chunk = partition.read(Offset(chunk.base + 1), shelf)


def _split(chunk: Chunk, free: int, wanted: Wanted, to: str | None) -> Iterator[Batch]:
    found: dict[tuple[str, int], Batch] = {}
    for index, end in origins(chunk).items():
        if not free >> index & 1 or not wanted(chunk, index, end):
            continue
        place = to or str(end["from"]), int(end.get("priority", 0))
        batch = found.get(place)
        if batch is None:
            batch = found[place] = Batch(chunk, *place)
        batch.bits |= 1 << index
    yield from found.values()


class Redriver:
    """Runs one redrive. It holds what it is about to move, like a consumer; what is not moved is free again uncounted."""

    def __init__(self, view: View, job: Redrive, wanted: Wanted, to: str | None, find: Find):
        self._view = view
        self._job = job
        self._wanted = wanted
        self._to = to
        self._find = find

    async def run(self) -> None:
        job = self._job
        try:
            for number, batch in enumerate(batches(self._view, self._wanted, self._to)):
                await self._move(batch)
                if number % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)
            job.state = "done"
        except PushqError as error:
            job.state, job.error = "failed", error.detail
        except asyncio.CancelledError:
            job.state = "cancelled"
        except Exception as error:
            job.state, job.error = "failed", "internal error; the server's log has it"
            log.exception("a redrive failed", redrive=job.id, error=str(error))
        log.info("redrive ended", queue=self._view.partition.label, state=job.state, moved=job.done)

    async def _move(self, batch: Batch) -> None:
        refusals = 0
        rate = self._job.rate_per_s
        for bits in _portions(batch.bits, rate):
            while True:
                target = self._find(batch.target)
                if target is None:
                    raise PushqError(f"there is no queue {batch.target!r} to move messages to; name one with `to`")
                moved, error = await self._move_once(batch, bits, target)
                self._job.done += moved
                if error is None:
                    break
                refusals += 1
                if refusals >= REFUSALS_MAX:
                    raise error
                await asyncio.sleep(TRANSFER_RETRY_SECONDS)
            if rate:
                await asyncio.sleep(moved / rate)

    async def _move_once(self, batch: Batch, bits: int, target: Partition) -> tuple[int, PushqError | None]:
        lease = self._view.claim(batch.chunk, bits, self, TRANSFER_LEASE_MS)
        if lease is None:
            return 0, None  # a consumer has them by now
        done: asyncio.Future[tuple[int, PushqError | None]] = asyncio.get_running_loop().create_future()

        def moved(messages: int, error: PushqError | None) -> None:
            if not done.done():
                done.set_result((messages, error))

        annexes = {index: {"dead": None, "late": None} for index in indexes(lease.bits)}
        move(self._view, lease, target, annexes, moved, batch.priority)
        return await asyncio.shield(done)

    # A holder of leases, as the view sees it

    def released(self, count: int) -> None:
        """It has no credit to get back."""

    def lost(self, receipts: list[str]) -> None:
        """It holds nothing for so long."""

    def sendable(self) -> None:
        """It sends nothing."""


def _portions(bits: int, rate: float | None) -> Iterator[int]:
    """With a rate, few at a time, so that it is a rate and no series of bursts."""
    if rate is None:
        yield bits
        return
    most = max(1, int(rate / 10))
    part = 0
    for index in indexes(bits):
        part |= 1 << index
        if part.bit_count() >= most:
            yield part
            part = 0
    if part:
        yield part

