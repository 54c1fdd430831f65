"""A WebSocket session: decodes frames, handles requests, and sends answers and messages. It owns its subscriptions.

Three callers drive a session, none of which awaits: the socket hands it frames, the store calls back when something is
durable, a feeder or a fan-out gives it messages. Its answers are collected, share frames and are written once a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from backend_store.client import Gap, Queue, by_token
from backend_store.model import InvalidRequest, PushqError
from push.connections import KICK_REASON, KICK_RETRY_MS
from push.delivery.fanout import Fanout
from push.delivery.lookup_retry import LookingUp, not_in_time
from push.encoding.deliveries import cut, deliver_frame, encode, join
from push.encoding.lease import rendered
from push.encoding.message_count import check_messages
from push.limits import (
    DELIVER_FRAME_BYTES_MAX,
    PINGS_PER_SECOND_MAX,
    REFUSED_PER_SECOND_MAX,
    REPLY_FRAME_BYTES_MAX,
)
from push.operations.checks import check_id, gap_fields
from push.ports import Encoding, Principal
from push.problems import problem
from push.protocol import (
    REQUESTS_IN_PROGRESS_MAX,
    Ack,
    ClientFrame,
    PlainBytesPublish,
    PlainPublish,
    Publish,
    PublishHead,
    RequestId,
)
from push.session import runs
from push.session.close_codes import Close
from push.session.greeting import first
from push.session.liveness import Liveness
from push.session.rate_gate import RateGate
from push.session.requests import HANDLERS, publish, refuse_early
from push.session.runs import Run
from push.session.socket import Wire
from push.session.subscriptions import StreamSubscription, WorkSubscription
from push.session.unreadable import uncounted, undecodable
from throttling.census import Kind, Who

if TYPE_CHECKING:
    from push.delivery.hub import Hub
    from push.spans import Batch

_json_frames = msgspec.json.Decoder(ClientFrame | list[ClientFrame])
_pack_frames = msgspec.msgpack.Decoder(ClientFrame | list[ClientFrame])
_json_plain = msgspec.json.Decoder(PlainPublish)
_pack_plain = msgspec.msgpack.Decoder(PlainBytesPublish)
_PLAIN: Final = (PlainPublish, PlainBytesPublish)
_json_heads = msgspec.json.Decoder(PublishHead)
_pack_heads = msgspec.msgpack.Decoder(PublishHead)

_KIND_BYTES_MAX: Final = 96
"""The kind of a hot frame is in its first bytes. `find` looks for it: `in` raises and drops an error internally first,
as it tries the operand as a number."""

REPLACED_REASON = "a newer connection resumed this session"
OVER_RATE_RETRY_MS = 1_000
"""When a client may come back after it was closed for asking too much."""

Subscription = WorkSubscription | StreamSubscription


class Session:
    """One client's session on one socket. Made at the upgrade; `Hub` keeps it by id until `gone`."""

    __slots__ = (
        "_beat_ms",
        "_dirty",
        "_in_progress",
        "_next_sub",
        "_pings",
        "_refused",
        "_replies",
        "closed",
        "encoding",
        "gate",
        "heard_ms",
        "hearing",
        "hub",
        "id",
        "opened",
        "opening",
        "ping_at_ms",
        "principal",
        "remote",
        "run",
        "subs",
        "who",
        "wire",
    )

    def __init__(self, hub: Hub, wire: Wire, encoding: Encoding, principal: Principal | None, remote: str):
        self.hub = hub
        self.wire = wire
        self.encoding: Encoding = encoding
        self.principal = principal
        self.remote = remote
        self.id = ""
        self.opened = False
        self.closed = False
        self.heard_ms = hub.awake_ms()
        self.hearing = Liveness()
        self.ping_at_ms = hub.next_ping_ms()
        self.subs: dict[int, Subscription] = {}
        self.opening = 0
        """Subscriptions that wait for their group to be opened: they count against the limit."""
        self.who = Who(address=remote)
        """The account that the session is counted on. A refreshed token does not change it."""
        self._next_sub = 1
        self._replies: list[bytes] = []
        self._dirty = False
        self._in_progress = 0
        self.gate = RateGate(self)
        self.run = Run(self)
        self._beat_ms = 0
        self._pings = 0
        self._refused = 0

    # -------------------------------------------------------------------------------------------------- frames in

    def receive(self, data: bytes, came: float | None = None) -> None:
        """Handles one frame from the client. `came`: when the frame arrived, by the loop's clock, if it was held
        since."""
        if self.closed:
            return
        if self.gate.held is not None:
            self.gate.held.append(partial(self.receive, data, came or self.hub.loop.time()))
            return
        self.heard_ms = self.hub.now_ms
        self.hearing.heard += 1
        try:
            check_messages(data, self.encoding)
            if self.encoding == "json":
                if not data.isascii():
                    data.decode()
                if data.find(b'"publish"', 0, _KIND_BYTES_MAX) >= 0 and self._plain(_json_plain, data, came):
                    return
                frames = _json_frames.decode(data)
            else:
                if data.find(b"publish", 0, _KIND_BYTES_MAX) >= 0 and self._plain(_pack_plain, data, came):
                    return
                frames = _pack_frames.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.run.end()
            undecodable(self, data, error, came)
            return
        except InvalidRequest as error:
            self.run.end()
            uncounted(self, data, error)
            return
        if type(frames) is Ack and self._may_join and runs.is_quiet(frames):
            self.run.add(runs.ack, frames, len(frames.receipts), len(data))
            return
        self.run.end()
        if isinstance(frames, list):
            if not self.may_hold(len(frames)):
                return
            for frame in frames:
                self.handle(frame, came)
        else:
            self.handle(frames, came)

    def turn_ended(self) -> None:
        """Handles the frames that were collected: no other frame comes in this turn of the loop, or none that may join
        them."""
        self.run.end()

    @property
    def _may_join(self) -> bool:
        """Whether frames may be handled together. A span belongs to one frame."""
        return self.opened and self.hub.spans is None

    def may_hold(self, count: int) -> bool:
        """Whether a list of frames is short enough; otherwise closes the socket. All objects of a frame are handled in
        one turn of the loop, while all other clients wait."""
        if 0 < count <= REQUESTS_IN_PROGRESS_MAX:
            return True
        detail = f"a frame must be one object, or a list of 1 to {REQUESTS_IN_PROGRESS_MAX}, not a list of {count}"
        self.protocol_error(InvalidRequest(detail))
        return False

    def _plain(self, decoder: Any, data: bytes, came: float | None) -> bool:
        """Tries the hot frame first: a publish of messages that are only bodies. False if it is not one."""
        if not self.opened:
            return False
        if self.hub.intake.is_tight and self._refuse_unread(data):
            return True
        try:
            frame = decoder.decode(data)
        except msgspec.ValidationError:
            return False
        is_usual = frame.timeout_ms is None and frame.idempotency_key is None and not self.hub.intake.publishes
        is_usual = is_usual and came is None
        if is_usual and self._may_join and runs.is_small(len(frame.messages), len(data)):
            self.run.add(runs.publish, frame, len(frame.messages), len(data))
        else:
            self.run.end()
            self.handle(frame, came)
        return True

    def _refuse_unread(self, data: bytes) -> bool:
        """Refuses a publish by its head alone: decoding all of what is refused would take time from what is
        accepted."""
        heads = _json_heads if self.encoding == "json" else _pack_heads
        try:
            head = heads.decode(data)
        except msgspec.MsgspecError:
            return False
        try:
            check_id(head.id)
            refuse_early(self, head, self.run.waiting(head.queue))
        except PushqError as error:
            self.run.end()
            self.error(head.id, error)
            return True
        return False

    def handle(self, frame: ClientFrame | PlainPublish | PlainBytesPublish, came: float | None = None) -> None:
        """Handles one decoded frame. `came`: see `receive`."""
        if self.closed:
            return
        if self.gate.held is not None:
            self.gate.held.append(partial(self.handle, frame, came or self.hub.loop.time()))
            return
        if isinstance(frame, _PLAIN):
            self.answering(frame.id, publish, self, frame, [m.body for m in frame.messages], plain=True, came=came)
            return
        if not self.opened:
            first(self, frame)
            return
        kind = type(frame)
        if kind is Publish:
            assert isinstance(frame, Publish)
            self.answering(frame.id, publish, self, frame, frame.messages, came=came)
        else:
            self.answering(frame.id, HANDLERS[kind], self, frame)

    def answering(self, request_id: RequestId, handler: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a handler. A refusal is sent under the request's id, and the socket stays open."""
        try:
            check_id(request_id)
            handler(*args, **kwargs)
        except LookingUp as looking:
            until = inf
            if handler is publish:
                kwargs["came"] = kwargs.get("came") or self.hub.loop.time()
                until = self.waits_until(args[1], kwargs["came"])
            self._wait(looking, request_id, partial(self.answering, request_id, handler, *args, **kwargs), until)
        except PushqError as error:
            self.count(handler.__name__, "", error.code)
            if self.hub.spans is not None:
                self.hub.spans.refused(handler.__name__, args[1], self.who.tenant, error.code)
            (self.error if handler is publish else self.refuse)(request_id, error)

    def waits_until(self, frame: Any, came: float) -> float:
        """The deadline of a publish; `inf` if its `timeout_ms` is invalid."""
        try:
            return self.hub.waits_until(frame.timeout_ms, came)
        except InvalidRequest:
            return inf  # the invalid time is refused once it is known that the queue exists

    def _wait(self, looking: LookingUp, request_id: RequestId, again: Callable[[], None], until: float) -> None:
        """Asks for what a request has to look up, and runs the request anew when the answer is here, unless `until` has
        passed. Other frames go on meanwhile."""
        self.began()
        is_told = False

        def landed(error: PushqError | None) -> None:
            nonlocal is_told
            if is_told:
                return
            is_told = True
            if timer is not None:
                timer.cancel()
            self.ended()
            if self.closed:
                return
            if error is not None:
                self.error(request_id, error)
            elif self.gate.held is not None:
                self.gate.held.append(again)
            else:
                again()

        is_bounded = until != inf
        timer = self.hub.loop.call_at(until, landed, not_in_time(looking)) if is_bounded else None
        looking.flight.wanted(until)
        looking.flight.then(landed)

    # --------------------------------------------------------------------------------------------------- limits

    def refuse(self, request_id: RequestId, error: PushqError) -> None:
        """Sends an error. The socket stays open, unless its client sends little else: a refusal costs the client
        nothing. Publishes have a rule of their own, as a producer may have sent thousands ahead."""
        self.error(request_id, error)
        self._look_at_beat()
        self._refused += 1
        if self._refused > REFUSED_PER_SECOND_MAX:
            self.over_rate(f"more than {REFUSED_PER_SECOND_MAX} refused requests per second")

    def refuse_publish(self, request_id: RequestId, error: PushqError) -> None:
        """Sends an error. The socket stays open, unless its client does nothing else for long."""
        self.error(request_id, error)
        self.gate.is_abused()

    def leave(self, kind: Kind) -> None:
        self.hub.throttle.leave(kind, self.who)

    # ------------------------------------------------------------------------------------------------- requests

    def began(self, requests: int = 1) -> None:
        before = self._in_progress
        self._in_progress += requests
        if before < REQUESTS_IN_PROGRESS_MAX <= self._in_progress:
            self.wire.pause()

    def ended(self, requests: int = 1) -> None:
        before = self._in_progress
        self._in_progress -= requests
        if before > REQUESTS_IN_PROGRESS_MAX // 2 >= self._in_progress and self.gate.held is None:
            self.wire.unpause()

    @property
    def in_progress(self) -> int:
        """Requests that wait for an answer."""
        return self._in_progress

    def read_on(self) -> None:
        """Called when the gate is open again: reads the socket on."""
        if self._in_progress < REQUESTS_IN_PROGRESS_MAX:
            self.wire.unpause()

    def count(
        self,
        operation: str,
        queue: str,
        outcome: str = "ok",
        *,
        requests: int = 1,
        messages: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Counts a frame, or some that were handled together, on the principal's account."""
        principal = self.principal
        if principal is not None:
            self.hub.meter.count(
                principal.tenant,
                principal.id,
                queue,
                operation,
                "ws",
                outcome,
                requests=requests,
                messages=messages,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                seconds=seconds,
            )

    def delivered(self, queue: Queue, messages: int, size: int, batch: Batch | None = None) -> None:
        """Counts messages that were written to the socket."""
        self.count("deliver", queue.name, messages=messages, bytes_out=size)
        if batch is not None:
            batch.delivered(queue, self.who.tenant, messages)

    def pinged(self) -> bool:
        """Counts a ping or a pong, of this protocol or of RFC 6455. False if the socket is closed: by this one, or
        before."""
        self._look_at_beat()
        self._pings += 1
        if self._pings > PINGS_PER_SECOND_MAX:
            self.over_rate(f"more than {PINGS_PER_SECOND_MAX} pings and pongs per second")
        return not self.closed

    def _look_at_beat(self) -> None:
        """Resets the counts of a second with each beat of the hub."""
        if self._beat_ms != self.hub.now_ms:
            self._beat_ms, self._pings, self._refused = self.hub.now_ms, 0, 0

    def number(self) -> int:
        number = self._next_sub
        self._next_sub += 1
        return number

    def fanout(self, queue: Queue) -> Fanout:
        return self.hub.fanout(queue)

    def drop(self, sub: Subscription) -> None:
        """Ends a subscription that the client no longer wants: what it holds goes back at once."""
        del self.subs[sub.number]
        self.hub.readers.leave(self, sub.queue)
        self.leave("subscriptions")
        if isinstance(sub, WorkSubscription):
            sub.stop()
            sub.give_back()
        else:
            self.fanout(sub.queue).stop(sub)
            sub.queue.consumers -= 1

    def vouched(self, receipts: list[str]) -> None:
        """Takes these receipts as proof that their messages reached the client, where the cut of the session left it in
        doubt."""
        for sub in self.subs.values():
            if type(sub) is WorkSubscription and sub.in_doubt:
                sub.vouched(by_token(receipts))

    def end(self, sub: Subscription, error: PushqError) -> None:
        """Ends a subscription because its queue is gone."""
        self.drop(sub)
        self.send({"type": "ended", "sub": sub.number, "problem": problem(error)})

    # -------------------------------------------------------------------------------------------------- frames out

    @property
    def writable(self) -> bool:
        return self.wire.is_writable and not self.closed

    def write(self, data: bytes) -> None:
        self.wire.write(data)

    def flush_soon(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.hub.flush_soon(self)

    def reply(self, frame: bytes) -> None:
        self._replies.append(frame)
        if not self._dirty:
            self._dirty = True
            self.hub.flush_soon(self)

    def replies(self, frames: Iterable[bytes]) -> None:
        self._replies += frames
        self.flush_soon()

    def send(self, frame: dict[str, Any]) -> None:
        self.reply(encode(frame, self.encoding))

    def send_single(self, frame: dict[str, Any]) -> None:
        """A frame that never shares: `connected`, `error`, `bye`. What was said before it goes first."""
        self.flush()
        if not self.closed:
            self.wire.send_frame(encode(frame, self.encoding), self.encoding)

    def ok(self, request_id: RequestId, **fields: Any) -> None:
        if request_id is not None:
            self.send({"type": "ok", "id": request_id, **fields})

    def error(self, request_id: RequestId, error: PushqError) -> None:
        self.send_single(
            {"type": "error", "problem": problem(error), **({"id": request_id} if request_id is not None else {})}
        )

    def tell_gap(self, number: int, gap: Gap) -> None:
        """Sends a gap before the messages after it: those are written at once, answers only at the turn's end."""
        self.send({"type": "gap", "sub": number, **gap_fields(gap)})
        self.flush()
        if type(sub := self.subs[number]) is WorkSubscription:
            sub.missed([gap], self.hearing.heard)

    def tell_reset(self, number: int, cursor: str) -> None:
        """Sends a reset, before the messages after it as well."""
        self.send({"type": "reset", "sub": number, "cursor": cursor})
        self.flush()

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        if number in self.subs:
            self.send({"type": "lost", "sub": number, "receipts": receipts})

    def flush(self) -> None:
        """Writes answers, then messages. Called once a turn of the loop, if there is something to write."""
        self._dirty = False
        if self.closed:
            return
        if self._replies:
            replies, self._replies = self._replies, []
            for part in cut(replies, REPLY_FRAME_BYTES_MAX):
                self.wire.send_frame(join(part, self.encoding), self.encoding)
        for sub in list(self.subs.values()):
            if type(sub) is WorkSubscription and sub.pending:
                self._deliver(sub)

    def _deliver(self, sub: WorkSubscription) -> None:
        leases = sub.take_pending()
        batch = None if self.hub.spans is None else self.hub.spans.of_leases(leases)
        messages: list[bytes] = []
        for lease in leases:
            messages.extend(rendered(sub.queue, lease, self.encoding, self.hub.waits["ws"]))
        size = 0
        for part in cut(messages, DELIVER_FRAME_BYTES_MAX):
            frame = deliver_frame(sub.number, part, self.encoding)
            size += len(frame)
            self.wire.send_frame(frame, self.encoding)
        self.hub.delivered += len(messages)
        self.delivered(sub.queue, len(messages), size, batch)
        self.hearing.sent(self.hub.now_ms)
        sub.sent_since(leases, self.hearing.heard)
        sub.sent(leases)

    # -------------------------------------------------------------------------------------------------------- end

    def resumed_writing(self) -> None:
        """The peer reads again: resumes every subscription that waited for room."""
        for sub in self.subs.values():
            if isinstance(sub, WorkSubscription):
                sub.more()
            else:
                self.fanout(sub.queue).start(sub, self)

    def protocol_error(self, error: PushqError) -> None:
        self.turn_away(None, error, Close.PROTOCOL_ERROR)

    def turn_away(self, request_id: RequestId, error: PushqError, close: Close) -> None:
        """Says why, and closes."""
        self.error(request_id, error)
        self.close(close, error.detail)

    def close(self, code: int, reason: str) -> None:
        """Closes from our side. Messages in flight wait for the session to resume, unless the code tells the client to
        stop or an administrator ended the connection."""
        if not self.closed:
            self.flush()
            self.wire.close(code, reason)
            self.gone(clean=4500 <= code <= 4999 or code == Close.KICKED, code=code)

    def kick(self) -> None:
        self._bye(KICK_RETRY_MS, Close.KICKED, KICK_REASON)

    def over_rate(self, why: str) -> None:
        """Closes a socket that asks for too much, and says so first."""
        self.turn_away(
            None, PushqError(why, code="rate-limited", retry_after_ms=OVER_RATE_RETRY_MS), Close.RATE_LIMITED
        )

    def replaced(self) -> None:
        """Ends this connection, as a newer one resumed the session: messages in flight go over to the newer one."""
        self.error(None, PushqError(REPLACED_REASON, code="conflict"))
        self.flush()
        self.wire.close(Close.REPLACED, REPLACED_REASON)
        self.gone(clean=False, code=Close.REPLACED)

    @property
    def outbox_bytes(self) -> int:
        return self.wire.outbox_bytes

    def reading(self) -> Iterable[Subscription]:
        return list(self.subs.values())

    def listen(self, now_ms: int, unread_ms: int) -> bool:
        """Checks whether the client still reads. True if its credit was withheld just now."""
        match self.hearing.judge(now_ms, unread_ms, self.wire.waiting_bytes):
            case "ask":
                self.ping()
            case "withhold":
                for sub in self._works():
                    sub.withhold()
                return True
            case "restore":
                for sub in self._works():
                    sub.restore()
        return False

    def _works(self) -> list[WorkSubscription]:
        return [sub for sub in self.subs.values() if isinstance(sub, WorkSubscription)]

    def ping(self) -> None:
        if self.wire.is_writable:
            self.wire.write(self.hub.ping_frame(self.encoding))

    def bye(self, retry_ms: int) -> None:
        self._bye(retry_ms, Close.DRAIN, "the server is shutting down")

    def _bye(self, retry_ms: int, code: Close, reason: str) -> None:
        if not self.closed:
            self.send_single({"type": "bye", "code": int(code), "reason": reason, "retry_ms": retry_ms})
            self.close(code, reason)

    def gone(self, *, clean: bool, code: int) -> None:
        """Ends the session of a closed socket. Cleanly: leases return at once. Cut: they wait for the session to
        resume."""
        if self.closed:
            return
        self.closed = True
        self.hub.count_close(code)
        self.hub.open.remove(self, code=code)
        self.hub.closed(self, clean=clean)
        self.leave("connections")
