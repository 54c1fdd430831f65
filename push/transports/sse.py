"""SSE: a stream of events over HTTP on sse-starlette, credit for work queues, cursors for streams.

The generator goes on only after the socket has taken the bytes before, so a slow reader holds back its own messages and
no other reader's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse

from backend_store.client import Gap, Lease, Queue, encode_cursor, indexes
from backend_store.model import FieldError, InvalidRequest, PushqError
from push.connections import KICK_REASON, KICK_RETRY_MS
from push.delivery.hub import Hub
from push.delivery.start_position import stream_start
from push.encoding.lease import rendered
from push.encoding.sse import json_event, message_events
from push.limits import CREDIT_DEFAULT, OUTBOX_BYTES_SOFT_MAX
from push.operations.checks import checked_credit, gap_fields, visibility_of
from push.ports import Principal
from push.problems import problem
from push.session.close_codes import Close
from push.session.subscriptions import StreamSubscription, WorkSubscription
from throttling.census import Who

if TYPE_CHECKING:
    from push.spans import Batch

# The hub drains; the library's own drain would cut streams without a `bye`.
AppStatus.enable_automatic_graceful_drain = False

HEARTBEAT_SECONDS = 15


class EventStream:
    """One SSE response: the outlet of its one subscription."""

    def __init__(self, hub: Hub, principal: Principal, queue: Queue, remote: str = ""):
        self.hub = hub
        self.principal = principal
        self.remote = remote
        self.who = Who(principal.tenant, principal.id, remote)
        self.queue = queue
        self.sub: WorkSubscription | StreamSubscription | None = None
        self._buffer: list[bytes] = []
        self._size = 0
        self._late_gaps: dict[int | None, Gap] = {}
        """By partition, gaps that did not fit into the outbox."""
        self._wake = asyncio.Event()
        self._sending = False
        self._ending = False
        self._is_kicked = False
        self.refill: int | None = None

    # ----------------------------------------------------------------------------------------------------- outlet

    @property
    def writable(self) -> bool:
        if isinstance(self.sub, WorkSubscription):
            # A lease starts when its bytes leave: nothing is leased while earlier bytes are still waiting.
            return not self._ending and not self._sending
        return not self._ending and self._size < OUTBOX_BYTES_SOFT_MAX

    def flush_soon(self) -> None:
        self._wake.set()

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        """Sends nothing: the protocol has no event for it; an SSE consumer learns it from its ack."""

    def tell_gap(self, number: int, gap: Gap) -> None:
        sub = self.sub
        if isinstance(sub, WorkSubscription) and self._size >= OUTBOX_BYTES_SOFT_MAX:
            # A stream may trim something with each commit, and this client does not read.
            self._late_gaps[gap.partition] = self._late_gaps.get(gap.partition, gap).and_also(gap)
            return
        self.write(json_event("gap", {"type": "gap", **gap_fields(gap)}))
        if isinstance(sub, WorkSubscription):
            sub.missed([gap], max(sub.settled, sub.gaps_since))  # what was settled may turn out to be taken from it

    def _tell_late_gaps(self) -> None:
        late, self._late_gaps = self._late_gaps, {}
        for gap in late.values():
            self.tell_gap(0, gap)

    def tell_reset(self, number: int, cursor: str) -> None:
        self.write(json_event("reset", {"type": "reset", "cursor": cursor}))

    def write(self, data: bytes) -> None:
        self._buffer.append(data)
        self._size += len(data)
        self._wake.set()

    # ----------------------------------------------------------------------------------------------------- events

    async def events(self) -> AsyncIterator[bytes]:
        try:
            yield b": welcome\n\n"
            while True:
                await self._wake.wait()
                self._wake.clear()
                async for data in self._batches():
                    yield data
                if self._ending:
                    return
        finally:
            self._closed()

    async def _batches(self) -> AsyncIterator[bytes]:
        sub = self.sub
        while self._buffer or (isinstance(sub, WorkSubscription) and sub.may_send):
            self._size = 0
            if self._late_gaps:
                self._tell_late_gaps()
            buffer, self._buffer = self._buffer, []
            self._size = 0
            leases = sub.take_pending() if isinstance(sub, WorkSubscription) else []
            batch = None if not leases or self.hub.spans is None else self.hub.spans.of_leases(leases)
            buffer.extend(self._rendered(leases))
            self._sending = True
            data = b"".join(buffer)
            if leases:
                self.delivered(self.queue, sum(lease.bits.bit_count() for lease in leases), len(data), batch)
            yield data
            # The generator is resumed: what was yielded has been written to the socket.
            self._sending = False
            if isinstance(sub, WorkSubscription):
                sub.sent(leases)
                sub.more()
            elif isinstance(sub, StreamSubscription):
                self._go_on(sub)

    def _go_on(self, sub: StreamSubscription) -> None:
        """Refills the credit of what was written to the socket: over SSE the client cannot."""
        fanout = self.hub.fanout(self.queue)
        if self.refill is not None and sub.credit is not None and sub.credit < self.refill:
            fanout.allow(sub, self.refill - sub.credit, self)
        else:
            fanout.start(sub, self)

    def _rendered(self, leases: list[Lease]) -> list[bytes]:
        out: list[bytes] = []
        for lease in leases:
            if messages := rendered(self.queue, lease, "json", self.hub.waits["sse"]):
                self.hub.delivered += len(messages)
                state, uid = lease.state, self.queue.uid
                cursors = [
                    encode_cursor(state.epoch, state.base + index + 1, state.partition, uid=uid)
                    for index in indexes(lease.bits)
                ]
                out.append(message_events(messages, cursors))
        return out

    def delivered(self, queue: Queue, messages: int, size: int, batch: Batch | None = None) -> None:
        """Counts messages that are handed to the socket."""
        who = self.principal
        self.hub.meter.count(who.tenant, who.id, queue.name, "deliver", "sse", messages=messages, bytes_out=size)
        if batch is not None:
            batch.delivered(queue, who.tenant, messages)

    # -------------------------------------------------------------------------------------------------------- end

    def bye(self, retry_ms: int, code: Close = Close.DRAIN, reason: str = "the server is shutting down") -> None:
        """Sends `bye` and ends the stream."""
        if not self._ending:
            farewell = {"type": "bye", "code": int(code), "reason": reason, "retry_ms": retry_ms}
            self.write(json_event("bye", farewell, retry_ms=retry_ms))
            self._ending = True

    def kick(self) -> None:
        self._is_kicked = True
        self.bye(KICK_RETRY_MS, Close.KICKED, KICK_REASON)
        if isinstance(self.sub, WorkSubscription):
            self.sub.give_back()

    @property
    def outbox_bytes(self) -> int:
        return self._size

    def reading(self) -> Iterable[WorkSubscription | StreamSubscription]:
        return () if self.sub is None else (self.sub,)

    def queue_gone(self, queue: Queue, error: PushqError) -> None:
        if queue is self.queue:
            self._finish(error)

    def check(self) -> None:
        """Ends a stream whose key was revoked or whose token has expired; with a newer token the client may resume."""
        if self.hub.desk.has_expired(self.principal):
            self.bye(KICK_RETRY_MS, Close.TOKEN_EXPIRED, "the token has expired")
        elif not self.hub.desk.still_valid(self.principal):
            self._finish(PushqError("the key was revoked or has expired", code="unauthenticated"))

    def _finish(self, error: PushqError) -> None:
        if not self._ending:
            self.write(json_event("ended", {"type": "ended", "problem": problem(error)}))
            self._ending = True

    def enter(self) -> None:
        """Counts the stream as a connection and a subscription. Raises `too-many-connections`."""
        self.hub.throttle.enter("connections", self.who)
        try:
            self.hub.throttle.enter("subscriptions", self.who)
        except PushqError:
            self.hub.throttle.leave("connections", self.who)
            raise

    def leave(self) -> None:
        self.hub.throttle.leave("connections", self.who)
        self.hub.throttle.leave("subscriptions", self.who)

    def _closed(self) -> None:
        """Ends the subscription of a closed connection. Leases are kept for a moment: acks come by POST and may be on
        their way."""
        self._ending = True  # acks that come by POST give credit back, and nothing more may be sent for it
        self.hub.stream_closed(self)
        self.leave()
        self.hub.open.remove(self)
        sub = self.sub
        if isinstance(sub, WorkSubscription):
            if sub.settled <= sub.gaps_since:
                self.queue.put_back_gaps(sub.gaps)
            self.queue.put_back_gaps([*self._late_gaps.values()])
            sub.stop()
            if not sub.held():
                return  # clients may come and go, and each subscription would be kept for so long
            wait_s = 0 if self._is_kicked else self.hub.resume_ms / 1000
            self.hub.loop.call_later(wait_s, _give_back, sub)
        elif isinstance(sub, StreamSubscription):
            self.hub.fanout(self.queue).stop(sub)
            self.queue.consumers -= 1


def _give_back(sub: WorkSubscription) -> None:
    """Gives the leases back: a working client has reported over HTTP by now what it has begun with; a crashed one has
    not."""
    sub.doubt_oldest()
    sub.give_back()


def response(
    hub: Hub,
    principal: Principal,
    queue: Queue,
    *,
    credit: int | None,
    ack: str,
    from_: Any,
    last_event_id: str | None,
    tells_begun: bool = False,
    visibility_ms: int | None = None,
    remote: str = "",
) -> EventSourceResponse:
    """The response to `GET …/events`, for a client that the hub let in. Raises `PushqError` for a wrong request."""
    stream = EventStream(hub, principal, queue, remote)
    stream.enter()
    try:
        if queue.config.kind == "stream" and queue.group is None:
            _read_stream(hub, stream, credit, from_, last_event_id)
        else:
            _consume_work(hub, stream, credit, ack, from_, visibility_ms, tells_begun=tells_begun)
    except BaseException:
        stream.leave()
        raise
    queue.consumers += 1
    hub.stream_opened(stream)
    hub.open.add("sse", stream)
    return EventSourceResponse(
        stream.events(),
        headers={"Cache-Control": "no-store, no-transform"},
        ping=HEARTBEAT_SECONDS,
        sep="\n",
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive"),
    )


def _consume_work(
    hub: Hub,
    stream: EventStream,
    credit: int | None,
    ack: str,
    from_: Any,
    visibility_ms: int | None,
    *,
    tells_begun: bool,
) -> None:
    queue = stream.queue
    if from_ is not None:
        detail = "`from` is only for streams; a work queue has no positions"
        raise InvalidRequest(detail, errors=(FieldError("/from", detail),))
    sub = WorkSubscription(
        stream,
        0,
        queue,
        hub.feeder(queue),
        credit=checked_credit(credit if credit is not None else CREDIT_DEFAULT),
        auto=ack == "auto",
        visibility_ms=visibility_of(queue, visibility_ms),
        pending_bytes_max=OUTBOX_BYTES_SOFT_MAX,
        tells_begun=tells_begun,
    )
    stream.sub = sub
    for gap in queue.take_gaps():
        stream.tell_gap(0, gap)
    hub.loop.call_soon(sub.more)


def _read_stream(hub: Hub, stream: EventStream, credit: int | None, from_: Any, last_event_id: str | None) -> None:
    queue = stream.queue
    start = stream_start(queue, {"cursor": last_event_id} if last_event_id else from_)
    stream.refill = checked_credit(credit) if credit is not None else None
    sub = StreamSubscription(stream, 0, queue, start=start, credit=stream.refill, key="sse")
    stream.sub = sub
    for gap in start.gaps:
        stream.tell_gap(0, gap)
    if start.outcome == "reset":
        stream.tell_reset(0, start.cursor)
    hub.fanout(queue).start(sub, stream)
