"""Redrives of a queue that is put together from others: one job at each part that has dead letters, told as one.

What is moved stays within its part: each message leaves its old place and stands in its new one with one commit. The
jobs have one id, so any gateway finds what another one began.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from backend_store.client.redrive import REDRIVES_REMEMBERED_MAX, State
from backend_store.model import Conflict, OutcomeUnknown, PushqError, Unavailable
from backend_store.remote.redrives import Find, RemoteLetters, RemoteRedrive

if TYPE_CHECKING:
    from backend_store.remote.parted import PartedQueue

Outcome = TypeVar("Outcome")
RATE_DIGITS: Final = 9
"""Shares of a rate do not add up to it in the last digits."""


class WholeLetters:
    """Which dead letters of each part, and where they go as far as they were counted."""

    def __init__(self, parts: Sequence[RemoteLetters]):
        self.parts = parts

    async def count(self) -> Counter[str]:
        """Raises `Unavailable` where a part does not answer: what is told of all must be of all."""
        counted = await asyncio.gather(*(part.count() for part in self.parts))
        return sum(counted, Counter())


class WholeRedrive:
    """Has the shape of `client.redrive.Redrive`."""

    def __init__(self, jobs: Sequence[RemoteRedrive]):
        self.id = jobs[0].id
        self.jobs = jobs

    @property
    def begun_ms(self) -> int:
        return min(job.begun_ms for job in self.jobs)

    @property
    def total(self) -> int:
        return sum(job.total for job in self.jobs)

    @property
    def done(self) -> int:
        return sum(job.done for job in self.jobs)

    @property
    def rate_per_s(self) -> float | None:
        """Each has its share of it, as many as it has messages."""
        rates = [job.rate_per_s for job in self.jobs if job.rate_per_s is not None]
        return round(sum(rates), RATE_DIGITS) if rates else None

    @property
    def state(self) -> State:
        """It runs while one of them does; it is done when all are."""
        states = {job.state for job in self.jobs}
        order: tuple[State, ...] = ("running", "failed", "cancelled")
        return next((state for state in order if state in states), "done")

    @property
    def error(self) -> str | None:
        return "; ".join(dict.fromkeys(job.error for job in self.jobs if job.error is not None)) or None

    async def cancel(self, why: str | None = None) -> None:
        """See `Redrive.cancel`. Raises `PushqError` where one may go on; those that were reached have ended."""
        _all_or_raised(await asyncio.gather(*(job.cancel(why) for job in self.jobs), return_exceptions=True))


class WholeRedrives:
    """A queue's redrives, and its companion's. Has the shape of `client.redrive.Redrives`."""

    def __init__(self, queue: PartedQueue):
        self._queue = queue

    async def find(self, redrive_id: str) -> WholeRedrive | None:
        return next((job for job in await self._look() if job.id == redrive_id), None)

    async def stop(self, redrive_id: str) -> WholeRedrive | None:
        """See `RemoteRedrives.stop`. Where a part does not answer, it has ended at the others."""
        stops = [leaf.redrives.stop(redrive_id) for leaf in self._queue.leaves]
        found = [job for job in _all_or_raised(await asyncio.gather(*stops, return_exceptions=True)) if job is not None]
        return WholeRedrive(found) if found else None

    async def list_since(self, number: int) -> list[tuple[int, WholeRedrive]]:
        return [(n, job) for n, job in enumerate(await self._look()) if n >= number]

    async def begin(
        self, redrive_id: str, letters: WholeLetters, *, total: int, rate: float | None, find: Find
    ) -> WholeRedrive:
        """Raises `Conflict` while another one runs at any part. Where one part does not begin, none goes on."""
        running = next((job for job in await self._look() if job.state == "running"), None)
        if running is not None:
            detail = f"redrive {running.id} of queue {self._queue.owner!r} runs already: wait for it, or cancel it"
            raise Conflict(detail)
        parts = [part for part in letters.parts if part.counts] or letters.parts[:1]
        begun = await asyncio.gather(
            *(self._begin(redrive_id, part, total, rate, find) for part in parts), return_exceptions=True
        )
        failure = next((error for error in begun if isinstance(error, BaseException)), None)
        if failure is not None:
            may_run = [part for part, one in zip(parts, begun, strict=True) if not _has_not_begun(one)]
            ends = [self._end(redrive_id, part, str(failure)) for part in may_run]
            await asyncio.gather(*ends, return_exceptions=True)
        return WholeRedrive(_all_or_raised(begun))

    async def _end(self, redrive_id: str, letters: RemoteLetters, why: str) -> None:
        owner = self._queue.at(letters.queue.home)
        if owner is not None:
            await owner.redrives.stop(redrive_id, why)

    async def _begin(
        self, redrive_id: str, letters: RemoteLetters, total: int, rate: float | None, find: Find
    ) -> RemoteRedrive:
        owner = self._queue.at(letters.queue.home)
        if owner is None:
            raise Unavailable(
                f"queue {self._queue.owner!r} has just left a place of its dead letters", retry_after_ms=200
            )
        here = letters.counts.total()
        share = rate * here / total if rate is not None and here else rate
        job: RemoteRedrive = await owner.redrives.begin(redrive_id, letters, total=here, rate=share, find=find)
        return job

    async def _look(self) -> list[WholeRedrive]:
        """The last ones, the oldest first. What came before those may be forgotten at one part and known at another."""
        looks = await asyncio.gather(*(leaf.redrives.list_since(0) for leaf in self._queue.leaves))
        found: dict[str, list[RemoteRedrive]] = {}
        for look in looks:
            for _, job in look:
                found.setdefault(job.id, []).append(job)
        known = sorted(map(WholeRedrive, found.values()), key=lambda job: (job.state == "running", job.begun_ms))
        return known[-REDRIVES_REMEMBERED_MAX:]


def _has_not_begun(outcome: object) -> bool:
    return isinstance(outcome, PushqError) and not isinstance(outcome, OutcomeUnknown)


def _all_or_raised(outcomes: Sequence[Outcome | BaseException]) -> list[Outcome]:
    found: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def whole_letters(parts: Sequence[RemoteLetters]) -> WholeLetters:
    """Raises `InvalidRequest` where those of no part may go where they are asked to."""
    refusals = [part.refusal for part in parts]
    if refusals and all(refusals):
        raise next(error for error in refusals if error is not None)
    return WholeLetters(parts)
