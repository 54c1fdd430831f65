"""Long-poll: one request that waits for messages. A client that leaves while it waits costs no lease and no attempt."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from starlette.types import Receive

from backend_store.client import Chunk, Gap, Lease, Queue
from backend_store.model import Overloaded, PushqError
from backend_store.words import counted
from push.delivery.hub import Hub
from push.delivery.lookup_retry import LookingUp
from push.delivery.start_position import group_queue, stream_start
from push.delivery.stream_reader import Reading, Tails
from push.encoding.deliveries import stream_messages
from push.encoding.lease import first_shown, rendered, said_of
from push.operations.checks import field, visibility_of
from push.ports import Principal

if TYPE_CHECKING:
    from push.spans import Batch

log = structlog.get_logger("pushq.hub")

RECEIVE_MAX = 1000
WAIT_MS_MAX = 60_000
RESPONSE_BYTES_MAX = 4 * 1024 * 1024
Asker = tuple[Principal, str]
"""The request's principal and client address."""
Part = tuple[Chunk, range]
"""Some messages of a chunk, by their numbers."""
LOOKS_MAX = 1_000
"""How many turns of the loop a receive waits while the queue looks for ready messages behind many that are not."""


class Told(Protocol):
    def __call__(self, messages: int, batch: Batch | None = None) -> None:
        """Called with the number of messages of an answer; `batch` is set if spans are wanted."""


def _unheard(messages: int, batch: Batch | None = None) -> None:
    """Default of `told`."""


class InDoubt:
    """Gaps of a group that were sent with an answer: if all its messages are lost, the answer may not have arrived, and
    the gaps go back to the queue."""

    def __init__(self, queue: Queue, gaps: list[Gap], messages: int) -> None:
        self._queue = queue
        self._gaps = gaps
        self._messages = messages

    def lost(self, messages: int) -> None:
        self._messages -= messages
        if self._messages <= 0:
            gaps, self._gaps = self._gaps, []
            self._queue.put_back_gaps(gaps)


class Poll:
    """A waiting receive: a consumer that takes the messages of one turn and leaves the ring."""

    gateway = ""
    __slots__ = (
        "asker",
        "bytes",
        "durable",
        "full",
        "in_doubt",
        "in_ring",
        "leases",
        "limit",
        "loop",
        "ready",
        "taken",
        "visibility_ms",
    )

    def __init__(
        self, limit: int, visibility_ms: int, loop: asyncio.AbstractEventLoop, asker: Asker | None = None
    ) -> None:
        self.asker = asker
        """The request's principal and address; the leases outlive the request."""
        self.limit = limit
        self.visibility_ms = visibility_ms
        self.loop = loop
        self.ready: asyncio.Future[None] = loop.create_future()
        self.durable: asyncio.Future[None] | None = None
        """Set while leases wait for the disk before their messages may be sent."""
        self.leases: list[Lease] = []
        self.taken = 0
        self.bytes = 0
        self.full = False
        self.in_ring = False
        self.in_doubt: InDoubt | None = None

    def wants(self) -> int:
        return 0 if self.full or self.bytes > RESPONSE_BYTES_MAX else self.limit - self.taken

    def deliver(self, lease: Lease) -> None:
        count = lease.bits.bit_count()
        self.leases.append(lease)
        self.taken += count
        self.bytes += lease.state.size * count // lease.state.count
        if not self.ready.done():
            self.ready.set_result(None)

    def sendable(self) -> None:
        durable = self.durable
        if durable is not None and not durable.done() and all(lease.durable for lease in self.leases):
            durable.set_result(None)

    async def sealed(self) -> None:
        """Returns when the messages that it took may be sent."""
        if any(not lease.durable for lease in self.leases):
            self.durable = self.loop.create_future()
            await self.durable

    def released(self, count: int) -> None:
        """Does nothing: a poll has no credit to get back; it is over when its messages are acked."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """There is no connection to notify: the next ack with such a receipt is answered so."""
        if self.in_doubt is not None:
            self.in_doubt.lost(len(receipts))


async def receive_messages(
    hub: Hub,
    queue: Queue,
    *,
    limit: int,
    wait_ms: int,
    visibility_ms: int,
    receive: Receive,
    told: Told = _unheard,
    asker: Asker | None = None,
) -> bytes | None:
    """The JSON body of a receive from a work queue; None if the client left while it waited."""
    if hub.draining:
        raise PushqError("the server is shutting down", code="draining")
    if wait_ms and hub.full:
        raise Overloaded(
            f"{counted(hub.connections, 'connection is', 'connections are')} open, the limit of this process",
            retry_after_ms=5000,
        )
    queue.check_there()
    poll = Poll(limit, visibility_ms, hub.loop, asker)
    feeder = hub.feeder(queue)
    feeder.add(poll)
    queue.consumers += 1
    may_leave = False
    try:
        try:
            is_there = await _wait(hub, queue, poll.ready, wait_ms, receive)
        finally:
            poll.full = True
            feeder.remove(poll)
            queue.consumers -= 1
        if not is_there:
            return None
        await poll.sealed()
        may_leave = True
    finally:
        if not may_leave:
            for lease in reversed(poll.leases):
                queue.unsent(lease)
    batch = None if hub.spans is None else hub.spans.of_leases(poll.leases)
    messages = [m for lease in poll.leases for m in rendered(queue, lease, "json", hub.waits["poll"])]
    for lease in poll.leases:
        queue.detach(lease)
    hub.delivered += len(messages)
    told(len(messages), batch)
    # Gaps go only with messages: whether an answer without any arrived is never known.
    gaps = queue.take_gaps() if messages else []
    if gaps:
        poll.in_doubt = InDoubt(queue, gaps, len(messages))
    return b'{"messages":[%b]%b}' % (b",".join(messages), b',"resume":"gap"' if gaps else b"")


async def _wait(hub: Hub, queue: Queue, ready: asyncio.Future[None], wait_ms: int, receive: Receive) -> bool:
    """Waits for the first of: messages, the timeout, the client's disconnect. False if the client is gone. Raises
    `ClusterAway`.

    Ready messages are dispatched in the next turn of the loop, so even a wait of 0 gets them.
    """
    hub.polls[ready] = queue  # from now on a drain or the queue's deletion ends this poll
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(LOOKS_MAX):
            if ready.done() or not queue.is_looking:
                break
            await queue.next_look()
        if ready.done() or wait_ms == 0:
            return True
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({ready, gone}, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                queue.check_there()  # its cluster may have gone meanwhile
            return not gone.done()
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
    finally:
        hub.polls.pop(ready, None)
        if queue.deleted:
            raise queue.gone


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def receive_stream(
    hub: Hub, queue: Queue, *, limit: int, wait_ms: int, wanted: Any, receive: Receive, told: Told = _unheard
) -> bytes | None:
    """The JSON body of a receive from a stream: messages from `wanted` on, and the cursor to go on from. None if the
    client left while it waited."""
    if hub.draining:
        raise PushqError("the server is shutting down", code="draining")
    began_ms = hub.store.steady_ms()
    start = stream_start(queue, wanted)
    reading = Reading(start.places, start.epochs)
    tails = Tails(queue.parts)
    is_reset = tails.rewound(reading) or start.outcome == "reset"
    if wait_ms and tails.next(reading) is None:
        ready: asyncio.Future[None] = hub.loop.create_future()
        fanout = hub.fanout(queue)
        fanout.waiting.add(ready)
        try:
            if not await _wait(hub, queue, ready, wait_ms, receive):
                return None
        finally:
            fanout.waiting.discard(ready)
        tails = Tails(queue.parts)
        is_reset = tails.rewound(reading) or is_reset
    is_whole = not tails.missed(reading)  # something may have been trimmed while it waited
    parts: list[Part] = []
    messages, unshown = _read(queue, tails, reading, limit, parts)
    is_whole = is_whole and not unshown
    hub.delivered += len(messages)
    hub.unshown += unshown
    for chunk, numbers in parts:
        if chunk.time_ms >= began_ms:
            hub.waits["poll"].of_chunk(chunk, len(numbers))
    told(len(messages), None if hub.spans is None else hub.spans.of_parts(parts))
    return b'{"messages":[%b],"cursor":"%b","resume":"%b"}' % (
        b",".join(messages),
        queue.parts.cursor(reading.places).encode(),
        ("reset" if is_reset else start.outcome if is_whole else "gap").encode(),
    )


def _read(queue: Queue, tails: Tails, reading: Reading, limit: int, parts: list[Part]) -> tuple[list[bytes], int]:
    """Reads up to `limit` messages and moves the reader past them. Returns the messages, and how many in between cannot
    be shown; appends to `parts` the chunks and numbers that were read."""
    messages: list[bytes] = []
    size = unshown = 0
    while len(messages) < limit and size < RESPONSE_BYTES_MAX:
        try:
            found = tails.next(reading)
        except LookingUp:
            if not messages:
                raise
            break  # the messages at hand do not wait for the rest
        if found is None:
            reading.stand_at(tails.ends(), tails.epochs())
            break
        tail, chunk = found
        start = max(0, tail.place(reading) - chunk.base)
        stop = min(chunk.count, start + limit - len(messages))
        try:
            shown: list[bytes] | None = stream_messages(chunk, start, stop, "json")
        except Exception as error:
            stop, shown = first_shown(chunk, start, stop, partial(stream_messages, chunk, start, encoding="json"))
            if shown is None:
                log.error("messages of a stream cannot be delivered", **said_of(queue, chunk, start, stop, error))
                unshown += stop - start
        if shown is not None:
            messages.extend(shown)
            parts.append((chunk, range(start, stop)))
        size += len(chunk.data)
        reading.move(tail.number, chunk.base + stop)
    return messages, unshown


def check_receive(limit: int, wait_ms: int) -> None:
    """Raises `InvalidRequest` for numbers out of range."""
    if not 1 <= limit <= RECEIVE_MAX:
        raise field("/max", f"max must be between 1 and {RECEIVE_MAX}, not {limit}")
    if not 0 <= wait_ms <= WAIT_MS_MAX:
        raise field("/wait_ms", f"wait_ms must be between 0 and {WAIT_MS_MAX}, not {wait_ms}")


async def receive(
    hub: Hub,
    queue: Queue,
    *,
    limit: int,
    wait_ms: int,
    visibility_timeout_ms: int | None,
    from_: Any,
    receive: Receive,
    group: str | None = None,
    told: Told = _unheard,
    asker: Asker | None = None,
) -> bytes | None:
    """The JSON body of `POST …/receive`, or None if the client has left. Raises `PushqError`."""
    check_receive(limit, wait_ms)
    if group is None and queue.config.kind == "stream":
        if visibility_timeout_ms is not None:
            raise field("/visibility_timeout_ms", "a stream without a group has no leases")
        return await receive_stream(hub, queue, limit=limit, wait_ms=wait_ms, wanted=from_, receive=receive, told=told)
    if group is None and from_ is not None:
        raise field("/from", "`from` is only for streams; a work queue has no positions")
    visibility_ms = visibility_of(queue, visibility_timeout_ms)
    if group is not None:
        queue = await group_queue(queue, group, from_)
    return await receive_messages(
        hub, queue, limit=limit, wait_ms=wait_ms, visibility_ms=visibility_ms, receive=receive, told=told, asker=asker
    )
