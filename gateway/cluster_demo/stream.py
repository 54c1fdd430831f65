"""The stream of the demo: a producer and a consumer with the Python SDK, as any program would have them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.cluster_demo.limits import (
    AGAIN_SECONDS,
    CREDIT,
    LEASE_MS,
    PUBLISH_EVERY_SECONDS,
    UNCONFIRMED_MAX,
)
from gateway.cluster_demo.tally import Tally
from push.client import Admin, Limits, Message, Pushq, PushqError, SessionClosed, connect

QUEUE: Final = "demo.cluster"
_CONFIG: Final = {"dedupe": "id", "visibility_timeout_ms": LEASE_MS}
_LIMITS: Final = Limits(backoff_cap_s=1.0, publish_timeout_s=10.0, settle_timeout_s=10.0)
"""A reader waits before the page: better a few attempts more than a long pause."""


class Stream:
    """Publishes 0, 1, 2, … and acknowledges what comes, for as long as `run` runs, whatever dies meanwhile."""

    def __init__(self, url: str, key: str, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._key = key
        self._tally = tally
        self._clock = clock
        self._run = secrets.token_hex(4)
        """What an earlier demo on the same folder left in the queue is taken and not counted."""
        self._places = asyncio.Semaphore(UNCONFIRMED_MAX)
        self._is_there = asyncio.Event()

    async def run(self) -> None:
        await self._make_queue()
        await asyncio.gather(self._keep(self._produce), self._keep(self._consume))

    async def _make_queue(self) -> None:
        while True:
            try:
                async with Admin(self._url, self._key) as admin:
                    await admin.create_queue(QUEUE, _CONFIG)
                return
            except PushqError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The SDK comes back by itself after a cut; what it gives up, such as a first connection, is begun again."""
        while True:
            try:
                await work()
            except* PushqError:
                await asyncio.sleep(AGAIN_SECONDS)

    def _connect(self) -> Pushq:
        # The page shows what is away; a line for each attempt would bury what else the terminal says.
        return connect(self._url, self._key, limits=_LIMITS, on_event=lambda event: None)

    async def _produce(self) -> None:
        await self._is_there.wait()
        async with self._connect() as pushq, asyncio.TaskGroup() as under_way:
            for n in itertools.count(self._tally.next_number):
                await self._places.acquire()
                self._tally.next_number = n + 1
                under_way.create_task(self._publish(pushq, n), name=f"publish {n}")
                await asyncio.sleep(PUBLISH_EVERY_SECONDS)

    async def _publish(self, pushq: Pushq, n: int) -> None:
        """Until it is confirmed: the id makes one message of all attempts."""
        try:
            while True:
                try:
                    await pushq.publish(QUEUE, {"run": self._run, "n": n}, id=f"{self._run}-{n}")
                    self._tally.confirm(n, self._clock())
                    return
                except SessionClosed:
                    raise  # this session sends nothing more, and the next one begins with a number of its own
                except PushqError:
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._places.release()

    async def _consume(self) -> None:
        async with self._connect() as pushq:
            self._is_there.set()
            async with asyncio.TaskGroup() as settling, pushq.subscribe(QUEUE, credit=CREDIT) as messages:
                async for message in messages:
                    settling.create_task(self._take(message), name="ack")

    async def _take(self, message: Message) -> None:
        run, n = message.body["run"], message.body["n"]
        if is_ours := run == self._run:
            self._tally.receive(n, self._clock())
        try:
            await message.ack()
        except PushqError:
            return  # its lease is over, and it comes again
        if is_ours:
            self._tally.ack(n)
