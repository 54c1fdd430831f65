"""Redrives that run at a backend, as a gateway sees and controls them.

When a shard's leader changes, its redrive jobs end; what they moved stays moved, exactly once, as every move is one
commit. The gateway that started a job then resumes it at the next leader: it counts the messages left and starts the
job there under its old id. A job whose gateway has ended goes on, but not at another leader: it must be requested anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.redrive import REDRIVES_REMEMBERED_MAX, State
from backend_store.model import FieldError, InvalidRequest, OutcomeUnknown, PushqError, QueueNotFound, Unavailable
from backend_store.remote.limits import REDRIVE_LOOK_SECONDS
from backend_store.service.redrives import (
    CancelRedrive,
    Counted,
    CountLetters,
    Job,
    LookAtRedrives,
    Order,
    StartRedrive,
)

if TYPE_CHECKING:
    from backend_store.remote.queues.queue import RemoteQueue

log = structlog.get_logger("pushq.remote")

_counted = msgspec.msgpack.Decoder(Counted).decode
_job = msgspec.msgpack.Decoder(Job).decode
_maybe_job = msgspec.msgpack.Decoder(Job | None).decode
_jobs = msgspec.msgpack.Decoder(list[tuple[int, Job]]).decode

Find = Callable[[str], "RemoteQueue"]


class DeadLetters(Protocol):
    """The dead letters chosen for a redrive, at one place or several."""

    async def count(self) -> Counter[str]:
        """Returns how many messages the redrive would move now, by target queue."""


class RemoteLetters:
    """The dead letters chosen for a redrive at one place. `counts`: by target queue, as counted last. `refusal`: why
    they cannot go to the target asked for."""

    def __init__(self, order: Order, queue: RemoteQueue, refusal: InvalidRequest | None = None):
        self.order = order
        self.queue = queue
        self.refusal = refusal
        self.counts: Counter[str] = Counter()

    async def count(self) -> Counter[str]:
        self.counts = await count(self.queue, self.order)
        return self.counts


class RemoteRedrive:
    """One redrive job at a backend; has the shape of `client.redrive.Redrive`. `start`: the request, if this gateway
    made it."""

    def __init__(self, redrives: RemoteRedrives, job: Job, start: StartRedrive | None = None):
        self._redrives = redrives
        self.start = start
        self.id = job.id
        self.begun_ms = job.begun_ms
        self.whole = job.whole
        self.is_cancelling = False
        self.why: str | None = None
        self.take(job)

    def take(self, job: Job) -> None:
        self.total, self.rate_per_s, self.done = job.total, job.rate_per_s, job.done
        self.state: State = job.state
        self.error = job.error

    def end(self, state: State, error: str | None = None) -> None:
        self.state, self.error = state, error

    def end_cancelled(self) -> None:
        self.end("failed" if self.why else "cancelled", self.why)

    async def cancel(self, why: str | None = None) -> None:
        """Returns once nothing more is moved; what was moved stays moved. `why`: the error if it counts as failed."""
        if self.state == "running":
            await self._redrives.cancel(self, why)


class RemoteRedrives:
    """The redrives of a queue and of its companion at one shard; has the shape of `client.redrive.Redrives`."""

    def __init__(self, queue: RemoteQueue):
        self.queue = self._queue = queue
        self._mine: dict[str, RemoteRedrive] = {}
        self._resuming = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """Whether a redrive begun here has not ended, as far as known."""
        return any(job.state == "running" for job in self._mine.values())

    async def find(self, redrive_id: str) -> RemoteRedrive | None:
        found = await self._look()
        return next((job for _, job in found if job.id == redrive_id), None)

    async def stop(self, redrive_id: str, why: str | None = None) -> RemoteRedrive | None:
        """Cancels a redrive, whichever gateway began it. Returns None if there is none of this id. Raises `PushqError`
        if it may go on."""
        self._queue.forget_looks()
        mine = self._mine.get(redrive_id)
        if mine is not None:
            await mine.cancel(why)
            return mine
        asked = CancelRedrive(self._queue.place_there, redrive_id, why)
        found = _maybe_job(await self._queue.ask(asked, may_repeat=True, is_change=True))
        return RemoteRedrive(self, found) if found is not None else None

    async def list_since(self, number: int) -> list[tuple[int, RemoteRedrive]]:
        return [(n, job) for n, job in await self._look() if n >= number]

    async def begin(
        self, redrive_id: str, letters: RemoteLetters, *, total: int, rate: float | None, find: Find, whole: int = 0
    ) -> Any:
        """Starts a job. `whole`: if several parts of a queue begin the redrive, the messages that all of them are to
        move. Raises `PushqError`."""
        targets = {name: _why_not(letters.queue, name, find) for name in self._names(letters)}
        await _told_of([find(name) for name, why in targets.items() if why is None], letters.queue)
        start = StartRedrive(redrive_id, letters.order, total, rate, targets, whole=whole)
        job = RemoteRedrive(self, _job(await self._queue.ask(start, may_repeat=True, is_change=True)), start)
        while len(self._mine) >= REDRIVES_REMEMBERED_MAX:
            self._mine.pop(next(iter(self._mine)))
        self._mine[job.id] = job
        self._queue.background(self._follow(job))
        return job

    async def _follow(self, job: RemoteRedrive) -> None:
        """Watches a job until it ends, so that it is not resumed at a later leader as if it had been interrupted."""
        while job.state == "running" and not self._queue.deleted:
            await asyncio.sleep(REDRIVE_LOOK_SECONDS)
            await self._go_on()
        if job.state == "running":
            whole = self._queue.whole
            is_left = whole is not self._queue and not whole.deleted  # the queue has left this place
            job.end("done" if is_left else "cancelled")

    def _names(self, letters: RemoteLetters) -> set[str]:
        order = letters.order
        return {order.to} if order.to is not None else {letters.queue.owner, *letters.counts}

    async def cancel(self, job: RemoteRedrive, why: str | None = None) -> None:
        job.is_cancelling, job.why = True, why
        async with self._resuming:  # else it might be resumed meanwhile
            asked = CancelRedrive(self._queue.place_there, job.id, why)
            known = _maybe_job(await self._queue.ask(asked, may_repeat=True, is_change=True))
            if known is not None:
                job.take(known)
            elif job.state == "running":
                job.end_cancelled()  # the job ended with its leader

    def line_opened(self, queue: RemoteQueue) -> None:
        """Resumes running jobs: the line may have opened to another leader."""
        if queue is self._queue and self.is_running:
            self._queue.background(self._go_on())

    async def _go_on(self) -> None:
        try:
            await self._look()
        except PushqError as error:
            log.info("redrives wait for a backend", queue=self._queue.name, error=error.detail)

    async def _look(self) -> list[tuple[int, RemoteRedrive]]:
        """All redrives known here and at the backend, the oldest first."""
        async with self._resuming:
            there = {job.id: job for _, job in await self._rows()}
            for mine in list(self._mine.values()):
                if mine.id in there:
                    mine.take(there[mine.id])
                elif mine.state == "running":
                    await self._resume(mine)
        jobs = {mine.id: mine for mine in self._mine.values() if mine.id not in there}
        jobs |= {one.id: self._mine.get(one.id) or RemoteRedrive(self, one) for one in there.values()}
        self._queue.forget_looks()  # the caller may ask for the queue's numbers next
        return list(enumerate(jobs.values()))

    async def _rows(self) -> list[tuple[int, Job]]:
        return _jobs(await self._queue.ask(LookAtRedrives(self._queue.place_there), may_repeat=True))

    async def _resume(self, mine: RemoteRedrive) -> None:
        """Resumes a job whose leader has gone at the present leader."""
        assert mine.start is not None, "a job of one's own knows what was asked for"
        if mine.is_cancelling:
            mine.end_cancelled()
            return
        try:
            left = (await count(self._queue, mine.start.order)).total()
            done = max(mine.done, min(mine.total, mine.total - left))
            start = msgspec.structs.replace(mine.start, done=done)
            mine.take(_job(await self._queue.ask(start, may_repeat=True)))
        except (Unavailable, OutcomeUnknown):
            raise  # and the next connection is another try
        except PushqError as error:
            mine.end("failed", f"the backend that ran it was lost, and it cannot continue: {error.detail}")
            return
        log.info("a redrive goes on at another backend", queue=self._queue.name, redrive=mine.id, moved=mine.done)


async def count(queue: RemoteQueue, order: Order) -> Counter[str]:
    """Returns how many messages a redrive would move now, by target queue."""
    found: Counter[str] = Counter()
    counted = Counted({}, None)
    while True:
        counted = _counted(await queue.ask(CountLetters(order, counted.rest), may_repeat=True))
        found.update(counted.counts)
        if counted.rest is None:
            return found


def letters_of(queue: RemoteQueue, wanted: LetterFilter, to: str | None, *, own: bool) -> RemoteLetters:
    """Chooses the dead letters of a queue at one place. Raises `InvalidRequest` for filters and targets that need keys,
    which backends do not have."""
    if wanted.headers and queue.config.encrypted:
        detail = (
            f"queue {queue.owner!r} is encrypted, and with store.backends its headers cannot be read for filtering: "
            "filter by reason, ids or older_than"
        )
        raise InvalidRequest(detail, errors=(FieldError("/filter/header", detail),))
    if to is not None and queue.config.encrypted and to != queue.owner:
        detail = _not_sealed_anew(queue.owner, to)
        raise InvalidRequest(detail, errors=(FieldError("/to", detail),))
    refusal = None
    is_own = to is None or to == queue.owner
    if to is not None and not is_own and (apart := _apart(queue.beside(to), queue)) is not None:
        detail = _lies_elsewhere(queue.owner, to, apart)
        refusal = InvalidRequest(detail, errors=(FieldError("/to", detail),))
    return RemoteLetters(Order(queue.place_there, wanted, to, own), queue, refusal)


async def _told_of(targets: Sequence[RemoteQueue], source: RemoteQueue) -> None:
    """Makes sure that the shard that moves messages to these queues has their definitions."""
    unknown = [
        there.definition
        for target in targets
        if (there := target.at(source.home)) is not None and not source.home.adopted.has(there.definition)
    ]
    if unknown:
        await source.home.adopted.tell(unknown)


def _apart(target: RemoteQueue, source: RemoteQueue) -> str | None:
    """Which of "cluster", "shard" or "set of lanes" two queues do not share; None if a move from one to the other is
    one commit."""
    home = source.home
    if home.cluster.lanes and target.definition.single_lane != source.definition.single_lane:
        return "set of lanes"  # a key may belong to different lanes
    if target.takes_at(home):
        return None
    return "shard" if any(other.cluster is home.cluster for other in target.homes) else "cluster"


def _why_not(queue: RemoteQueue, name: str, find: Find) -> str | None:
    """Why messages may or can not go to a queue; None if they can. Raises `PushqError` while the queue is looked up."""
    try:
        target = find(name)
    except QueueNotFound as error:
        return error.detail
    except PushqError as error:
        if error.retry_after_ms is not None:
            raise  # the queue is being looked up
        return error.detail
    is_other = name != queue.owner
    if is_other and (apart := _apart(target, queue)) is not None:
        return _lies_elsewhere(queue.owner, name, apart)
    return _not_sealed_anew(queue.owner, name) if is_other and target.config.encrypted else None


def _lies_elsewhere(source: str, target: str, apart: str) -> str:
    return f"queue {target!r} is in another {apart} than {source!r}, and a redrive moves messages only within one"


def _not_sealed_anew(source: str, target: str) -> str:
    return (
        f"with store.backends, encrypted messages of {source!r} cannot be re-encrypted for {target!r}: they can only "
        "go back to their own queue"
    )


class Redriving:
    """The part of a remote queue's interface that concerns dead letters."""

    redrives: Any
    """`RemoteRedrives`; for a queue made of parts, `WholeRedrives`."""

    def dead_letters(self, wanted: LetterFilter, to: str | None, *, own: bool) -> DeadLetters:
        """See `client.queue.EmbeddedQueue`. Raises `InvalidRequest`."""
        queue: Any = self
        letters = letters_of(queue, wanted, to, own=own)
        if letters.refusal is not None:
            raise letters.refusal
        return letters

    async def count_letters(self, letters: DeadLetters) -> Counter[str]:
        return await letters.count()

    async def begin_redrive(
        self, redrive_id: str, letters: Any, *, total: int, rate_per_s: float | None, find: Find
    ) -> Any:
        return await self.redrives.begin(redrive_id, letters, total=total, rate=rate_per_s, find=find)
