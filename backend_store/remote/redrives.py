"""Redrives that run at a backend, as the gateway that started them knows them.

A backend that leads no more takes its jobs with it; what they moved stays moved, once, for every move is one commit. So
the gateway that started a job has the next leader go on: it counts what is left and starts the job there under its old
id. A job whose gateway has ended goes on too, but not at another leader: it is asked for again.
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
    from backend_store.remote.queue import RemoteQueue

log = structlog.get_logger("pushq.remote")

_counted = msgspec.msgpack.Decoder(Counted).decode
_job = msgspec.msgpack.Decoder(Job).decode
_maybe_job = msgspec.msgpack.Decoder(Job | None).decode
_jobs = msgspec.msgpack.Decoder(list[tuple[int, Job]]).decode

Find = Callable[[str], "RemoteQueue"]


class DeadLetters(Protocol):
    """What a redrive is asked for, at one place or at several."""

    async def count(self) -> Counter[str]:
        """How many messages it would move now, by the queue they go to."""


class RemoteLetters:
    """Which dead letters, and where they go as far as they were counted. `refusal`: why they cannot go where they are
    asked to."""

    def __init__(self, order: Order, queue: RemoteQueue, refusal: InvalidRequest | None = None):
        self.order = order
        self.queue = queue
        self.refusal = refusal
        self.counts: Counter[str] = Counter()

    async def count(self) -> Counter[str]:
        self.counts = await count(self.queue, self.order)
        return self.counts


class RemoteRedrive:
    """Has the shape of `client.redrive.Redrive`. `start`: what was asked for, of a job that was started here."""

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
        """Returns when nothing more is moved; what was moved stays moved. `why`: it failed, and this is the error."""
        if self.state == "running":
            await self._redrives.cancel(self, why)


class RemoteRedrives:
    """A queue's redrives, and its companion's. Has the shape of `client.redrive.Redrives`."""

    def __init__(self, queue: RemoteQueue):
        self.queue = self._queue = queue
        self._mine: dict[str, RemoteRedrive] = {}
        self._resuming = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """Whether one that was begun here has not ended, as far as is known."""
        return any(job.state == "running" for job in self._mine.values())

    async def find(self, redrive_id: str) -> RemoteRedrive | None:
        found = await self._look()
        return next((job for _, job in found if job.id == redrive_id), None)

    async def stop(self, redrive_id: str, why: str | None = None) -> RemoteRedrive | None:
        """Cancels one, whoever began it. None: nobody knows it. Raises `PushqError` where it may go on."""
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
        """`whole`: of one that several parts of a queue begin, how many messages all of them are to move."""
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
        """Hears of its end, so that no later leader takes it for one that was interrupted."""
        while job.state == "running" and not self._queue.deleted:
            await asyncio.sleep(REDRIVE_LOOK_SECONDS)
            await self._go_on()
        if job.state == "running":
            whole = self._queue.whole
            is_left = whole is not self._queue and not whole.deleted  # a place that nothing is left at
            job.end("done" if is_left else "cancelled")

    def _names(self, letters: RemoteLetters) -> set[str]:
        order = letters.order
        return {order.to} if order.to is not None else {letters.queue.owner, *letters.counts}

    async def cancel(self, job: RemoteRedrive, why: str | None = None) -> None:
        job.is_cancelling, job.why = True, why
        async with self._resuming:  # or it might begin anew behind our back
            asked = CancelRedrive(self._queue.place_there, job.id, why)
            known = _maybe_job(await self._queue.ask(asked, may_repeat=True, is_change=True))
            if known is not None:
                job.take(known)
            elif job.state == "running":
                job.end_cancelled()  # with the leader that it ran at

    def line_opened(self, queue: RemoteQueue) -> None:
        """It may be another leader's: what ran goes on there."""
        if queue is self._queue and self.is_running:
            self._queue.background(self._go_on())

    async def _go_on(self) -> None:
        try:
            await self._look()
        except PushqError as error:
            log.info("redrives wait for a backend", queue=self._queue.name, error=error.detail)

    async def _look(self) -> list[tuple[int, RemoteRedrive]]:
        """All that is known here and there, the oldest first."""
        async with self._resuming:
            there = {job.id: job for _, job in await self._rows()}
            for mine in list(self._mine.values()):
                if mine.id in there:
                    mine.take(there[mine.id])
                elif mine.state == "running":
                    await self._resume(mine)
        jobs = {mine.id: mine for mine in self._mine.values() if mine.id not in there}
        jobs |= {one.id: self._mine.get(one.id) or RemoteRedrive(self, one) for one in there.values()}
        self._queue.forget_looks()  # whoever hears how far it is may look at the queue next
        return list(enumerate(jobs.values()))

    async def _rows(self) -> list[tuple[int, Job]]:
        return _jobs(await self._queue.ask(LookAtRedrives(self._queue.place_there), may_repeat=True))

    async def _resume(self, mine: RemoteRedrive) -> None:
        """Its leader has gone. What is left of it goes on at the one that leads now."""
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
            mine.end("failed", f"the backend that ran it was lost, and it cannot go on: {error.detail}")
            return
        log.info("a redrive goes on at another backend", queue=self._queue.name, redrive=mine.id, moved=mine.done)


async def count(queue: RemoteQueue, order: Order) -> Counter[str]:
    """How many messages a redrive would move now, by the queue they go to."""
    found: Counter[str] = Counter()
    counted = Counted({}, None)
    while True:
        counted = _counted(await queue.ask(CountLetters(order, counted.rest), may_repeat=True))
        found.update(counted.counts)
        if counted.rest is None:
            return found


def letters_of(queue: RemoteQueue, wanted: LetterFilter, to: str | None, *, own: bool) -> RemoteLetters:
    """Raises `InvalidRequest` for what a backend cannot know or do, because it has no keys."""
    if wanted.headers and queue.config.encrypted:
        detail = (
            f"queue {queue.owner!r} is encrypted, and with store.backends the messages are looked through where nobody "
            "can read their headers: filter by reason, ids or older_than"
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
    """Returns when the shard that is to move messages to these queues has them."""
    unknown = [
        there.definition
        for target in targets
        if (there := target.at(source.home)) is not None and not source.home.adopted.has(there.definition)
    ]
    if unknown:
        await source.home.adopted.tell(unknown)


def _apart(target: RemoteQueue, source: RemoteQueue) -> str | None:
    """ "cluster", "shard" or "set of lanes", which two queues do not share; None: what goes from one to the other is
    one commit."""
    home = source.home
    if home.cluster.lanes and target.definition.single_lane != source.definition.single_lane:
        return "set of lanes"  # where a key may have another lane
    if target.takes_at(home):
        return None
    return "shard" if any(other.cluster is home.cluster for other in target.homes) else "cluster"


def _why_not(queue: RemoteQueue, name: str, find: Find) -> str | None:
    """Why messages may not go to a queue, or cannot."""
    try:
        target = find(name)
    except QueueNotFound as error:
        return error.detail
    except PushqError as error:
        if error.retry_after_ms is not None:
            raise  # it is being looked up
        return error.detail
    is_other = name != queue.owner
    if is_other and (apart := _apart(target, queue)) is not None:
        return _lies_elsewhere(queue.owner, name, apart)
    return _not_sealed_anew(queue.owner, name) if is_other and target.config.encrypted else None


def _lies_elsewhere(source: str, target: str, apart: str) -> str:
    return f"queue {target!r} lies in another {apart} than {source!r}, and a redrive moves messages within one"


def _not_sealed_anew(source: str, target: str) -> str:
    return (
        f"with store.backends messages are moved where nobody has keys, so those of {source!r} cannot be encrypted for "
        f"{target!r}: encrypted messages go back to their own queue only"
    )


class Redriving:
    """The half of a remote queue that is about dead letters."""

    redrives: Any
    """`RemoteRedrives`, or of a queue that is put together `WholeRedrives`."""

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
