"""Caches items of a remote metadata service: returns a cached item at once, and asks the service for others.

A look-up that must ask raises `LookingUp`; the request handler waits for its flight and runs again. All who miss the
same item share one flight. `core.cached` decides what may be served, and for how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from math import inf
from typing import Generic, TypeVar

import structlog

from backend_store.client import unbounded_task
from backend_store.client.metadata import Change, MetadataService, Moment, Read
from backend_store.model import PushqError, Unavailable
from gateway.admission.dependency_guard import Guard
from gateway.core.cached import Bounds, Cache, Must
from gateway.limits import (
    CATALOGUE_ABSENT_MAX,
    CATALOGUE_ASKS_MAX,
    CATALOGUE_FLIGHTS_MAX,
    CATALOGUE_FRESH_MS,
    CATALOGUE_PAUSE_SECONDS,
    CATALOGUE_REWATCH_SECONDS,
    CATALOGUE_WAIT_SECONDS,
)
from push.delivery.lookup_retry import LookingUp

log = structlog.get_logger("pushq.catalogue")

K = TypeVar("K")
V = TypeVar("V")


class Flight:
    """One question to the service in progress, and all who wait for its answer."""

    __slots__ = ("_error", "_is_over", "_until", "_waiting")

    def __init__(self) -> None:
        self._until: float | None = None
        """Until when a caller waits, by the loop's clock; None while no caller said so, as for prefetched items."""
        self._waiting: list[Callable[[PushqError | None], None]] = []
        self._is_over = False
        self._error: PushqError | None = None

    def wanted(self, until: float) -> None:
        self._until = until if self._until is None else max(until, self._until)

    @property
    def is_wanted(self) -> bool:
        return self._until is None or asyncio.get_running_loop().time() < self._until

    def then(self, call: Callable[[PushqError | None], None]) -> None:
        """Runs `call` when the answer is there, with the error if there is none; in the order of the `then` calls."""
        if self._is_over:
            call(self._error)
        else:
            self._waiting.append(call)

    def land(self, error: PushqError | None) -> None:
        self._is_over, self._error = True, error
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            try:
                call(error)
            except Exception:
                # A bug of one waiting caller must not affect the others.
                log.exception("a request failed after a lookup")

    async def landed(self) -> None:
        """Returns when the answer is there. Raises the error if there is none."""
        done: asyncio.Future[PushqError | None] = asyncio.get_running_loop().create_future()
        self.then(lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error


class Catalog(Generic[K, V]):
    """The cache of one kind of item: queues, keys or tenants."""

    def __init__(
        self,
        what: str,
        fetch: Callable[[K], Awaitable[Read[V | None]]],
        guard: Guard,
        *,
        entries_max: int,
        stale_ms_max: int,
        clock_ms: Callable[[], int],
    ) -> None:
        """`fetch` must make its answer usable in this process before it returns."""
        self.what = what
        self._fetch = fetch
        self._guard = guard
        self._clock_ms = clock_ms
        self._flights: dict[K, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.joined = 0
        """Look-ups that joined a flight in progress."""
        self.failures = 0
        self.cache: Cache[K, V] = Cache(
            Bounds(
                entries_max=entries_max,
                absent_max=CATALOGUE_ABSENT_MAX,
                fresh_ms=CATALOGUE_FRESH_MS,
                stale_ms_max=stale_ms_max,
            )
        )

    def find(self, key: K) -> V | None:
        """The cached item; None if it is known to be absent. Raises `LookingUp`."""
        found = self.cache.peek(key, self._clock_ms())
        if isinstance(found, Must):
            may_go_on = self.cache.may_go_on(key, self._clock_ms())
            name = key[-1] if isinstance(key, tuple) else key
            raise LookingUp(f"{self.what} {name!r}", self._flight(key), may_go_on=may_go_on)
        return found

    def ask(self, key: K) -> Flight:
        """The flight that asks for an item, started without a time limit even if no caller waits."""
        flight = self._flight(key)
        flight.wanted(inf)
        return flight

    def _flight(self, key: K) -> Flight:
        """Joins or starts the one flight of a key."""
        flight = self._flights.get(key)
        if flight is not None:
            self.joined += 1
            return flight
        flight = Flight()
        if len(self._flights) >= CATALOGUE_FLIGHTS_MAX:
            flight.land(Unavailable(f"{CATALOGUE_FLIGHTS_MAX} lookups are already in progress", retry_after_ms=100))
            return flight
        self._flights[key] = flight
        task = unbounded_task(self._fly(key, flight), name=f"look up {self.what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return flight

    async def _fly(self, key: K, flight: Flight) -> None:
        error: PushqError | None = None
        try:
            error = await self._ask(key, flight)
        except Exception:
            log.exception("lookup failed", what=self.what)
            error = PushqError(f"internal error while looking up {self.what}; see the log")
        finally:
            # Before any other look-up: waiting callers are served first, in their order.
            del self._flights[key]
            flight.land(error)

    async def _ask(self, key: K, flight: Flight) -> PushqError | None:
        for number in range(CATALOGUE_ASKS_MAX):
            if number:  # the host that answers may not have heard of the newest change yet
                await asyncio.sleep(CATALOGUE_PAUSE_SECONDS * 2 ** (number - 1))
            self.cache.begin(key)
            try:
                read = await self._guard.call(
                    lambda: self._fetch(key),
                    deadline_s=CATALOGUE_WAIT_SECONDS,
                    idempotent=True,
                    is_wanted=lambda: flight.is_wanted,
                )
            except BaseException as error:
                is_excused = self.cache.unanswered(key, self._clock_ms())
                if not isinstance(error, PushqError):
                    raise
                self.failures += 1
                return None if is_excused else error
            if self.cache.answered(key, read.value, read.at, self._clock_ms()):
                return None
        return Unavailable(f"{self.what} {key!r} changes too quickly to be looked up", retry_after_ms=100)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Follower:
    """Watches a metadata service for changes, and passes them to the caches."""

    def __init__(
        self,
        service: MetadataService,
        caches: list[Cache[object, object]],
        changed: Callable[[Change, Moment], None],
        *,
        clock_ms: Callable[[], int],
        lost_sight: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` gets each change, before anything is looked up again. `lost_sight` is called if it is unknown what
        has changed, as at the first connection."""
        self._service = service
        self._caches = caches
        self._changed = changed
        self._clock_ms = clock_ms
        self._lost_sight = lost_sight
        self._after: Moment | None = None
        self.resets = 0

    async def run(self) -> None:
        """Runs until cancelled. After a lost connection it catches up with what it missed."""
        while True:
            try:
                await self._follow()
            except PushqError as error:
                log.debug("the watch ended", error=error.detail)
            except Exception:
                log.exception("updates from the metadata service could not be applied")
                self._after = None  # so that what was missed is looked up again
            await asyncio.sleep(CATALOGUE_REWATCH_SECONDS)

    async def _follow(self) -> None:
        async with aclosing(self._service.watch(self._after)) as watch:
            async for news in watch:
                if self._after is None or news.is_reset:
                    self.resets += 1
                    for cache in self._caches:
                        cache.doubt(news.now)
                    self._lost_sight()
                self._after = news.now
                for change in news.changes:
                    self._changed(change, news.now)
                now_ms = self._clock_ms()
                for cache in self._caches:
                    cache.heard(now_ms)
