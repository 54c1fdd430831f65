"""The demo's stream: a producer and a consumer that use the Python SDK as any program would."""

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
"""Somebody is watching the page: prefer more attempts to a long pause."""


class Stream:
    """Publishes 0, 1, 2, … and acks deliveries while `run` runs, whichever process dies meanwhile."""

    def __init__(self, url: str, key: str, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._key = key
        self._tally = tally
        self._clock = clock
        self._run = secrets.token_hex(4)
        """Identifies this run: messages of an earlier demo in the same queue are acked and not counted."""
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
        """Runs `work`, and restarts it after errors that the SDK does not recover from by itself, such as a failed
        first connection."""
        while True:
            try:
                await work()
            except* PushqError:
                await asyncio.sleep(AGAIN_SECONDS)

    def _connect(self) -> Pushq:
        # The page shows outages; a line for each attempt would bury other output of the terminal.
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
        """Retries until the message is confirmed; the id makes all attempts one message."""
        try:
            while True:
                try:
                    await pushq.publish(QUEUE, {"run": self._run, "n": n}, id=f"{self._run}-{n}")
                    self._tally.confirm(n, self._clock())
                    return
                except SessionClosed:
                    raise  # this session sends nothing more; the next one continues with another number
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
            return  # the lease has ended, and the message will be redelivered
        if is_ours:
            self._tally.ack(n)
