"""Redrives that gateways ask for. They run here, where the messages lie; a gateway starts one and asks how far it is.

A job ends when this backend leads no more; what it moved stays moved, by commits that the next leader has. The gateway
that started it has the next leader go on with the rest: see `remote.redrives`.
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
    """What is to be moved: `to` is where all go in place of where each came from. `own`: see `dead_letters`."""

    place: Place
    wanted: LetterFilter
    to: str | None
    own: bool


class Counted(NamedTuple):
    """How many messages go where, and the place behind which the rest is still to be counted."""

    counts: dict[str, int]
    rest: Spot | None


class Job(NamedTuple):
    """A `Redrive` as it is now."""

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
    """Asked again, it changes nothing. `done`: of `total` so many were moved already, by an earlier leader."""

    redrive_id: str
    order: Order
    total: int
    rate_per_s: float | None
    targets: dict[str, str | None]
    """Queues that messages may go to; or why they may not."""
    done: int = 0
    whole: int = 0
    """Where several parts of a queue have one of this id: how many messages all of them are to move."""

    @property
    def whose(self) -> str | None:
        return self.order.place.tenant


class LookAtRedrives(AtPlace, frozen=True):
    """See `client.redrive`."""


class CancelRedrive(AtPlace, frozen=True):
    """Answered when nothing more is moved; with None where there is no such job. `why`: see `client.redrive`."""

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
            raise QueueNotFound(f"messages of {name!r} came after this redrive was asked for: start another one")
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
