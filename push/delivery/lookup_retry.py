"""Look-ups that must ask another process first: the handler of a request stops, waits for the answer, and starts anew.

Handlers look things up as if everything were at hand. If something is not, `LookingUp` passes through them, and what
they did so far must not count: they look up before they change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Token
from math import inf
from typing import Protocol, TypeVar

from backend_store.client import ASKED, Asked, waited_until
from backend_store.model import PushqError, Unavailable
from push.limits import LOOK_UPS_MAX

T = TypeVar("T")


class Flight(Protocol):
    """A look-up under way."""

    def wanted(self, until: float) -> None:
        """The caller waits for the answer until then, by the loop's clock. A look-up that no caller waits for any more
        is not begun."""

    def then(self, call: Callable[[PushqError | None], None]) -> None:
        """Calls `call` when the answer is there, in the order of the callers; with the error if there is none."""

    async def landed(self) -> None:
        """Returns when the answer is there. Raises the error if there is none."""


class LookingUp(Unavailable):
    """Raised to start anew once the flight has landed. A handler that cannot wait passes it on: it is a 503 with a
    retry time."""

    def __init__(self, what: str, flight: Flight, *, may_go_on: bool = False) -> None:
        super().__init__(f"{what} is being looked up; retry", retry_after_ms=100)
        self.what = what
        self.flight = flight
        self.may_go_on = may_go_on
        """Work that began with what was known before may go on meanwhile."""


async def outcome(flight: Flight) -> PushqError | None:
    """The error of a look-up, once it is known; None when the answer is here."""
    flight.wanted(inf)
    try:
        await flight.landed()
    except PushqError as error:
        return error
    return None


async def found(look: Callable[[], T]) -> T:
    """Returns what `look` returns, once everything it needs is known here."""
    token = asks()
    try:
        for _ in range(LOOK_UPS_MAX):
            try:
                return look()
            except LookingUp as looking:
                await _landed(looking)
    finally:
        if token is not None:
            answered(token)
    raise _too_many()


async def handled(handle: Callable[[], Awaitable[T]]) -> T:
    """`found` for a handler that awaits."""
    token = asks()
    try:
        for _ in range(LOOK_UPS_MAX):
            try:
                return await handle()
            except LookingUp as looking:
                await _landed(looking)
    finally:
        if token is not None:
            answered(token)
    raise _too_many()


def asks(wait_s: float = inf) -> Token[Asked | None] | None:
    """Begins a request: all that it looks up must be as it was now, or later; inside a request, as at the beginning of
    that request. The caller waits for `wait_s` seconds.

    Returns the token for `answered`. A context manager would cost each publish over HTTP a twentieth of its time.
    """
    if ASKED.get() is not None:
        return None
    now = asyncio.get_running_loop().time()
    return ASKED.set(Asked(now, now + wait_s))


def answered(token: Token[Asked | None]) -> None:
    """Ends what `asks` began. Work that the request left running has no deadline from now on."""
    asked = ASKED.get()
    if asked is not None:
        asked.until = inf
    ASKED.reset(token)  # the next request on the connection may begin in this one's context


def not_in_time(looking: LookingUp) -> PushqError:
    """The error for a caller whose deadline passed before its request could begin."""
    return Unavailable(f"{looking.what} could not be looked up in time", retry_after_ms=100)


async def _landed(looking: LookingUp) -> None:
    """Waits for the answer until the caller's deadline. Raises the error if there is none."""
    until = waited_until()
    looking.flight.wanted(until)
    if until == inf:
        await looking.flight.landed()
        return
    try:
        async with asyncio.timeout_at(until):
            await looking.flight.landed()
    except TimeoutError:
        raise not_in_time(looking) from None


def _too_many() -> PushqError:
    return Unavailable(f"a request took more than {LOOK_UPS_MAX} lookups", retry_after_ms=1000)
