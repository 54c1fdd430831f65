"""Redrives: move dead letters back to the queues they came from, or to another one.

A job walks the dead letters once, in the order in which they died, and moves those that its filter selects. Each leaves
its old place and enters its new one in one commit, so neither a crash nor a cancellation duplicates or loses a message.
A redrive interrupted by a restart can simply be requested again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from backend_store.client.dead_letters import Batch, Letters, batches, portions
from backend_store.core.log.bits import indexes
from backend_store.model import Conflict, PushqError
from backend_store.node.limits import TRANSFER_LEASE_MS, TRANSFER_RETRY_SECONDS, TRANSFERS_AT_ONCE_MAX
from backend_store.node.transfer.transfer import move

if TYPE_CHECKING:
    from backend_store.node.partitions import Partitions
    from backend_store.node.views.view import View

log = structlog.get_logger("pushq.redrive")

REFUSALS_MAX: Final = 60
"""How many refusals in a row make a redrive fail."""
REDRIVES_REMEMBERED_MAX: Final = 16
"""Redrives of one queue that can still be looked up."""
PORTION_SECONDS: Final = 0.1
"""With a rate, messages move in portions of this duration: a steady rate rather than bursts."""

State = Literal["running", "done", "cancelled", "failed"]
Find = Callable[[str], "Partitions"]
"""Returns the queue of a name. Raises `PushqError` if messages cannot go there."""


@dataclass(slots=True)
class Redrive:
    """A redrive in progress, or its outcome."""

    id: str
    total: int
    rate_per_s: float | None
    done: int = 0
    state: State = "running"
    error: str | None = None
    begun_ms: int = 0
    whole: int = 0
    """How many messages this job and others with the same id, in other parts of the queue, are to move."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    async def cancel(self, why: str | None = None) -> None:
        """Returns when nothing more is moved; moved messages stay moved. `why`: the error, if the redrive failed."""
        if self.state == "running":
            self.error = why or self.error
        self.stopping.set()
        await self.ended.wait()


class Redriver:
    """Runs one redrive. It leases what it is about to move, like a consumer; what stays is ready again, without an
    attempt."""

    gateway = ""

    def __init__(self, job: Redrive, letters: Letters, find: Find, *, label: str):
        self._job = job
        self._letters = letters
        self._find = find
        self._label = label
        self._clock = asyncio.get_running_loop().time
        self._next_at = self._clock()
        """With a rate: when the next portion may move."""
        self._stays: Counter[str] = Counter()
        """Reason why messages stay → how many."""

    async def run(self) -> None:
        job = self._job
        try:
            await self._walk()
            job.state = "cancelled" if job.stopping.is_set() else "done"
            if job.error is not None:
                job.state = "failed"
            elif self._stays:
                job.state, job.error = "failed", "; ".join(f"{count} stay: {why}" for why, count in self._stays.items())
        except PushqError as error:
            job.state, job.error = "failed", error.detail
        except asyncio.CancelledError:
            job.state = "cancelled"
            raise
        except Exception as error:
            job.state, job.error = "failed", "internal error; see the server log"
            log.exception("redrive failed", redrive=job.id, error=str(error))
        finally:
            job.ended.set()
            log.info("redrive finished", queue=self._label, redrive=job.id, state=job.state, moved=job.done)

    async def _walk(self) -> None:
        rate = self._job.rate_per_s
        most = max(1, int(rate * PORTION_SECONDS)) if rate else None
        group: list[Batch] = []
        for found in batches(self._letters):
            for batch in found:
                for part in portions(batch, most):
                    group.append(part)
                    if rate or len(group) == TRANSFERS_AT_ONCE_MAX:
                        await self._move_all(group)
                        group = []
                    if self._job.stopping.is_set():
                        return
            await asyncio.sleep(0)
        await self._move_all(group)

    async def _move_all(self, group: list[Batch]) -> None:
        """Moves several batches at once; retries a queue that cannot take them now."""
        await self._keep_pace(sum(batch.bits.bit_count() for batch in group))
        refusals = 0
        while group and not self._job.stopping.is_set():
            begun = [(batch, self._begin(batch)) for batch in group]
            done = self._job.done
            refused = [(batch, error) for batch, landed in begun if (error := await landed) is not None]
            group = [batch for batch, _ in refused]
            self._job.error = f"some messages are delayed: {refused[0][1].detail}" if refused else None
            if refused:
                refusals = 0 if self._job.done > done else refusals + 1
                if refusals == REFUSALS_MAX or refused[0][1].code == "queue-not-found":
                    raise refused[0][1]
                await self._rest(TRANSFER_RETRY_SECONDS)

    def _begin(self, batch: Batch) -> asyncio.Future[PushqError | None]:
        """Starts to move a batch. The result comes when the move is durable: None, or why it stays for now."""
        landed: asyncio.Future[PushqError | None] = asyncio.get_running_loop().create_future()
        view = batch.view
        if view.partition.closed:
            # A retired partition was empty: what was found in it shortly before is settled.
            landed.set_result(None if view.partition.has_retired else view.partition.deleted())
            return landed
        try:
            target = self._find(batch.target)
        except PushqError as error:
            self._stays[error.detail] += batch.bits.bit_count()
            landed.set_result(None)
            return landed
        stays = 0 if _moves_whole(view, target) else batch.bits & batch.chunk.unreadable
        if stays:
            self._stays[batch.chunk.why_unreadable] += stays.bit_count()
        lease = view.claim(batch.chunk, batch.bits ^ stays, self, TRANSFER_LEASE_MS)
        if lease is None:
            landed.set_result(None)  # leased by a consumer by now
            return landed

        def moved(messages: int, error: PushqError | None) -> None:
            self._job.done += messages
            if not landed.done():
                landed.set_result(error)

        annexes = {index: _as_new(target) for index in indexes(lease.bits)}
        move(view, lease, target, annexes, moved, batch.priority, at_once=batch.at_once)
        return landed

    async def _keep_pace(self, messages: int) -> None:
        rate = self._job.rate_per_s
        if not rate:
            return
        now = self._clock()
        self._next_at = max(self._next_at, now - PORTION_SECONDS) + messages / rate
        await self._rest(self._next_at - now)

    async def _rest(self, seconds: float) -> None:
        """Waits; returns early if the redrive is cancelled."""
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._job.stopping.wait()
            except TimeoutError:
                return

    # A holder of leases, as the view sees it

    def released(self, count: int) -> None:
        """There is no credit to return."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Its leases outlast any move."""

    def sendable(self) -> None:
        """Sends nothing."""


def _moves_whole(view: View, target: Partitions) -> bool:
    """Whether a sealed block moves unchanged: no key here, and it stays in the queue it was sealed for."""
    return target.seal is None and target.get(view.partition.index) is view.partition


def _as_new(target: Partitions) -> dict[str, Any]:
    """Attributes of a redriven message: no dead letter, not late, with a full time to live."""
    life_ms = target.config.message_ttl_ms
    return {"dead": None, "late": None, "exp": target.steady_ms() + life_ms if life_ms else None}


class Redrives:
    """A queue's redrives: at most one running, and the last ones, which can still be looked up."""

    def __init__(self, label: str):
        self._label = label
        self._jobs: dict[str, Redrive] = {}
        self._started = 0

    def get(self, redrive_id: str) -> Redrive | None:
        return self._jobs.get(redrive_id)

    async def find(self, redrive_id: str) -> Redrive | None:
        """`get`, for callers that do not know where the queue is."""
        return self.get(redrive_id)

    async def stop(self, redrive_id: str) -> Redrive | None:
        """Cancels a redrive; returns None if it is unknown."""
        job = self.get(redrive_id)
        if job is not None:
            await job.cancel()
        return job

    async def list_since(self, number: int) -> list[tuple[int, Redrive]]:
        """`since`, for callers that do not know where the queue is."""
        return self.since(number)

    def since(self, number: int) -> list[tuple[int, Redrive]]:
        """(number, redrive) of remembered redrives from a number on; numbers count all redrives ever started."""
        first = self._started - len(self._jobs)
        return [(first + n, job) for n, job in enumerate(self._jobs.values()) if first + n >= number]

    def start(self, job: Redrive, letters: Letters, find: Find) -> None:
        """Starts a redrive. Raises `Conflict` while another one runs."""
        running = next((one for one in self._jobs.values() if one.state == "running"), None)
        if running is not None:
            detail = f"redrive {running.id} of queue {self._label!r} is already running: wait for it, or cancel it"
            raise Conflict(detail)
        while len(self._jobs) >= REDRIVES_REMEMBERED_MAX:
            self._jobs.pop(next(iter(self._jobs)))
        self._jobs[job.id] = job
        self._started += 1
        redriver = Redriver(job, letters, find, label=self._label)
        job.task = asyncio.get_running_loop().create_task(redriver.run(), name=f"redrive {job.id}")

    def drop(self) -> None:
        """Cancels running redrives without waiting: this process no longer leads the data."""
        for job in self._jobs.values():
            if job.task is not None:
                job.stopping.set()
                job.task.cancel()

    async def end(self) -> None:
        """Cancels running redrives and waits for their end: the server stops, or the queue is deleted."""
        for job in list(self._jobs.values()):
            await job.cancel()
