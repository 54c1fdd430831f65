"""The load of `pushq bench`: one producer, some consumers, four measurements of the same queue."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.commands.exits import Failure
from gateway.commands.output import Advance, progress
from gateway.commands.scratch import scratch_queue
from gateway.commands.target import OPEN_TIMEOUT_S, Target
from web_console.wording import counted

if TYPE_CHECKING:
    from push.client import Message, Pushq, Subscription

MESSAGES_PER_CALL = 1_000
CREDIT = 1_000
LOOK_S = 0.1
SILENCE_S_MAX = 30.0
"""A longer silence ends the measurement: something is broken, and waiting shows nothing new."""


class Result(NamedTuple):
    """One measurement; latencies in milliseconds from publish to arrival, if they were measured."""

    name: str
    messages: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0


class Bench:
    """The measurements, which run one after the other on one queue."""

    def __init__(self, target: Target, *, body: str, window: int) -> None:
        self._target = target
        self._body = body
        self._window = window

    async def run(self, messages: int, consumers: int, rate: int, seconds: int) -> list[Result]:
        """Measures publishing, consuming, both at once, and latency at a steady rate."""
        async with scratch_queue(self._target, "bench") as queue, self._session() as producer:
            published = await self._publish(producer, queue, messages)
            consumed = await self._consume("consume", queue, messages, consumers, None)
            through = await self._consume("end to end", queue, messages, consumers, producer)
            latency = await self._latency(producer, queue, rate, rate * seconds)
        return [published, consumed, through, latency]

    def _session(self) -> Pushq:
        from push.client import Limits

        limits = Limits(open_timeout_s=OPEN_TIMEOUT_S, publish_window_messages=self._window)
        return self._target.connect(limits=limits)

    async def _publish(self, producer: Pushq, queue: str, messages: int) -> Result:
        began = time.perf_counter()
        with progress("publish", messages) as advance:
            for start in range(0, messages, MESSAGES_PER_CALL):
                count = min(MESSAGES_PER_CALL, messages - start)
                await producer.publish_many(queue, [self._body] * count)
                advance(start + count)
        return Result("publish", messages, time.perf_counter() - began)

    async def _consume(self, name: str, queue: str, messages: int, consumers: int, producer: Pushq | None) -> Result:
        """Consumes until every message is delivered and its ack confirmed; with a producer, while it publishes them."""
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(self._session()) for _ in range(consumers)]
            count = Countdown(messages)
            began = time.perf_counter()
            work: list[Coroutine[Any, Any, Any]] = [
                _read_and_ack(session.subscribe(queue, credit=CREDIT), count) for session in sessions
            ]
            if producer is not None:
                work.append(self._publish(producer, queue, messages))
            tasks = [asyncio.ensure_future(each) for each in work]
            try:
                with progress(name, messages) as advance:
                    await count.wait(tasks, advance)
                seconds = time.perf_counter() - began
            finally:
                await _end(tasks)
        return Result(name, messages, seconds)

    async def _latency(self, producer: Pushq, queue: str, rate: int, messages: int) -> Result:
        """One consumer, `rate` messages a second, one per publish: measures how long each took."""
        took_ms: list[float] = []
        count = Countdown(messages)
        async with self._session() as session, session.subscribe(queue, credit=CREDIT) as subscription:
            began = time.perf_counter()
            reading = _read_and_ack(subscription, count, lambda message: took_ms.append(_since_ms(message)))
            tasks = [asyncio.ensure_future(each) for each in (reading, self._paced(producer, queue, rate, messages))]
            try:
                with progress("latency", messages) as advance:
                    await count.wait(tasks, advance)
                seconds = time.perf_counter() - began
            finally:
                await _end(tasks)
        took_ms.sort()
        p50, p99 = percentile(took_ms, 0.5), percentile(took_ms, 0.99)
        return Result("latency", messages, seconds, p50, p99, took_ms[-1])

    async def _paced(self, producer: Pushq, queue: str, rate: int, messages: int) -> None:
        began = time.perf_counter()
        publishes: set[asyncio.Task[Any]] = set()
        for number in range(messages):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            body = {"sent": time.perf_counter(), "pad": self._body}
            task = asyncio.ensure_future(producer.publish(queue, body))
            publishes.add(task)
            task.add_done_callback(publishes.discard)
        if publishes:
            await asyncio.gather(*publishes)


class Countdown:
    """Counts the messages still to be acked; silence and failed tasks end the waiting."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self.left = messages
        self.is_over = asyncio.Event()

    def acked(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.is_over.set()

    async def wait(self, tasks: Sequence[asyncio.Future[Any]], advance: Advance) -> None:
        """Waits until all are acked. Raises the error of a task, or `Failure` after `SILENCE_S_MAX`."""
        left, changed_at = self.left, time.monotonic()
        while not self.is_over.is_set():
            try:
                await asyncio.wait_for(self.is_over.wait(), LOOK_S)
            except TimeoutError:
                pass
            advance(self._messages - self.left)
            for task in tasks:
                if task.done():
                    task.result()
            if self.left != left:
                left, changed_at = self.left, time.monotonic()
            elif time.monotonic() - changed_at > SILENCE_S_MAX:
                raise Failure(
                    f"no message received for {SILENCE_S_MAX:g} s; {left} of "
                    f"{counted(self._messages, 'message')} outstanding"
                )


async def _read_and_ack(
    subscription: Subscription, count: Countdown, look: Callable[[Message], None] | None = None
) -> None:
    """Reads and acks until cancelled. Acks are not awaited one by one; the credit bounds how many are in flight."""
    acks: set[asyncio.Task[None]] = set()

    def done(task: asyncio.Task[None]) -> None:
        acks.discard(task)
        if not task.cancelled() and task.exception() is None:
            count.acked()

    while True:
        message = await subscription.get()
        if look is not None:
            look(message)
        task = asyncio.ensure_future(message.ack())
        acks.add(task)
        task.add_done_callback(done)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _since_ms(message: Message) -> float:
    sent: float = message.body["sent"]
    return (time.perf_counter() - sent) * 1000


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of the values do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * fraction) - 1)]
