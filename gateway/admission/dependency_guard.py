"""Guards calls to external dependencies (Redis, a key server, a command) by a bulkhead, a circuit breaker, a deadline.

A call goes place → leave → attempt → outcome: it takes one of the dependency's places, asks its circuit breaker, and
has until its deadline. A failed call is retried if it is idempotent and the retry budget allows it. Guards share
nothing, so a dependency that stalls delays only its own callers.
"""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Final, Literal, NamedTuple, NoReturn, TypeVar

import structlog

from backend_store.model import Unavailable
from throttling.breaker import Breaker, BreakerRule, Pass, State
from throttling.config import CALLS_AT_ONCE_MAX, CALLS_WAITING_MAX, RETRY_PAUSE_MS_MAX
from throttling.retry_budget import RetryBudget

log = structlog.get_logger("pushq.guard")

T = TypeVar("T")

Outcome = Literal["ok", "failed", "timed_out", "open", "full", "abandoned"]
"""How a call ended: answered; failed for good; unanswered at its deadline; refused by the open circuit; refused because
no place was free; its caller left."""

OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "failed", "timed_out", "open", "full", "abandoned")
SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
FULL_RETRY_MS: Final = 100
"""Retry advice after a refusal because no place was free: places become free all the time."""


class GuardSettings(NamedTuple):
    """Limits of one dependency. `failures`: errors that count as failures of the dependency; a `TimeoutError` and a
    broken connection are `OSError`s. Any other error is an answer, and passes unchanged.
    """

    at_once_max: int = CALLS_AT_ONCE_MAX
    waiting_max: int = CALLS_WAITING_MAX
    breaker: BreakerRule = BreakerRule()
    failures: tuple[type[Exception], ...] = (OSError,)


class Latency:
    """Histogram of call durations in seconds, from getting a place to the end."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS_BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.buckets[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, calls that took no longer), in Prometheus' form."""
        bounds = [str(bound) for bound in SECONDS_BUCKETS] + ["+Inf"]
        return list(zip(bounds, accumulate(self.buckets), strict=True))


class Guard:
    """The guard of one dependency. Used from one event loop."""

    def __init__(
        self,
        name: str,
        settings: GuardSettings = GuardSettings(),  # noqa: B008 - immutable
        *,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.calls: Counter[Outcome] = Counter()
        self.retries_total = 0
        self.latency = Latency()
        self._settings = settings
        self._clock_ms = clock_ms
        self._draw = draw
        self._breaker = Breaker(settings.breaker)
        self._budget = RetryBudget()
        self._places = asyncio.Semaphore(settings.at_once_max)
        self._waiting = 0

    @property
    def state(self) -> State:
        return self._breaker.state

    async def call(
        self,
        do: Callable[[], Awaitable[T]],
        *,
        deadline_s: float,
        idempotent: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> T:
        """Returns the result of `do`. Calls it again after a failure only if it is `idempotent`, and only while it
        `is_wanted`.

        Raises `Unavailable` on failure, or without an answer within `deadline_s`, waiting included; and what `do`
        raises as an answer.
        """
        self._budget.earn()
        until = asyncio.get_running_loop().time() + deadline_s
        await self._take_place(until)
        began = time.perf_counter()
        try:
            return await self._attempts(do, until, deadline_s, is_wanted, idempotent=idempotent)
        finally:
            self._places.release()
            self.latency.observe(time.perf_counter() - began)

    async def _take_place(self, until: float) -> None:
        if not self._places.locked():
            await self._places.acquire()  # does not wait
            return
        if self._waiting >= self._settings.waiting_max:
            self._refuse_full(f"{self._settings.at_once_max} calls are in progress and {self._waiting} are waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._places.acquire()
        except TimeoutError:
            self._refuse_full("none of the calls in progress finished in time")
        except asyncio.CancelledError:
            self.calls["abandoned"] += 1
            raise
        finally:
            self._waiting -= 1

    async def _attempts(
        self,
        do: Callable[[], Awaitable[T]],
        until: float,
        deadline_s: float,
        is_wanted: Callable[[], bool],
        *,
        idempotent: bool,
    ) -> T:
        while True:
            if not is_wanted():
                self.calls["abandoned"] += 1
                raise Unavailable(
                    f"{self.name} was not called: nobody waits for the answer any more", retry_after_ms=FULL_RETRY_MS
                )
            leave = self._breaker.admit(self._clock_ms())
            if not isinstance(leave, Pass):
                self.calls["open"] += 1
                detail = f"{self.name} failed too often; the next attempt is in {leave.retry_after_ms / 1000:.1f} s"
                raise Unavailable(detail, retry_after_ms=leave.retry_after_ms)
            try:
                async with asyncio.timeout_at(until) as limit:
                    result = await do()
            except asyncio.CancelledError:
                self._breaker.abandoned(leave)
                self.calls["abandoned"] += 1
                raise
            except self._settings.failures as error:
                self._end(leave, error)
                if limit.expired():
                    self.calls["timed_out"] += 1
                    raise Unavailable(f"{self.name} did not answer within {deadline_s:g} s")
                if not (idempotent and await self._may_retry(until)):
                    self.calls["failed"] += 1
                    raise Unavailable(f"{self.name}: {error or type(error).__name__}") from error
            except BaseException:
                self._end(leave, None)
                self.calls["ok"] += 1
                raise
            else:
                self._end(leave, None)
                self.calls["ok"] += 1
                return result

    async def _may_retry(self, until: float) -> bool:
        """Waits a random pause, so that calls that failed together do not retry together. False: no retry."""
        pause_s = self._draw() * RETRY_PAUSE_MS_MAX / 1000
        if asyncio.get_running_loop().time() + pause_s >= until or not self._budget.take():
            return False
        self.retries_total += 1
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            self.calls["abandoned"] += 1
            raise
        return True

    def _end(self, leave: Pass, error: Exception | None) -> None:
        before = self._breaker.state
        if error is None:
            self._breaker.succeeded(leave, self._clock_ms())
        else:
            self._breaker.failed(leave, self._clock_ms())
        after = self._breaker.state
        if after != before:
            log.warning("circuit", dependency=self.name, state=after, error=type(error).__name__ if error else None)

    def _refuse_full(self, why: str) -> NoReturn:
        self.calls["full"] += 1
        raise Unavailable(f"{self.name} is busy: {why}", retry_after_ms=FULL_RETRY_MS)


class Guards:
    """The guards of a process by dependency; callers and metrics share them."""

    def __init__(self) -> None:
        self._guards: dict[str, Guard] = {}

    def guard(self, name: str, settings: GuardSettings = GuardSettings()) -> Guard:  # noqa: B008 - immutable
        """The dependency's guard, made on first use; the settings of the first use apply."""
        if name not in self._guards:
            self._guards[name] = Guard(name, settings)
        return self._guards[name]

    @property
    def all(self) -> list[Guard]:
        return list(self._guards.values())
