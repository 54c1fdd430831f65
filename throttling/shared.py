"""Counts requests in a Redis that several gateways share. Losing it costs accuracy, never a message or a long wait.

Most hits are spent from grants. The others wait for one round trip, together: a single task asks Redis for all of them.
The first late answer takes Redis out of use: from then on each rule is counted by this gateway alone, or its requests
are refused, as the rule says. A probe in the background brings Redis back.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from throttling.config import (
    GRANT_IDLE_SECONDS,
    STORE_BATCH_MAX,
    STORE_PROBE_SECONDS,
    STORE_SECONDS_MAX,
    STORE_WAITING_MAX,
)
from throttling.decision import Charge, Outcome, tighter
from throttling.grants import Grants
from throttling.limiter import MemoryLimiter
from throttling.redis_store import Take, Taken

log = structlog.get_logger("pushq.throttling")

_NS_PER_US = 1_000


class Store(Protocol):
    """The shared counts."""

    async def take(self, hits: Sequence[Sequence[Take]]) -> list[tuple[bool, list[Taken]]]: ...
    async def ping(self) -> None: ...
    async def disconnect(self) -> None: ...
    async def close(self) -> None: ...


class _Ask:
    """A hit on its way to Redis. `answer` is None for one that only refills grants."""

    __slots__ = ("answer", "charges")

    def __init__(self, charges: Sequence[Charge], answer: asyncio.Future[Outcome] | None) -> None:
        self.charges = charges
        self.answer = answer


class SharedLimiter:
    """Implements `throttling.limiter.Limiter` on shared counts. Belongs to the event loop that made it."""

    def __init__(
        self,
        store: Store,
        *,
        local: MemoryLimiter | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        seconds_max: float = STORE_SECONDS_MAX,
        probe_seconds: float = STORE_PROBE_SECONDS,
    ) -> None:
        self.is_store_away = False
        self.store_away_total = 0
        """How often Redis went away."""
        self.decided_alone_total = 0
        """Hits that were decided without it."""
        self.local = MemoryLimiter() if local is None else local
        self._store = store
        self._clock_ns = clock_ns
        self._seconds_max = seconds_max
        self._probe_seconds = probe_seconds
        self._grants = Grants()
        self._asks: deque[_Ask] = deque()
        self._in_flight: list[_Ask] = []
        self._filling: set[tuple[str, str]] = set()
        self._is_closing = False
        self._wake = asyncio.Event()
        self._worker = asyncio.get_running_loop().create_task(self._work(), name="shared limits")

    # ------------------------------------------------------------------------------------------------------- hits

    def hit(self, charges: Sequence[Charge]) -> Outcome | None:
        if self.is_store_away:
            return self._alone(charges)
        outcome = self._grants.spend(charges, self._clock_ns())
        if outcome is not None and outcome.allowed and self._grants.is_low:
            self._fill(self._grants.low(charges))
        return outcome

    async def ask(self, charges: Sequence[Charge]) -> Outcome:
        outcome = self.hit(charges)
        if outcome is None and len(self._asks) >= STORE_WAITING_MAX:
            return self._alone(charges)
        if outcome is None:
            answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            self._asks.append(_Ask(charges, answer))
            self._wake.set()
            outcome = await answer
        return outcome

    def _fill(self, low: list[Charge]) -> None:
        """Refills grants while there is still something to spend."""
        for rule, subject, _ in low:
            key = (rule.name, subject)
            if key not in self._filling and len(self._asks) < STORE_WAITING_MAX:
                self._filling.add(key)
                self._asks.append(_Ask((Charge(rule, subject, 0),), None))
                self._wake.set()

    def _alone(self, charges: Sequence[Charge]) -> Outcome:
        """Decides without Redis: a rule with `is_closed_without_store` refuses, all others are counted here."""
        self.decided_alone_total += 1
        for rule, subject, _ in charges:
            if rule.is_closed_without_store:
                wait_ns = int(self._probe_seconds * 1e9)
                return Outcome(False, rule, subject, 0, wait_ns, is_store_away=True)
        return self.local.hit(charges)

    # ------------------------------------------------------------------------------------------------------ Redis

    async def _work(self) -> None:
        while not self._is_closing:
            try:
                if self.is_store_away:
                    await self._probe()
                else:
                    await self._turn()
            except Exception:
                # Without the next turn every waiting request would wait for ever.
                log.exception("shared limits failed")
                await self._away("internal error")

    async def _turn(self) -> None:
        if not self._asks:
            await self._sleep()
        self._wake.clear()
        batch = [self._asks.popleft() for _ in range(min(STORE_BATCH_MAX, len(self._asks)))]
        now = self._clock_ns()
        asked = [ask for ask in batch if not self._answered_by_grants(ask, now)]
        back = [Take(rule, subject, 0, -left) for rule, subject, left in self._grants.idle(now)]
        hits = [[self._take(charge, now) for charge in ask.charges] for ask in asked]
        hits += [[take] for take in back]
        if not hits:
            return
        self._in_flight = asked
        try:
            async with asyncio.timeout(self._seconds_max):
                answers = await self._store.take(hits)
        except (RedisError, OSError, TimeoutError) as error:
            await self._away(type(error).__name__)
            return
        self._in_flight = []
        now = self._clock_ns()
        for ask, (allowed, taken) in zip(asked, answers, strict=False):  # what went back needs no answer
            self._answer(ask, self._taken(ask.charges, allowed, taken, now))

    async def _sleep(self) -> None:
        """Waits until there is a hit to decide, or grants may have become idle."""
        if not self._grants.is_holding:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(GRANT_IDLE_SECONDS / 2):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _answered_by_grants(self, ask: _Ask, now: int) -> bool:
        """Answers a hit if the grants of an earlier one are enough for it, too."""
        if ask.answer is None:
            return False
        if ask.answer.done():
            return True  # its client has left
        outcome = self._grants.spend(ask.charges, now)
        if outcome is not None:
            ask.answer.set_result(outcome)
        return outcome is not None

    def _take(self, charge: Charge, now: int) -> Take:
        return Take(charge.rule, charge.subject, charge.cost, charge.cost + self._grants.ahead(charge, now))

    def _taken(self, charges: Sequence[Charge], allowed: bool, taken: list[Taken], now: int) -> Outcome:
        least: Outcome | None = None
        refused: Outcome | None = None
        for charge, (took, remaining, wait_us) in zip(charges, taken, strict=True):
            if allowed:
                self._grants.took(charge, took, remaining, now)
                least = tighter(least, Outcome(True, charge.rule, charge.subject, remaining + took - charge.cost))
            elif wait_us:
                wait_ns = wait_us * _NS_PER_US if wait_us > 0 else None
                self._grants.refused(charge, remaining, wait_ns, now)
                refused = refused or Outcome(False, charge.rule, charge.subject, remaining, wait_ns)
        outcome = least if allowed else refused
        assert outcome is not None, "the script refused without a reason"
        return outcome

    def _answer(self, ask: _Ask, outcome: Outcome) -> None:
        if ask.answer is None:
            self._filling.difference_update((rule.name, subject) for rule, subject, _ in ask.charges)
        elif not ask.answer.done():
            ask.answer.set_result(outcome)

    # ------------------------------------------------------------------------------------------------------- away

    async def _away(self, reason: str) -> None:
        self.is_store_away = True
        self.store_away_total += 1
        self._grants.clear()
        self._filling.clear()
        asks = [*self._in_flight, *self._asks]
        self._in_flight = []
        self._asks.clear()
        for ask in asks:
            if ask.answer is not None and not ask.answer.done():
                ask.answer.set_result(self._alone(ask.charges))
        log.warning("redis is unavailable: rates are counted by this gateway alone", reason=reason, waiting=len(asks))
        await self._disconnect()

    async def _probe(self) -> None:
        await asyncio.sleep(self._probe_seconds)
        try:
            async with asyncio.timeout(self._seconds_max):
                await self._store.ping()
        except (RedisError, OSError, TimeoutError):
            await self._disconnect()
            return
        self.is_store_away = False
        log.info("redis is available again: rates are shared")

    async def _disconnect(self) -> None:
        try:
            await self._store.disconnect()
        except (RedisError, OSError):
            pass  # it is gone already

    async def close(self) -> None:
        """Gives back its grants, if Redis answers, and ends."""
        # A turn ends within its timeout; cancelling it would leave an answer half read.
        self._is_closing = True
        self._wake.set()
        await asyncio.wait([self._worker], timeout=self._seconds_max + self._probe_seconds)
        self._worker.cancel()
        for ask in [*self._in_flight, *self._asks]:
            if ask.answer is not None:
                ask.answer.cancel()
        back = [[Take(rule, subject, 0, -left)] for rule, subject, left in self._grants.idle(1 << 62)]
        if back and not self.is_store_away:
            try:
                async with asyncio.timeout(self._seconds_max):
                    await self._store.take(back)
            except (RedisError, OSError, TimeoutError):
                pass  # the quota recovers by itself, within the window
        await self._disconnect()
        await self._store.close()
