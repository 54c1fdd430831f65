"""A program that publishes and consumes continuously, and reports each event as a line of JSON.

    PUSHQ_KEY=… python -m tests.support.steady_client URL QUEUE TRANSPORT

It runs until its stdin ends; then it waits for outstanding messages, and leaves.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, cast

from push.client import Limits, PushqError, connect
from push.client.model import Connected, Disconnected, SessionEvent, TransportName
from tests.support.patience import PATIENCE_S

PAUSE_S = 0.02
CREDIT = 20
LAST_S_MAX = PATIENCE_S
LIMITS = Limits(backoff_cap_s=2.0)
"""The delay before reconnecting grows if a session is cut soon after the last time; here only a little."""


class Steady:
    """One session that publishes 0, 1, 2, … and acknowledges what arrives."""

    def __init__(self, url: str, queue: str, transport: TransportName) -> None:
        self._url = url
        self._queue = queue
        self._transport = transport
        self._is_over = asyncio.Event()
        self._has_published_all = False
        """A publish in flight when stdin ends may be confirmed after all others have arrived."""
        self._missing: set[int] = set()
        """Confirmed but not delivered."""
        self._delivered: set[int] = set()
        self._is_even = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._wait_for_the_end, loop)
        async with (
            connect(self._url, transport=self._transport, on_event=_tell, limits=LIMITS) as pushq,
            pushq.subscribe(self._queue, credit=CREDIT) as messages,
        ):
            reading = asyncio.create_task(self._read(messages))
            n = 0
            while not self._is_over.is_set():
                await self._publish(pushq, n)
                n += 1
                await asyncio.sleep(PAUSE_S)
            self._has_published_all = True
            self._look()
            await asyncio.wait_for(self._is_even.wait(), LAST_S_MAX)
            reading.cancel()
        say("done", published=n)

    async def _publish(self, pushq: Any, n: int) -> None:
        try:
            await pushq.publish(self._queue, n, id=f"m-{n}")
        except PushqError as error:
            say("refused", n=n, error=str(error))
            return
        say("published", n=n)
        if n not in self._delivered:
            self._missing.add(n)

    async def _read(self, messages: Any) -> None:
        async for message in messages:
            n = message.body
            say("delivered", n=n, attempt=message.attempt, seq=message.seq)
            self._delivered.add(n)
            self._missing.discard(n)
            try:
                await message.ack()
                say("acked", n=n)
            except PushqError as error:
                say("unsettled", n=n, error=str(error))
            self._look()

    def _look(self) -> None:
        if self._has_published_all and not self._missing:
            self._is_even.set()

    def _wait_for_the_end(self, loop: asyncio.AbstractEventLoop) -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(self._is_over.set)


def _tell(event: SessionEvent) -> None:
    match event:
        case Connected():
            say("connected", resumed=event.resumed)
        case Disconnected():
            say("disconnected", reason=event.reason, retry_in_s=round(event.retry_in_s, 3))
        case _:
            say(type(event).__name__.lower())


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "at_s": round(time.monotonic(), 3), **facts}), flush=True)


if __name__ == "__main__":
    url, queue, transport = sys.argv[1:]
    asyncio.run(Steady(url, queue, cast(TransportName, transport)).run())
