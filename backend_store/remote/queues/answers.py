"""Look-ups at a backend for which handlers wait: shares one request per key and caches answers for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import structlog

from backend_store.model import PushqError
from backend_store.remote.limits import LOOK_FRESH_MS

log = structlog.get_logger("pushq.remote")

T = TypeVar("T")


class Landing(Protocol):
    """A look-up under way: see `push.delivery.lookup_retry.Flight`."""

    def wanted(self, until: float) -> None: ...
    def then(self, call: Callable[[PushqError | None], None]) -> None: ...
    async def landed(self) -> None: ...


LookingUp = Callable[[str, Landing], PushqError]
"""Makes the error by which a handler waits for the look-up and starts over."""
Background = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Flight:
    """A look-up under way, as a task."""

    def __init__(self, task: asyncio.Task[None]):
        self.task = task
        task.add_done_callback(_seen)

    def wanted(self, until: float) -> None:
        """Does nothing: the request was sent at once and is not repeated."""

    def then(self, call: Callable[[PushqError | None], None]) -> None:
        def told(task: asyncio.Task[None]) -> None:
            call(_error_of(task))

        self.task.add_done_callback(told)

    async def landed(self) -> None:
        await asyncio.shield(self.task)


class Known:
    """Answers by a key; answers older than `LOOK_FRESH_MS` are dropped."""

    def __init__(self, looking_up: LookingUp, background: Background):
        self._looking_up = looking_up
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._flights: dict[Any, Flight] = {}
        self._answers: dict[Any, tuple[float, Any]] = {}
        self._passing: set[Any] = set()
        """Keys of look-ups under way whose answers are used once (`is_used_up`); `forget` detaches them."""

    def of(self, key: Any, what: str, ask: Callable[[], Coroutine[Any, Any, T]], *, is_used_up: bool = False) -> T:
        """Returns the cached answer of `key`. If there is none, starts `ask` unless it runs already, and raises
        `LookingUp`. `is_used_up`: the answer serves one caller only."""
        self._forget_old()
        if key in self._answers:
            found: T = self._answers[key][1]
            if is_used_up:
                del self._answers[key]
            return found
        flight = self._flights.get(key)
        if flight is None:
            task = self._background(self._asked(key, ask))
            flight = self._flights[key] = Flight(task)
            if is_used_up:
                self._passing.add(key)
        raise self._looking_up(what, flight)

    def forget(self) -> None:
        """Detaches look-ups under way of used-up answers after a change from here: later callers ask anew."""
        for key in self._passing:
            self._flights.pop(key, None)
        self._passing.clear()

    def _forget_old(self) -> None:
        since = self._loop.time() - LOOK_FRESH_MS / 1000
        while self._answers and next(iter(self._answers.values()))[0] < since:
            self._answers.pop(next(iter(self._answers)))

    async def _asked(self, key: Any, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        mine = asyncio.current_task()
        try:
            answer = await ask()
        finally:
            if (flight := self._flights.get(key)) is not None and flight.task is mine:
                del self._flights[key]
                self._passing.discard(key)
        self._answers.pop(key, None)
        self._answers[key] = self._loop.time(), answer


def _error_of(task: asyncio.Task[None]) -> PushqError | None:
    """The error of a finished look-up. An internal error becomes a `PushqError`, else callers would retry forever."""
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, PushqError):
        return error
    return PushqError("internal error during a lookup; see the log")


def _seen(task: asyncio.Task[None]) -> None:
    """Marks the task's error as retrieved: callers that wait for the flight get it. Logs internal errors."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, PushqError):
        log.error("lookup failed", exc_info=error)
