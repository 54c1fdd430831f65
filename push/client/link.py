"""The shell around the core: keeps a connection open, reconnects, and carries out what the core decides.

Two tasks share the work: one connects and reads, the other sends and watches the time. All requests of one turn of the
event loop are sent together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from push.client.config import Limits
from push.client.core import Delivery, SessionCore, SubscriptionState
from push.client.core.credential import refresh_in_s
from push.client.core.effects import Effects, Phase
from push.client.core.publisher import Entry
from push.client.discover import Key, resolve_key
from push.client.errors import NOT_PUSHQ, PushqError, SessionClosed, Unavailable
from push.client.model import (
    Connected,
    Disconnected,
    Gap,
    HandlerFailed,
    Lost,
    Postponed,
    Published,
    Reset,
    SessionEvent,
    Stopped,
    Unreadable,
)
from push.client.transports.base import Cut, Dial, Transport

log = logging.getLogger("pushq.client")

TIMER_S_MIN = 0.01


class Ticket(Protocol):
    """The waiter of a publish."""

    def resolve(self, result: Published | PushqError) -> None:
        """Take the result."""


class Link:
    """The connections of one session. `kick` tells it that the core has something to send."""

    def __init__(
        self,
        core: SessionCore,
        dial: Dial,
        key: Key,
        limits: Limits,
        on_event: Callable[[SessionEvent], None] | None,
    ) -> None:
        self.core = core
        self.readers: dict[SubscriptionState, Callable[[], None]] = {}
        self._dial = dial
        self._key = key
        self._limits = limits
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._transport: Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._room_waiters: dict[asyncio.Future[None], None] = {}
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._last_cut = Cut("no attempt was made")
        self._open_timeout: asyncio.Timeout | None = None
        """The timeout of `open`, while that waits."""
        self._absent_at: float | None = None
        """When `open` would have timed out without a server that takes the connection; None until one does."""
        self._began = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    def now(self) -> float:
        """The clock of everything in this session, in seconds."""
        return self._loop.time()

    def kick(self) -> None:
        """Wakes the sender: it sends at the end of this turn of the loop."""
        self._wake.set()

    def check_loop(self) -> None:
        """Raises `RuntimeError` in any other event loop, where no waiter would ever get an answer."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the session belongs to another event loop: use it there, or call connect() in this one")

    async def open(self) -> None:
        """Connect, trying again for `open_timeout_s`; then raise the last error.

        A server that asks to come back later gets `open_patience_s`; if that ends before the time it asks for, its
        error is raised at once. A server that takes the connection and does not answer yet gets the same time: it is
        starting, or busy.
        """
        self._began = self.now()
        for name, work in (("pushq connection", self._run()), ("pushq sender", self._pump())):
            task = self._loop.create_task(work, name=name)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        try:
            async with asyncio.timeout(self._limits.open_timeout_s) as self._open_timeout:
                await asyncio.shield(self._opened)
        except TimeoutError:
            cut = self._last_cut
            if cut.problem is not None:
                raise Unavailable(f"the server accepts no new sessions now: {cut.reason}", cut.problem) from None
            if self._absent_at is not None:
                cut = Cut("the server accepts the connection but does not respond")
            raise Unavailable(f"no session within {round(self.now() - self._began, 1):g} s: {cut.reason}") from None
        finally:
            self._open_timeout = None

    def met(self) -> None:
        """A peer has taken the connection that is being made: `open` waits on for its answer."""
        timeout = self._open_timeout
        if timeout is not None and not timeout.expired() and self._absent_at is None:
            self._absent_at = timeout.when()
            timeout.reschedule(max(self._absent_at or 0.0, self._patient_until))

    def _missed(self) -> None:
        """The connection that was taken has failed: a tunnel or a proxy without a server behind it does not count as
        one."""
        timeout, at = self._open_timeout, self._absent_at
        self._absent_at = None
        if timeout is not None and not timeout.expired() and at is not None:
            timeout.reschedule(at)

    @property
    def _patient_until(self) -> float:
        return self._began + max(self._limits.open_timeout_s, self._limits.open_patience_s)

    async def close(self, *, flush: bool) -> None:
        """Wait for unconfirmed requests (with `flush`), close the connection, and end every waiter; at once if
        cancelled."""
        self.check_loop()
        try:
            if flush and self.core.phase is not Phase.STOPPED and not self.core.is_idle:
                waiter = self._loop.create_future()
                self._idle_waiters.append(waiter)
                await asyncio.wait([waiter], timeout=self._limits.close_timeout_s)
            self._is_closing = True
            await self._say_goodbye()
        finally:
            self._is_closing = True
            for task in self._tasks:
                task.cancel()
            try:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:
                if self._timer is not None:
                    self._timer.cancel()
                if self.core.phase is not Phase.STOPPED:
                    self.apply(self.core.stop(SessionClosed("the session was closed")))
                self._opened.cancel()

    async def _say_goodbye(self) -> None:
        transport = self._transport
        if transport is not None and self.core.phase is Phase.OPEN:
            # The reader must live during the closing handshake.
            try:
                async with asyncio.timeout(self._limits.close_timeout_s + self._limits.poll_leave_s):
                    with suppress(Cut):
                        await transport.send(self.core.parting())
                    await transport.close()
            except TimeoutError:
                transport.abort()  # the server hangs, and reads neither the frames nor the close

    async def room(self) -> None:
        """Wait until the publish window has room: the backpressure of a server slower than its producers."""
        while self.core.publisher.window_left <= 0:
            waiter = self._loop.create_future()
            self._room_waiters[waiter] = None
            try:
                await waiter
            except asyncio.CancelledError:
                self._room_waiters.pop(waiter, None)
                self._release_room()  # this waiter may have been woken
                raise

    def give_up(self, queue: str, entries: Iterable[Entry]) -> None:
        """Gives up publishes whose caller does not wait any more: those that were not sent make room."""
        for entry in entries:
            self.core.publisher.give_up(queue, entry)
        self._release_room()
        if self._idle_waiters and self.core.is_idle:
            self._release_idle()

    def apply(self, effects: Effects) -> None:
        """Carry out one step of the core."""
        for ticket, result in effects.published:
            ticket.resolve(result)  # type: ignore[attr-defined]  # every ticket is a Ticket: see Pushq.publish
        if effects.published:
            self._release_room()
        for settled in effects.settled:
            _finish(settled.item.ticket, settled.error)
        for state in effects.changed:
            if (reader := self.readers.get(state)) is not None:
                reader()
        for delivery in effects.lost:
            _tell_lost(delivery)
        for event in effects.events:
            self.tell(event)
        if self._idle_waiters and self.core.is_idle:
            self._release_idle()
        if self.core.phase is Phase.STOPPED:
            self._stopped()

    async def _run(self) -> None:
        """Connect and read, again and again, until the core stops."""
        while self.core.phase is not Phase.STOPPED:
            wait_s = 0.0
            try:
                await self._connection()
            except Cut as cut:
                if self._is_closing:
                    return
                wait_s = self._was_cut(cut)
            except PushqError as error:
                if error.code == NOT_PUSHQ and self.core.session is not None:
                    # The URL was right before: a proxy answers for a server that is away.
                    wait_s = self._was_cut(Cut(str(error)))
                else:
                    self.apply(self.core.stop(error))
            if math.isfinite(wait_s):
                await asyncio.sleep(wait_s)

    def _was_cut(self, cut: Cut) -> float:
        """Tells the core of a lost connection. Returns how long to wait before the next attempt, in seconds."""
        wait_s, effects = self.core.disconnected(
            cut.code, cut.reason, self.now(), retry_s=cut.retry_s, problem=cut.problem
        )
        self._last_cut = cut
        self._missed()
        if cut.problem is not None and not self._may_wait(max(wait_s, cut.retry_s)):
            effects.events.clear()  # there is no next attempt to report: `open` raises the server's error
        self.apply(effects)
        return wait_s

    def _may_wait(self, wait_s: float) -> bool:
        """Lets `open` wait for a server that asks for time; ends `open` now if that time is too long."""
        timeout = self._open_timeout
        if timeout is None or timeout.expired():
            return True
        is_in_time = self.now() + wait_s < self._patient_until
        timeout.reschedule(self._patient_until if is_in_time else self.now())
        return is_in_time

    async def _connection(self) -> None:
        """Makes one connection and reads it until its end, which is raised as `Cut`."""
        token = await self._credential()
        transport = await self._dial(token)
        refreshing: asyncio.Task[None] | None = None
        try:
            await transport.send([self.core.connect(token, self.now())])
            self._transport = transport
            self.kick()
            if callable(self._key):
                refreshing = self._loop.create_task(self._keep_fresh(token), name="pushq token")
            while True:
                frames = await transport.receive()
                self.apply(self.core.receive(frames, self.now()))
                self.kick()
        finally:
            self._transport = None
            if refreshing is not None:
                refreshing.cancel()
            transport.abort()
            await transport.wait_closed()

    async def _keep_fresh(self, token: str | None) -> None:
        """Sends the server a newer token whenever its token is about to expire."""
        while (wait_s := refresh_in_s(token, time.time(), self._limits)) is not None:
            await asyncio.sleep(max(wait_s, self._limits.token_retry_s))
            try:
                newer = await resolve_key(self._key)
            except Exception as error:
                log.warning("no new token: %r", error)
                continue
            if newer is not None and newer != token:
                token = newer
                self.core.refresh(newer)
                self.kick()

    async def _credential(self) -> str | None:
        limit_s = self._limits.open_timeout_s
        try:
            async with asyncio.timeout(limit_s) as timeout:
                return await resolve_key(self._key)
        except PushqError:
            raise
        except Exception as error:
            if timeout.expired():
                raise Cut(f"the key function returned no key within {limit_s:g} s") from error
            raise Cut(f"the key function failed: {error!r}") from error

    async def _pump(self) -> None:
        """Sends the core's frames, whenever it is kicked or a deadline has come."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            now = self.now()
            self.apply(self.core.tick(now))
            if self._transport is not None and (frames := self.core.take(now)):
                try:
                    await self._transport.send(frames)
                except Cut:
                    pass  # the reader gets the same error, and acts on it
            self._arm()

    def _arm(self) -> None:
        """Sets the timer to the core's next wake-up, or leaves an earlier one."""
        now = self.now()
        when = max(self.core.next_wakeup(now), now + TIMER_S_MIN)
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if math.isinf(when) else self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        """The sender may be stuck in a full socket, so a dead connection is cut here."""
        self._timer = None
        if self._transport is not None and self.core.is_dead(self.now()):
            self._transport.abort()
        self.kick()
        self._arm()

    def tell(self, event: SessionEvent) -> None:
        """Log an event and pass it to the user's `on_event`."""
        match event:
            case Connected():
                log.info("connected session=%s resumed=%s", event.session, event.resumed)
                if not self._opened.done():
                    self._opened.set_result(None)
            case Disconnected():
                log.warning("disconnected reason=%r retry_in_s=%.2f", event.reason, event.retry_in_s)
            case Postponed():
                code, wait_s = event.problem.code, event.retry_in_s
                log.warning("postponed queue=%s code=%s retry_in_s=%.2f", event.queue, code, wait_s)
            case Stopped():
                log.error("stopped error=%s", event.error)
            case HandlerFailed():
                text = "handler failed queue=%s id=%s attempt=%d"
                log.warning(text, event.queue, event.id, event.attempt, exc_info=event.error)
            case Gap() | Reset() | Lost() | Unreadable():
                log.warning("%s", event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed for %s", type(event).__name__)

    def _stopped(self) -> None:
        if not self._opened.done():
            assert self.core.error is not None
            self._opened.set_exception(self.core.error)
            self._opened.exception()  # marks the error as retrieved: `open` raises it, if it still waits
        self._release_idle()
        for waiter in self._room_waiters:
            _finish(waiter, self.core.error)
        self._room_waiters.clear()

    def _release_room(self) -> None:
        room = self.core.publisher.window_left
        while room > 0 and self._room_waiters:
            waiter = next(iter(self._room_waiters))
            del self._room_waiters[waiter]
            room -= 1
            _finish(waiter, None)

    def _release_idle(self) -> None:
        for waiter in self._idle_waiters:
            _finish(waiter, None)
        self._idle_waiters.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stops the core when a task failed by a bug or was cancelled from outside: otherwise its waiters would wait
        for ever."""
        if task.cancelled():
            if not self._is_closing:
                self._cancelled()
            return
        if (error := task.exception()) is None:
            return
        log.error("%s failed", task.get_name(), exc_info=error)
        failure = PushqError(f"{task.get_name()} failed: {error!r}")
        failure.__cause__ = error
        self.apply(self.core.stop(failure))

    def _cancelled(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self.core.phase is not Phase.STOPPED:
            self.apply(self.core.stop(SessionClosed("the session has ended: its tasks were cancelled")))


def _finish(waiter: object, error: BaseException | None) -> None:
    assert isinstance(waiter, asyncio.Future), waiter
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


def _tell_lost(delivery: Delivery) -> None:
    if isinstance(delivery.wait_lost, asyncio.Event):
        delivery.wait_lost.set()
