"""Runs handlers of messages: as many side by side as wanted; acks when a handler returns, nacks when it raises.

    await pushq.run("orders", handle, concurrency=8)

`core/ready/key_queues.py` decides which message may begin. This file starts handlers, watches them, and ends them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypedDict

from push.client.config import Limits
from push.client.core import Delivery
from push.client.core.backoff import retry_ms
from push.client.core.lines import Line, Lines
from push.client.core.settling import How
from push.client.errors import PushqError
from push.client.message import Message, settle_soon
from push.client.model import AckMode, From, HandlerFailed, InOrder
from push.client.subscription import Subscription

log = logging.getLogger("pushq.client")

Handler = Callable[[Message], Awaitable[object]]
RunnerState = Literal["new", "running", "draining", "stopped"]


class RunOptions(TypedDict, total=False):
    """The options of `run`; `Pushq.run` explains each."""

    concurrency: int | None
    prefetch: int
    group: str | None
    from_: From | None
    ack: AckMode
    visibility_timeout_ms: int | None
    handler_limit_s: float | None
    in_order: InOrder | None
    drain_s: float | None


class Runner:
    """Runs the handlers of one queue's messages. `await runner.run()` works until `stop`; `async with runner:` works
    during the block.

    `Pushq.run` does the same until a signal. A runner runs once.
    """

    def __init__(
        self,
        subscribe: Callable[..., Subscription],
        queue: str,
        handler: Handler,
        limits: Limits,
        *,
        concurrency: int | None = None,
        prefetch: int = 0,
        group: str | None = None,
        from_: From | None = None,
        ack: AckMode = "manual",
        visibility_timeout_ms: int | None = None,
        handler_limit_s: float | None = None,
        in_order: InOrder | None = None,
        drain_s: float | None = None,
    ) -> None:
        self.queue = queue
        self.done = 0
        """Handlers that returned."""
        self.failed = 0
        """Handlers that raised, or were cancelled."""
        self._handler = checked_handler(handler)
        self._limits = limits
        self._slots = limits.run_concurrency if concurrency is None else concurrency
        if self._slots < 1 or prefetch < 0:
            raise ValueError(
                f"concurrency must be at least 1 and prefetch at least 0, not {self._slots} and {prefetch}"
            )
        self._in_order = in_order
        self._drain_s = limits.run_drain_s if drain_s is None else drain_s
        self._open = partial(
            subscribe,
            queue,
            credit=(1 if in_order is True else self._slots) + prefetch,
            group=group,
            from_=from_,
            ack=ack,
            visibility_timeout_ms=visibility_timeout_ms,
            handler_limit_s=handler_limit_s,
        )
        self._state: RunnerState = "new"
        self._is_stopping = False
        self._is_leaving = False
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._confirming: set[asyncio.Future[None]] = set()
        """Settlings that the server has not confirmed yet."""
        self._chance = 0.0
        """The jitter of all handlers that fail in one turn, so that their nacks share a frame."""

    @property
    def state(self) -> RunnerState:
        """`draining`: no new handler begins, and some are still running."""
        return self._state

    @property
    def active(self) -> int:
        """Handlers that are running."""
        return len(self._handlers)

    @property
    def waiting(self) -> int:
        """Messages held here that no handler has begun with."""
        return 0 if self._subscription is None else len(self._subscription.state.inbox)

    def stop(self, *, at_once: bool = False) -> None:
        """Begin with no more messages. Handlers have `drain_s` to end; with `at_once` they are cancelled now.

        Returns immediately, and a handler may call it; `run`, or the end of the block, waits for the handlers.
        """
        self._is_stopping = True
        self._is_leaving = self._is_leaving or at_once
        if self._subscription is not None:
            self._subscription.stir()

    async def run(self) -> None:
        """Work until `stop`. Raises the error that ended the subscription for good, once the handlers have ended. If
        cancelled, it cancels the handlers, gives everything back, and ends within `close_timeout_s`."""
        await self._work(self._begin())

    async def __aenter__(self) -> Self:
        subscription = self._begin()
        name = f"pushq runner {self.queue}"
        self._task = asyncio.get_running_loop().create_task(self._work(subscription), name=name)
        try:
            await subscription.subscribed()
        except BaseException:
            self.stop(at_once=True)
            await asyncio.gather(self._task, return_exceptions=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self.stop(at_once=kind is not None)
        try:
            await self._task
        except PushqError:
            if kind is None:
                raise

    def _begin(self) -> Subscription:
        if self._state != "new":
            raise RuntimeError(f'queue "{self.queue}": a runner can run only once; create another one')
        self._subscription = self._open()
        self._state = "running"
        return self._subscription

    async def _work(self, subscription: Subscription) -> None:
        try:
            ended = await self._serve(subscription)
            await self._drain(subscription)
        finally:
            try:
                await self._settled(subscription)
            finally:
                subscription.leave()
                self._state = "stopped"
        if ended is not None:
            raise ended

    async def _serve(self, subscription: Subscription) -> PushqError | None:
        """Runs until `stop`, or until the subscription ends: then returns its error."""
        lines = Lines(subscription.state, self._in_order)
        while not self._is_stopping:
            if subscription.state.ended is not None:
                return subscription.state.ended
            self._fill(subscription, lines)
            await subscription.change()
        return None

    def _fill(self, subscription: Subscription, lines: Lines) -> None:
        """Starts handlers while there are free slots and messages that may begin."""
        self._chance = random.random()
        while len(self._handlers) < self._slots:
            begin, back = lines.choose(subscription.state.inbox)
            subscription.give_back(back, _untried(subscription))
            if begin is None:
                return
            line = lines.line_of(begin)
            lines.begin(line)
            hold = _Hold(subscription, begin, lines, line)
            work = self._handle(hold, subscription.begin(begin))
            task = asyncio.get_running_loop().create_task(work, name=f"pushq handler {self.queue}")
            self._handlers.add(task)
            task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._handlers.discard(task)
        self._stir()

    def _stir(self) -> None:
        if self._subscription is not None:
            self._subscription.stir()

    # One message

    async def _handle(self, hold: _Hold, message: Message) -> None:
        error: BaseException | None = None
        try:
            await self._handler(message)
        except GeneratorExit:
            raise  # the coroutine is closed without being run to its end
        except BaseException as raised:
            error = raised
        task = asyncio.current_task()
        # A handler that we cancelled has not done its work, even if it returns.
        is_cut = self._is_leaving and task is not None and task.cancelling() > 0
        if error is None and not is_cut:
            self.done += 1
        else:
            self.failed += 1
        if error is not None and not is_cut:
            subscription, wire = hold.subscription, hold.delivery.message
            subscription.link.tell(HandlerFailed(self.queue, wire.id, wire.attempt, error))
        hold.over(self._settle(hold, self._verdict(hold, error, is_cut=is_cut)))
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error  # these end the program, not only the handler

    def _verdict(self, hold: _Hold, error: BaseException | None, *, is_cut: bool) -> How | None:
        """How to settle the message; None if it is settled or lost already, or needs no settling."""
        delivery, state = hold.delivery, hold.subscription.state
        if delivery.receipt is None or delivery.is_settled:
            return None
        if is_cut:
            reason = "the consumer stopped before its handler finished"
            return How("nack", state, delay_ms=0, reason=reason[: self._limits.reason_chars_max])
        if error is None:
            return How("ack", state)
        if delivery.is_lost:
            return None  # it comes again by itself
        delay_ms = None
        if not state.retry_backoff_ms and self._limits.retry_base_s > 0:
            # A handler that always raises would otherwise use up all attempts within a moment.
            delay_ms = retry_ms(delivery.message.attempt, self._chance, self._limits)
        return How("nack", state, delay_ms=delay_ms, reason=reason_of(error, self._limits.reason_chars_max))

    def _settle(self, hold: _Hold, how: How | None) -> asyncio.Future[None] | None:
        """Sends the verdict to the server; the handler's slot is free meanwhile."""
        if how is None:
            return None
        try:
            confirmed = settle_soon(hold.subscription.link, hold.delivery, how)
        except PushqError as error:  # the session is over
            _not_settled(hold.delivery, error)
            return None
        self._confirming.add(confirmed)
        confirmed.add_done_callback(partial(self._confirmed, hold.delivery))
        return confirmed

    def _confirmed(self, delivery: Delivery, confirmed: asyncio.Future[None]) -> None:
        self._confirming.discard(confirmed)
        if not confirmed.cancelled() and (error := confirmed.exception()) is not None:
            delivery.subscription.let_go(delivery)
            _not_settled(delivery, error)
        self._stir()

    # The end

    async def _drain(self, subscription: Subscription) -> None:
        """Gives back the waiting messages; running handlers have their time."""
        self._state = "draining"
        subscription.give_back(list(subscription.state.inbox), _untried(subscription))
        giving = asyncio.get_running_loop().create_task(self._give_back(subscription), name=f"pushq drain {self.queue}")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._drain_s):
                    while self._handlers and not self._is_leaving:
                        await subscription.change()
        finally:
            giving.cancel()

    async def _give_back(self, subscription: Subscription) -> None:
        """Gives back what the server sends during the drain: it has credit for what went back. At once, messages would
        go to and fro for as long as a handler runs; kept here, they would wait for that handler."""
        while True:
            await asyncio.sleep(self._limits.run_give_back_s)
            subscription.give_back(list(subscription.state.inbox), _untried(subscription))

    async def _settled(self, subscription: Subscription) -> None:
        """Cancels the handlers that still run. All verdicts are sent before the subscription ends, which gives the rest
        back."""
        self._is_leaving = True
        for task in self._handlers:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.close_timeout_s):
                while self._handlers or self._confirming:
                    await subscription.change()
        if self._handlers:
            log.error("handlers did not stop when cancelled queue=%s handlers=%d", self.queue, len(self._handlers))


class _Hold:
    """One message in a handler, and its place in a line."""

    __slots__ = ("delivery", "line", "lines", "subscription")

    def __init__(self, subscription: Subscription, delivery: Delivery, lines: Lines, line: Line) -> None:
        self.subscription = subscription
        self.delivery = delivery
        self.lines = lines
        self.line = line

    def over(self, confirmed: asyncio.Future[None] | None) -> None:
        """The handler has ended: its line goes on, or the messages behind this one go back with it."""
        if self.line is None:
            return
        subscription, delivery = self.subscription, self.delivery
        if delivery.given_back is None and not delivery.is_lost:
            state = subscription.state
            state.wait_on(self.lines.behind(self.line, state.inbox), subscription.link.now())
            self.lines.end(self.line)
        elif confirmed is None:
            self._give_back_behind()
            self.lines.end(self.line)
        else:
            # Some may be in transit: what comes before the server has answered was sent before it knew.
            self._give_back_behind()
            confirmed.add_done_callback(self._given_back)

    def _given_back(self, confirmed: asyncio.Future[None]) -> None:
        self._give_back_behind()
        self.lines.end(self.line)
        self.subscription.stir()

    def _give_back_behind(self) -> None:
        behind = self.lines.behind(self.line, self.subscription.state.inbox)
        self.subscription.give_back(behind, self.lines.back_behind(self.delivery))


def checked_handler(handler: Handler) -> Handler:
    """Raises `TypeError` for a handler that is not an `async def`: it would block all others."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return handler
    name = getattr(handler, "__qualname__", repr(handler))
    raise TypeError(
        f"the handler {name} is not an `async def`. Run blocking work in a thread: async def handle(message): await "
        "asyncio.to_thread(work, message.body)"
    )


def reason_of(error: BaseException, chars_max: int) -> str:
    """The class and the text of an exception, as a nack's reason."""
    try:
        text = str(error)
    except Exception:
        text = "its message is not available"
    kind = type(error).__qualname__
    reason = f"{kind}: {text}" if text else kind
    return reason.encode(errors="replace").decode()[:chars_max]


def _untried(subscription: Subscription) -> How:
    return How("nack", subscription.state, tried=False)


def _not_settled(delivery: Delivery, error: BaseException) -> None:
    log.warning("not settled queue=%s id=%s error=%s", delivery.subscription.queue, delivery.message.id, error)
