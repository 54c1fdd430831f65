"""Redrives of a queue made of parts: one job at each part that has dead letters, shown as one redrive.

Messages stay within their part: each leaves its old place and enters its new one in one commit. The jobs share one id,
so any gateway finds a redrive that another one began.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from backend_store.client.redrive import REDRIVES_REMEMBERED_MAX, State
from backend_store.model import Conflict, OutcomeUnknown, PushqError, Unavailable
from backend_store.remote.limits import REDRIVE_LOST_SECONDS
from backend_store.remote.redrives.redrives import Find, RemoteLetters, RemoteRedrive
from backend_store.words import counted

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.queues.parted import PartedQueue

Outcome = TypeVar("Outcome")
RATE_DIGITS: Final = 9
"""Sums of rates are rounded to so many digits, as the shares of a rate do not add up exactly."""


class WholeLetters:
    """The dead letters chosen for a redrive, by part; see `RemoteLetters`."""

    def __init__(self, parts: Sequence[RemoteLetters]):
        self.parts = parts

    async def count(self) -> Counter[str]:
        """Counts over all parts. Raises `Unavailable` if a part does not answer: the sum must be complete."""
        counted = await asyncio.gather(*(part.count() for part in self.parts))
        return sum(counted, Counter())


class WholeRedrive:
    """The jobs of one redrive as one; has the shape of `client.redrive.Redrive`."""

    def __init__(self, jobs: Sequence[RemoteRedrive]):
        self.id = jobs[0].id
        self.jobs = jobs
        self.is_lost = False
        """No more news will come of the parts that are not among the jobs."""

    @property
    def begun_ms(self) -> int:
        return min(job.begun_ms for job in self.jobs)

    @property
    def total(self) -> int:
        return max(self._known, *(job.whole for job in self.jobs))

    @property
    def _known(self) -> int:
        return sum(job.total for job in self.jobs)

    @property
    def lacks(self) -> bool:
        """Whether the job of a part is missing: the next leader there does not know it, or not yet."""
        return self._known < self.total

    @property
    def done(self) -> int:
        return sum(job.done for job in self.jobs)

    @property
    def rate_per_s(self) -> float | None:
        """The sum of the jobs' rates; each job has a share in proportion to its messages."""
        rates = [job.rate_per_s for job in self.jobs if job.rate_per_s is not None]
        return round(sum(rates), RATE_DIGITS) if rates else None

    @property
    def state(self) -> State:
        """Is "running" while any job runs, and "done" once all jobs are."""
        states = {job.state for job in self.jobs}
        if self.lacks and states == {"done"}:
            return "failed" if self.is_lost else "running"
        order: tuple[State, ...] = ("running", "failed", "cancelled")
        return next((state for state in order if state in states), "done")

    @property
    def error(self) -> str | None:
        errors = [job.error for job in self.jobs if job.error is not None]
        if self.is_lost:
            lost = counted(self.total - self._known, "message")
            errors.append(f"the backend that moved {lost} of them is no longer the leader: redrive the rest again")
        return "; ".join(dict.fromkeys(errors)) or None

    async def cancel(self, why: str | None = None) -> None:
        """See `Redrive.cancel`. Raises `PushqError` if a job may go on; jobs that were reached have ended."""
        _all_or_raised(await asyncio.gather(*(job.cancel(why) for job in self.jobs), return_exceptions=True))


class WholeRedrives:
    """The redrives of a queue and of its companion; has the shape of `client.redrive.Redrives`."""

    def __init__(self, queue: PartedQueue):
        self._queue = queue
        self._seen: dict[Home, list[RemoteRedrive]] = {}
        """Home → the jobs last known there; kept for a home that the queue has left."""
        self._ran: dict[str, float | None] = {}
        """Redrives seen running → since when none of their jobs runs although one is missing; None if that is not so.
        """

    async def find(self, redrive_id: str) -> WholeRedrive | None:
        return next((job for job in await self._look() if job.id == redrive_id), None)

    async def stop(self, redrive_id: str) -> WholeRedrive | None:
        """See `RemoteRedrives.stop`. Raises the error of a part that does not answer; the others have ended it."""
        stops = [leaf.redrives.stop(redrive_id) for leaf in self._queue.leaves]
        found = [job for job in _all_or_raised(await asyncio.gather(*stops, return_exceptions=True)) if job is not None]
        return WholeRedrive(found) if found else None

    async def list_since(self, number: int) -> list[tuple[int, WholeRedrive]]:
        return [(n, job) for n, job in enumerate(await self._look()) if n >= number]

    async def begin(
        self, redrive_id: str, letters: WholeLetters, *, total: int, rate: float | None, find: Find
    ) -> WholeRedrive:
        """Begins a job at each part that has dead letters. Raises `Conflict` while another redrive runs at any part,
        and the error of a part that cannot begin; jobs begun before are cancelled then.

        The parts begin one after the other in an order that all gateways share: of several redrives begun at once, one
        finds all parts free.
        """
        running = next((job for job in await self._look() if job.state == "running"), None)
        if running is not None:
            detail = (
                f"redrive {running.id} of queue {self._queue.owner!r} is already running: wait for it, or cancel it"
            )
            raise Conflict(detail)
        parts = [part for part in letters.parts if part.counts] or letters.parts[:1]
        begun: list[RemoteRedrive] = []
        for number, part in enumerate(parts):
            try:
                begun.append(await self._begin(redrive_id, part, total, rate, find))
            except BaseException as error:
                may_run = parts[:number] if _has_not_begun(error) else parts[: number + 1]
                ends = [self._end(redrive_id, one, str(error)) for one in may_run]
                await asyncio.gather(*ends, return_exceptions=True)
                raise
        return WholeRedrive(begun)

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
        job: RemoteRedrive = await owner.redrives.begin(
            redrive_id, letters, total=here, rate=share, find=find, whole=total
        )
        return job

    async def _look(self) -> list[WholeRedrive]:
        """The latest `REDRIVES_REMEMBERED_MAX` redrives, the oldest first, running ones last. Earlier ones may be
        forgotten at one part and known at another."""
        leaves = self._queue.leaves
        looks = await asyncio.gather(*(leaf.redrives.list_since(0) for leaf in leaves))
        self._seen |= {leaf.home: [job for _, job in look] for leaf, look in zip(leaves, looks, strict=True)}
        homes = {leaf.home for leaf in leaves}
        found: dict[str, list[RemoteRedrive]] = {}
        for home, jobs in self._seen.items():
            for job in jobs:
                if home not in homes and job.state == "running":
                    job.end("done")  # the queue left this place, so nothing is left there
                found.setdefault(job.id, []).append(job)
        known = [job for job in map(WholeRedrive, found.values()) if self._is_told(job)]
        self._ran = {redrive_id: since for redrive_id, since in self._ran.items() if redrive_id in found}
        known.sort(key=lambda job: (job.state == "running", job.begun_ms))
        return known[-REDRIVES_REMEMBERED_MAX:]

    def _is_told(self, job: WholeRedrive) -> bool:
        """Whether a redrive is reported. If the gateway that began it has ended, no gateway makes a part's next leader
        go on. A redrive seen running here is reported as lost then; any other is left out, as the missing job may have
        been done and forgotten long ago."""
        states = {one.state for one in job.jobs}
        if "running" in states:
            self._ran[job.id] = None
        if not job.lacks or states != {"done"}:
            return True
        if job.id not in self._ran:
            return False
        now = asyncio.get_running_loop().time()
        since = self._ran[job.id] = self._ran[job.id] or now
        job.is_lost = now - since >= REDRIVE_LOST_SECONDS
        return True


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
    """Combines the letters of all parts. Raises `InvalidRequest` if no part's may go where they are asked to."""
    refusals = [part.refusal for part in parts]
    if refusals and all(refusals):
        raise next(error for error in refusals if error is not None)
    return WholeLetters(parts)
