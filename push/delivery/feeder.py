"""Dispatches a work queue's ready messages to its consumers: in turn, by credit, at most a fair share at once.

A consumer is a WebSocket subscription, an SSE stream or a waiting long-poll; the feeder does not care which.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import structlog

from backend_store.client import TAKE_MESSAGES_MAX, Holder, Lease, Queue
from push.intake import Intake
from push.limits import DISPATCH_MESSAGES_MAX

log = structlog.get_logger("pushq.hub")


class Consumer(Holder, Protocol):
    visibility_ms: int
    in_ring: bool

    def wants(self) -> int:
        """How many messages it can take now; 0 while its credit is used up or its socket is full."""

    def deliver(self, lease: Lease) -> None:
        """Takes a lease; its bytes leave in this turn of the loop."""


class Feeder:
    """The ring of one queue's consumers. `feeder_of` makes it; the queue keeps it."""

    def __init__(self, queue: Queue, loop: asyncio.AbstractEventLoop, intake: Intake | None = None):
        self.queue = queue
        self.intake = Intake() if intake is None else intake
        self._loop = loop
        self._ring: deque[Consumer] = deque()
        self._scheduled = False
        queue.on_ready(self.dispatch, self.wanted)

    def add(self, consumer: Consumer) -> None:
        """Puts a consumer that can take messages in the ring; ready messages reach it in the next turn of the loop."""
        if not consumer.in_ring:
            consumer.in_ring = True
            self._ring.append(consumer)
        self._dispatch_soon()

    def line_up(self, consumer: Consumer) -> None:
        """Like `add`, for a consumer whose credit came back by a commit: that commit dispatches."""
        if not consumer.in_ring:
            consumer.in_ring = True
            self._ring.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        if consumer.in_ring:
            consumer.in_ring = False
            self._ring.remove(consumer)
            self.queue.wanted_changed()

    def wanted(self) -> dict[int, int]:
        """What the consumers in the ring would take now: visibility timeout in ms → messages."""
        found: dict[int, int] = {}
        failed: list[Consumer] = []
        for consumer in self._ring:
            try:
                messages = consumer.wants()
            except Exception:
                failed.append(consumer)
                self._tell_failed()
                continue
            if messages > 0:
                found[consumer.visibility_ms] = found.get(consumer.visibility_ms, 0) + messages
        for consumer in failed:
            self._take_out(consumer)
        return found

    def _take_out(self, consumer: Consumer) -> None:
        """Takes a consumer out of the ring, until it comes back by itself."""
        if consumer.in_ring:
            consumer.in_ring = False
            self._ring.remove(consumer)

    def _tell_failed(self) -> None:
        """A bug in one consumer must not keep the messages from the others."""
        log.exception("a consumer failed and was removed", queue=self.queue.name)

    def _dispatch_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._dispatch_scheduled)

    def _dispatch_scheduled(self) -> None:
        self._scheduled = False
        self.dispatch()

    def dispatch(self) -> None:
        """Hands out ready messages until no consumer wants any or none is left."""
        ring, queue = self._ring, self.queue
        share = turns = refused = dealt = 0
        while ring:
            if turns <= 0:  # a round begins: every consumer in the ring may have an equal share
                turns = len(ring)
                share = max(1, -(-queue.ready // turns))
            turns -= 1
            consumer = ring[0]
            try:
                wanted = consumer.wants()
            except Exception:
                self._tell_failed()
                wanted = 0
            if wanted <= 0:
                ring.popleft()
                consumer.in_ring = False
                continue
            lease = queue.take(min(wanted, share, TAKE_MESSAGES_MAX), consumer, consumer.visibility_ms)
            if lease is None:
                refused += 1
                if not queue.one_at_a_time or refused >= len(ring):
                    return
                ring.rotate(-1)  # another consumer may be allowed to take what this one may not
                continue
            refused = 0
            ring.rotate(-1)
            try:
                consumer.deliver(lease)
            except Exception:
                self._tell_failed()
                self._take_out(consumer)
                queue.unsent(lease)
                continue
            dealt += lease.bits.bit_count()
            if dealt >= DISPATCH_MESSAGES_MAX:
                self._dispatch_soon()  # other queues' consumers have a turn first
                return


def feeder_of(queue: Queue, loop: asyncio.AbstractEventLoop, intake: Intake | None = None) -> Feeder:
    """The queue's one feeder in this process."""
    found: Feeder | None = queue.extras.get("feeder")
    if found is None:
        found = queue.extras["feeder"] = Feeder(queue, loop, intake)
    return found
