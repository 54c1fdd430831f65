"""What is still to come of a request's body when its answer is written: it is read on and thrown away, up to a bound.

Most clients write their whole request before they read. A connection that is closed with bytes unread is reset, and
the client never sees why it was refused (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.limits import LEFTOVER_BYTES_DEFAULT, LEFTOVER_SECONDS_DEFAULT, LEFTOVERS_PER_TURN_MAX
from gateway.settings import Limits
from gateway.upgrades import Declining


class Bounds(NamedTuple):
    """How much of an answered body is read, and for how long; what goes on beyond either is cut."""

    bytes_max: int = LEFTOVER_BYTES_DEFAULT
    seconds_max: float = LEFTOVER_SECONDS_DEFAULT

    @classmethod
    def of(cls, limits: Limits) -> Bounds:
        return cls(limits.leftover_bytes_max, limits.leftover_seconds_max)


class Leftover:
    """The rest of one body. Nothing of it is kept."""

    __slots__ = ("_bytes_left", "_timer")

    def __init__(self, bounds: Bounds, loop: asyncio.AbstractEventLoop, too_long: Callable[[], None]) -> None:
        self._bytes_left = bounds.bytes_max
        self._timer = loop.call_later(bounds.seconds_max, too_long)

    def takes(self, size: int) -> bool:
        """Whether so many bytes more, as they were on the line, are within the bound."""
        self._bytes_left -= size
        return self._bytes_left >= 0

    def end(self) -> None:
        self._timer.cancel()


class Turnstile:
    """Who sends a body that nobody wants is read on in turns: if they are many, each turn of the loop would be long for
    all others, and for whoever connects, of whom the loop takes in one a turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]) -> None:
        """`go_on` is called in one of the next turns."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        now = [self._waiting.popleft() for _ in range(min(len(self._waiting), LEFTOVERS_PER_TURN_MAX))]
        if self._waiting:
            loop.call_soon(self._turn, loop)
        for go_on in now:
            go_on()


class Cycle(RequestResponseCycle):
    """A request and its answer, as uvicorn has them; but a connection that ends behind the answer ends when the request
    has come."""

    leftover_bytes_max: int
    is_last: bool
    """Whether the connection ends behind this request: its body was not whole when the answer was."""

    @classmethod
    def adopt(cls, cycle: RequestResponseCycle, bounds: Bounds) -> Cycle:
        """Turns uvicorn's object into this. The server makes it by a name of its own, so there is no other way in."""
        cycle.__class__ = cls
        assert isinstance(cycle, cls)
        cycle.leftover_bytes_max, cycle.is_last = bounds.bytes_max, False
        return cycle

    def send(self, message: Any) -> Coroutine[Any, Any, None]:
        if self.more_body:
            self._answer_early(message)
        return super().send(message)

    def _answer_early(self, message: Mapping[str, Any]) -> None:
        if not self.response_started:
            # Who waits for "100 Continue" may leave the body out: what comes next would be taken for it.
            if self.waiting_for_100_continue or self._announced_bytes() > self.leftover_bytes_max:
                self.keep_alive = False
        elif not self.keep_alive and not message.get("more_body"):
            # The client was told that the connection ends; now it does not end with the answer.
            self.keep_alive, self.is_last = True, True

    def _announced_bytes(self) -> int:
        """By the head; 0 for a body in chunks."""
        return next((int(value) for name, value in self.scope["headers"] if name == b"content-length"), 0)


class Lingering(Declining):
    """A connection that reads on behind an answer, until the request has come or a bound is reached.

    It is one of the server's connections all the while.
    """

    bounds = Bounds()
    turnstile: Turnstile
    """Of the listener."""
    leftover: Leftover | None = None
    """The rest of the request that is answered."""
    _is_ending = False

    def takes(self, size: int) -> bool:
        """To be asked when so many bytes were parsed, and the rest is not over with them; where it says no, the
        connection is cut."""
        if self.leftover is None or self.leftover.takes(size):
            return True
        self.cut_body()
        return False

    def cut_body(self) -> None:
        self._end_leftover()
        self.transport.abort()

    def shutdown(self) -> None:
        self._is_ending = True
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_leftover()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.transport.is_closing():
            return  # it came in one piece with the end of what was told to be the last request
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    def _run(self, cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """What nearly every request has is whole by now: nothing can be left over of it, and it goes uvicorn's way."""
        if cycle.more_body:
            send = Cycle.adopt(cycle, self.bounds).send  # the one that was given is bound to what the object was
        running: Awaitable[None] = app(scope, receive, send)
        return running

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()  # the end of a leftover in the same piece has set it

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle = self.cycle
        if not isinstance(cycle, Cycle):
            return  # its request was whole before the application began
        if self.transport.is_closing() or not cycle.response_complete:
            return  # the latter: it is the next request, sent ahead of this answer, so this one had come
        if cycle.more_body and not self._is_ending:
            self._linger(cycle)
        elif cycle.more_body or cycle.is_last:  # the latter: its body became whole while the answer was written
            self.transport.close()

    def _linger(self, cycle: Cycle) -> None:
        cycle.body = bytearray()  # `on_body` adds nothing from here on
        self._unset_keepalive_if_required()
        self.leftover = Leftover(self.bounds, self.loop, self.cut_body)
        if cycle.is_last and self.transport.can_write_eof():
            self.transport.write_eof()  # who reads until the end has it, and who still writes is not disturbed

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.leftover is None:
            return
        self._end_leftover()
        cycle: Any = self.cycle
        if cycle.is_last:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _end_leftover(self) -> None:
        if self.leftover is not None:
            self.leftover.end()
            self.leftover = None
