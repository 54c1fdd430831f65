"""Redrives that gateways ask for. They run at the backend that stores the messages; a gateway starts a redrive and
polls its progress.

A job ends when this backend does not lead any more; messages already moved stay moved, by commits that the next leader
has. The gateway that started the job has the next leader continue with the rest: see `remote.redrives.redrives`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backend_store.client.dead_letters import LetterFilter, Letters, Spot
from backend_store.client.embedded import EmbeddedStore
from backend_store.client.queue import EmbeddedQueue
from backend_store.client.redrive import Redrive, State
from backend_store.model import Forbidden, QueueNotFound
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.service.limits import LETTERS_SECONDS_MAX
from backend_store.wire.store_frames import Place


class Order(NamedTuple):
    """The messages to move. `to`: the queue for all of them; None: each goes to where it came from. `own`: see
    `dead_letters`."""

    place: Place
    wanted: LetterFilter
    to: str | None
    own: bool


class Counted(NamedTuple):
    """Number of messages by target queue, and the position after which the rest is still to be counted."""

    counts: dict[str, int]
    rest: Spot | None


class Job(NamedTuple):
    """The present state of a `Redrive`."""

    id: str
    total: int
    rate_per_s: float | None
    done: int
    state: State
    error: str | None
    begun_ms: int = 0
    whole: int = 0


class CountLetters(Asked, frozen=True):
    """`after`: the `rest` of the answer before."""

    order: Order
    after: Spot | None

    @property
    def whose(self) -> str | None:
        return self.order.place.tenant


class StartRedrive(Asked, frozen=True):
    """Starts a redrive; repeated, it changes nothing. `done`: how many of `total` an earlier leader has already
    moved."""

    redrive_id: str
    order: Order
    total: int
    rate_per_s: float | None
    targets: dict[str, str | None]
    """Target queues; a string is the reason why messages may not go to a queue."""
    done: int = 0
    whole: int = 0
    """Where several parts of a queue have a job with this id: how many messages all parts are to move."""

    @property
    def whose(self) -> str | None:
        return self.order.place.tenant


class LookAtRedrives(AtPlace, frozen=True):
    """See `client.redrive`."""


class CancelRedrive(AtPlace, frozen=True):
    """Answered when no more messages are moved; with None where there is no such job. `why`: see `client.redrive`."""

    redrive_id: str
    why: str | None = None


async def count(store: EmbeddedStore, asked: CountLetters) -> Counted:
    queue = queue_at(store, asked.order.place)
    found, rest = await queue.count_some_letters(
        _letters(queue, asked.order), asked.after, seconds_max=LETTERS_SECONDS_MAX
    )
    return Counted(dict(found), rest)


async def start(store: EmbeddedStore, asked: StartRedrive) -> Job:
    order = asked.order
    queue = queue_at(store, order.place)
    known = queue.redrives.get(asked.redrive_id)
    if known is not None:
        return _told(known)

    def find(name: str) -> EmbeddedQueue:
        if name not in asked.targets:
            raise QueueNotFound(f"messages of {name!r} arrived after this redrive was requested: start another one")
        if (why := asked.targets[name]) is not None:
            raise Forbidden(why)
        return store.here(order.place.tenant, name)

    letters = _letters(queue, order)
    job = queue.redrive(
        asked.redrive_id, letters, total=asked.total, rate_per_s=asked.rate_per_s, find=find, done=asked.done
    )
    job.whole = asked.whole
    return _told(job)


async def look(store: EmbeddedStore, asked: LookAtRedrives) -> list[tuple[int, Job]]:
    return [(number, _told(job)) for number, job in queue_at(store, asked.place).redrives.since(0)]


async def cancel(store: EmbeddedStore, asked: CancelRedrive) -> Job | None:
    job = queue_at(store, asked.place).redrives.get(asked.redrive_id)
    if job is None:
        return None
    await job.cancel(asked.why)
    return _told(job)


def _letters(queue: EmbeddedQueue, order: Order) -> Letters:
    return queue.dead_letters(order.wanted, order.to, own=order.own)


def _told(job: Redrive) -> Job:
    return Job(job.id, job.total, job.rate_per_s, job.done, job.state, job.error, job.begun_ms, job.whole)


HANDLERS: dict[type[Asked], Any] = {
    CountLetters: count,
    StartRedrive: start,
    LookAtRedrives: look,
    CancelRedrive: cancel,
}
