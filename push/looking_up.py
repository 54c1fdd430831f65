"""A look-up that must ask elsewhere first: whoever handles a request waits until the answer is here, and begins anew.

Handlers look things up as if everything were at hand. Where something is not, `LookingUp` passes through them, and what
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
    """What is being asked for."""

    def wanted(self, until: float) -> None:
        """Somebody waits for it until then, by the loop's clock. What nobody waits for any more is not begun."""

    def then(self, call: Callable[[PushqError | None], None]) -> None:
        """`call` runs when the answer is there, in the order of those who asked; with the error when there is none."""

    async def landed(self) -> None:
        """Returns when the answer is there. Raises why there is none."""


class LookingUp(Unavailable):
    """Begin anew when the flight has landed. Whoever cannot wait passes it on: it is a 503 that asks to come back."""

    def __init__(self, what: str, flight: Flight, *, may_go_on: bool = False) -> None:
        super().__init__(f"{what} is being looked up; try again", retry_after_ms=100)
        self.what = what
        self.flight = flight
        self.may_go_on = may_go_on
        """What was begun on the strength of what was known before may go on meanwhile."""


async def outcome(flight: Flight) -> PushqError | None:
    """Why there is no answer, once that is known; None when it is here."""
    flight.wanted(inf)
    try:
        await flight.landed()
    except PushqError as error:
        return error
    return None


async def found(look: Callable[[], T]) -> T:
    """What `look` returns, once everything it needs is known here."""
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
    """The same for a handler that awaits."""
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
    """What is found from here on must be as it was now, or later; inside of a request, as it was at its beginning.
    After so many seconds nobody waits for it.

    The token is for `answered`. A context manager would cost each publish over HTTP a twentieth of its time.
    """
    if ASKED.get() is not None:
        return None
    now = asyncio.get_running_loop().time()
    return ASKED.set(Asked(now, now + wait_s))


def answered(token: Token[Asked | None]) -> None:
    """The end of what `asks` began. What the request left at work has no deadline from here on."""
    asked = ASKED.get()
    if asked is not None:
        asked.until = inf
    ASKED.reset(token)  # the next request on the connection may begin in this one's context


def not_in_time(looking: LookingUp) -> PushqError:
    """What a caller is told whose time is over before its request could be begun."""
    return Unavailable(f"{looking.what} was not looked up within the time of this request", retry_after_ms=100)


async def _landed(looking: LookingUp) -> None:
    """Raises why there is no answer, by the deadline of whoever asks."""
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
    return Unavailable(f"a request took more than {LOOK_UPS_MAX} look-ups", retry_after_ms=1000)
