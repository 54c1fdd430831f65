"""Drains a request's body that is still arriving when its answer is written: reads and discards it, up to a bound.

Most clients write their whole request before they read. A connection that is closed with unread bytes is reset, and
the client never sees why it was refused (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.config.settings import Limits
from gateway.limits import LEFTOVER_BYTES_DEFAULT, LEFTOVER_SECONDS_DEFAULT, LEFTOVERS_PER_TURN_MAX
from gateway.listener.upgrade_offers import Declining


class Bounds(NamedTuple):
    """How many bytes of an answered body are read, and for how long; a body that exceeds either is cut off."""

    bytes_max: int = LEFTOVER_BYTES_DEFAULT
    seconds_max: float = LEFTOVER_SECONDS_DEFAULT

    @classmethod
    def of(cls, limits: Limits) -> Bounds:
        return cls(limits.leftover_bytes_max, limits.leftover_seconds_max)


class UnreadBody:
    """Byte budget and timer for the rest of one body, which is discarded."""

    __slots__ = ("_bytes_left", "_timer")

    def __init__(self, bounds: Bounds, loop: asyncio.AbstractEventLoop, too_long: Callable[[], None]) -> None:
        self._bytes_left = bounds.bytes_max
        self._timer = loop.call_later(bounds.seconds_max, too_long)

    def takes(self, size: int) -> bool:
        """Counts `size` more bytes, as they were on the wire; False if they exceed the bound."""
        self._bytes_left -= size
        return self._bytes_left >= 0

    def end(self) -> None:
        self._timer.cancel()


class Turnstile:
    """A round-robin queue for connections whose leftover bodies are drained: a limited number per turn of the loop.
    Many of them would otherwise make each turn long for all others, and delay accepts: there is one per turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]) -> None:
        """Calls `go_on` in one of the next turns."""
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
    """uvicorn's request-response cycle, except that a connection that ends after the answer ends only when the request
    has arrived completely."""

    leftover_bytes_max: int
    is_last: bool
    """Whether the connection ends after this request: its body was incomplete when the answer was written."""

    @classmethod
    def adopt(cls, cycle: RequestResponseCycle, bounds: Bounds) -> Cycle:
        """Turns uvicorn's object into a `Cycle`: uvicorn names its class directly, so it cannot be replaced."""
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
            # A client that waits for "100 Continue" may omit the body: its next request would be taken for it.
            if self.waiting_for_100_continue or self._announced_bytes() > self.leftover_bytes_max:
                self.keep_alive = False
        elif not self.keep_alive and not message.get("more_body"):
            # The client was told that the connection ends; it must stay open until the body has come.
            self.keep_alive, self.is_last = True, True

    def _announced_bytes(self) -> int:
        """The body's size by the request's head; 0 for a chunked body."""
        return next((int(value) for name, value in self.scope["headers"] if name == b"content-length"), 0)


class Lingering(Declining):
    """A connection that continues to read after an answer, until the request is complete or a bound is reached.

    It counts as one of the server's connections meanwhile.
    """

    bounds = Bounds()
    turnstile: Turnstile
    """Shared by all connections of a listener."""
    leftover: UnreadBody | None = None
    """The rest of the answered request's body; None if there is none."""
    _is_ending = False

    def takes(self, size: int) -> bool:
        """Call after parsing `size` bytes that did not complete the leftover. False: the connection was cut."""
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
            return  # this request arrived in one piece with the end of the one announced as the last
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    def _run(self, cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Runs the application. Nearly every request is complete by now, so nothing can be left over: uvicorn's own
        cycle handles it."""
        if cycle.more_body:
            send = Cycle.adopt(cycle, self.bounds).send  # the one that was given is bound to what the object was
        running: Awaitable[None] = app(scope, receive, send)
        return running

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()  # set by the end of a leftover in the same piece

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle = self.cycle
        if not isinstance(cycle, Cycle):
            return  # its request was complete before the application began
        if self.transport.is_closing() or not cycle.response_complete:
            return  # the latter: this is the pipelined next request, so the answered one was complete
        if cycle.more_body and not self._is_ending:
            self._linger(cycle)
        elif cycle.more_body or cycle.is_last:  # the latter: its body became complete while the answer was written
            self.transport.close()

    def _linger(self, cycle: Cycle) -> None:
        cycle.body = bytearray()  # `on_body` adds nothing from here on
        self._unset_keepalive_if_required()
        self.leftover = UnreadBody(self.bounds, self.loop, self.cut_body)
        if cycle.is_last and self.transport.can_write_eof():
            self.transport.write_eof()  # a client that reads until the end gets it; one that writes is not disturbed

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
