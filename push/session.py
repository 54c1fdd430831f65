"""A WebSocket session: frames in, frames out. It owns its subscriptions; its answers share frames.

The session is driven from three sides, each without awaiting: the socket hands it frames, the store calls back when
something is durable, a feeder or a fan-out gives it messages. What it has to say is collected and written once a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from backend_store.client import Lease, Queue
from backend_store.model import FieldError, InvalidRequest, Published, PushqError, Unauthenticated, Verdict
from push.closes import Close
from push.encode import deliver_frame, encode, join, leased_messages, published_ok
from push.fanout import Fanout
from push.limits import (
    CREDIT_DEFAULT,
    CREDIT_MAX,
    DELIVER_FRAME_BYTES_MAX,
    OUTBOX_BYTES_SOFT_MAX,
    REPLY_FRAME_BYTES_MAX,
    SUBSCRIPTIONS_PER_SESSION_MAX,
)
from push.ports import Encoding, Prepared, Principal
from push.problems import invalid, problem
from push.protocol import (
    FRAME_BYTES_MAX,
    PING_MS,
    RECEIPTS_PER_REQUEST_MAX,
    REQUEST_ID_CHARS_MAX,
    REQUESTS_IN_PROGRESS_MAX,
    Ack,
    ClientFrame,
    Connect,
    Credit,
    Extend,
    Nack,
    Ping,
    PlainBytesPublish,
    PlainPublish,
    Pong,
    Publish,
    Refresh,
    RequestId,
    Subscribe,
    Unsubscribe,
)
from push.starts import stream_start
from push.subscriptions import StreamSubscription, WorkSubscription

if TYPE_CHECKING:
    from push.hub import Hub

VISIBILITY_MS_MAX = 12 * 3600 * 1000
DELAY_MS_MAX = 12 * 3600 * 1000

_json_frames = msgspec.json.Decoder(ClientFrame | list[ClientFrame])
_pack_frames = msgspec.msgpack.Decoder(ClientFrame | list[ClientFrame])
_json_plain = msgspec.json.Decoder(PlainPublish)
_pack_plain = msgspec.msgpack.Decoder(PlainBytesPublish)


class Wire(Protocol):
    """The socket, as a session sees it."""

    is_writable: bool

    def send_frame(self, payload: bytes, encoding: Encoding) -> None:
        """Writes one frame."""

    def write(self, data: bytes) -> None:
        """Writes bytes that are framed already."""

    def close(self, code: int, reason: str) -> None: ...
    def pause(self) -> None:
        """Reads nothing more until `unpause`: the peer asks faster than the disk answers."""

    def unpause(self) -> None: ...
    def blocked_seconds(self) -> float:
        """How long the peer has not read what was written."""


Subscription = WorkSubscription | StreamSubscription


class Session:
    __slots__ = (
        "_dirty", "_in_progress", "_next_sub", "_replies", "closed", "encoding", "heard_ms", "hub", "id", "opened",
        "principal", "remote", "subs", "wire",
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
        self.heard_ms = hub.clock_ms()
        self.subs: dict[int, Subscription] = {}
        self._next_sub = 1
        self._replies: list[bytes] = []
        self._dirty = False
        self._in_progress = 0

    # -------------------------------------------------------------------------------------------------- frames in

    def receive(self, data: bytes) -> None:
        """One frame from the client."""
        if self.closed:
            return
        self.heard_ms = self.hub.now_ms
        try:
            if self.encoding == "json":
                if not data.isascii():
                    data.decode()
                if b'"publish"' in data[:96] and self._plain(_json_plain, data):
                    return
                frames = _json_frames.decode(data)
            else:
                if b"publish" in data[:96] and self._plain(_pack_plain, data):
                    return
                frames = _pack_frames.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._protocol_error(invalid(error))
            return
        if isinstance(frames, list):
            if not frames:
                self._protocol_error(InvalidRequest("a frame holds an object or a list of them, not an empty list"))
            for frame in frames:
                self._handle(frame)
        else:
            self._handle(frames)

    def _plain(self, decoder: Any, data: bytes) -> bool:
        """The hot frame, tried first: messages that are only bodies."""
        if not self.opened:
            return False
        try:
            frame = decoder.decode(data)
        except msgspec.ValidationError:
            return False
        self._answering(frame.id, self._publish, frame, [m.body for m in frame.messages], plain=True)
        return True

    def _handle(self, frame: ClientFrame) -> None:
        if self.closed:
            return
        if not self.opened:
            self._first(frame)
            return
        kind = type(frame)
        if kind is Publish:
            assert isinstance(frame, Publish)
            self._answering(frame.id, self._publish, frame, frame.messages)
        else:
            self._answering(frame.id, _HANDLERS[kind], self, frame)

    def _answering(self, request_id: RequestId, handler: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a handler; what it refuses is told under the request's id, and the socket stays open."""
        try:
            _check_id(request_id)
            handler(*args, **kwargs)
        except PushqError as error:
            self.error(request_id, error)

    def _first(self, frame: ClientFrame) -> None:
        if not isinstance(frame, Connect):
            self._refuse(None, Unauthenticated("the first frame must be `connect`"), Close.UNAUTHENTICATED)
            return
        try:
            _check_id(frame.id)
            self.principal = self._identify(frame)
        except PushqError as error:
            close = Close.UNAUTHENTICATED if error.code == "unauthenticated" else Close.PROTOCOL_ERROR
            self._refuse(frame.id, error, close)
            return
        self._open(frame)

    def _identify(self, frame: Connect) -> Principal:
        desk = self.hub.desk
        if frame.token is not None:
            return desk.identify(frame.token)
        if frame.ticket is not None:
            return desk.redeem(frame.ticket)
        if self.principal is None:
            raise Unauthenticated("`connect` needs a `token` or a `ticket`, or an Authorization header at the upgrade")
        return self.principal

    def _open(self, frame: Connect) -> None:
        self.opened = True
        resumed = self.hub.opened(self, frame.resume.session if frame.resume is not None else None)
        connected = {
            "type": "connected", "session": self.id, "resumed": resumed, "ping_ms": PING_MS,
            "resume_ms": self.hub.resume_ms,
            "limits": {
                "frame_bytes_max": FRAME_BYTES_MAX,
                "messages_per_publish_max": 1000,
                "requests_in_progress_max": REQUESTS_IN_PROGRESS_MAX,
                "in_flight_per_subscription_max": CREDIT_MAX,
                "subscriptions_max": SUBSCRIPTIONS_PER_SESSION_MAX,
            },
        }
        self._single({**connected, **({"id": frame.id} if frame.id is not None else {})})

    def _connect_again(self, frame: Connect) -> None:
        raise InvalidRequest("this session is connected already; `refresh` renews its token")

    # --------------------------------------------------------------------------------------------------- publish

    def _publish(self, frame: Any, messages: Any, *, plain: bool = False) -> None:
        desk = self.hub.desk
        assert self.principal is not None
        queue = desk.queue(self.principal, frame.queue, "publish")
        if self.hub.draining:
            raise PushqError("the server is shutting down", code="draining")
        prepare = desk.prepare_plain if plain else desk.prepare
        prepared = prepare(queue, messages, self.encoding)
        self._began()
        queue.publish(prepared.blocks, partial(self._published, frame.id, prepared))

    def _published(self, request_id: RequestId, prepared: Prepared, result: Published | PushqError) -> None:
        self._ended()
        if isinstance(result, PushqError):
            self.error(request_id, result)
        elif request_id is not None:
            self._reply(published_ok(request_id, result, prepared.ids, self.encoding))

    def _began(self) -> None:
        self._in_progress += 1
        if self._in_progress == REQUESTS_IN_PROGRESS_MAX:
            self.wire.pause()

    def _ended(self) -> None:
        self._in_progress -= 1
        if self._in_progress == REQUESTS_IN_PROGRESS_MAX // 2:
            self.wire.unpause()

    # ------------------------------------------------------------------------------------------------- receipts

    def _ack(self, frame: Ack) -> None:
        if frame.publish is not None:
            raise _not_yet("/publish", "an ack that publishes")
        queue = self._consumed(frame.queue, frame.receipts)
        if frame.id is None:
            queue.settle_quietly(frame.receipts)
            return
        self._began()
        queue.settle(frame.receipts, partial(self._judged, frame.id, frame.receipts))

    def _nack(self, frame: Nack) -> None:
        queue = self._consumed(frame.queue, frame.receipts)
        if not 0 <= frame.delay_ms <= DELAY_MS_MAX:
            raise _field("/delay_ms", f"delay_ms is {frame.delay_ms}; it goes from 0 to {DELAY_MS_MAX}")
        self._began()
        queue.give_back(frame.receipts, frame.delay_ms, partial(self._judged, frame.id, frame.receipts))

    def _extend(self, frame: Extend) -> None:
        queue = self._consumed(frame.queue, frame.receipts)
        visibility_ms = checked_visibility(frame.visibility_timeout_ms)
        verdicts = queue.extend(frame.receipts, visibility_ms)
        self._began()
        self._judged(frame.id, frame.receipts, verdicts)

    def _consumed(self, name: str, receipts: list[str]) -> Queue:
        assert self.principal is not None
        queue = self.hub.desk.queue(self.principal, name, "consume")
        if len(receipts) > RECEIPTS_PER_REQUEST_MAX:
            raise _field("/receipts", f"{len(receipts)} receipts; a request takes {RECEIPTS_PER_REQUEST_MAX}")
        if queue.config.kind == "stream":
            raise InvalidRequest(f"queue {name!r} is a stream: without a group its messages have no receipts")
        return queue

    def _judged(self, request_id: RequestId, receipts: list[str], verdicts: list[Verdict] | PushqError) -> None:
        self._ended()
        if isinstance(verdicts, PushqError):
            self.error(request_id, verdicts)
        elif request_id is not None:
            self._reply(encode(results_ok(request_id, receipts, verdicts), self.encoding))

    # ---------------------------------------------------------------------------------------------- subscriptions

    def _subscribe(self, frame: Subscribe) -> None:
        assert self.principal is not None
        queue = self.hub.desk.queue(self.principal, frame.queue, "consume")
        if frame.group is not None:
            raise _not_yet("/group", "consumer groups")
        if len(self.subs) >= SUBSCRIPTIONS_PER_SESSION_MAX:
            raise InvalidRequest(f"this session has {SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions, the most there can be")
        if self.hub.draining:
            raise PushqError("the server is shutting down", code="draining")
        if queue.config.kind == "stream":
            self._subscribe_stream(frame, queue)
        else:
            self._subscribe_work(frame, queue)

    def _subscribe_work(self, frame: Subscribe, queue: Queue) -> None:
        if frame.from_ is not None:
            raise _field("/from", "a work queue has no positions: `from` is for streams")
        credit = checked_credit(frame.credit if frame.credit is not None else CREDIT_DEFAULT)
        visibility_ms = queue.config.visibility_timeout_ms
        if frame.visibility_timeout_ms is not None:
            visibility_ms = checked_visibility(frame.visibility_timeout_ms)
        number = self._number()
        sub = WorkSubscription(
            self, number, queue, self.hub.feeder(queue), credit=credit, auto=frame.ack == "auto",
            visibility_ms=visibility_ms, pending_bytes_max=OUTBOX_BYTES_SOFT_MAX,
        )
        self.subs[number] = sub
        queue.consumers += 1
        self.hub.hand_over(self, sub)
        self._ok(frame.id, sub=number, resume="complete")
        sub.grant(credit)

    def _subscribe_stream(self, frame: Subscribe, queue: Queue) -> None:
        for value, name in ((frame.visibility_timeout_ms, "visibility_timeout_ms"),):
            if value is not None:
                raise _field(f"/{name}", f"{name} is for leases, and a stream without a group has none")
        credit = checked_credit(frame.credit) if frame.credit is not None else None
        start = stream_start(queue, frame.from_)
        number = self._number()
        key = "json" if self.encoding == "json" else "msgpack"
        sub = StreamSubscription(self, number, queue, position=start.offset, credit=credit, key=key)
        self.subs[number] = sub
        queue.consumers += 1
        self._ok(frame.id, sub=number, resume=start.outcome)
        if start.missed is not None:
            self._send({"type": "gap", "sub": number, "from": start.missed[0], "to": start.missed[1]})
        if start.outcome == "reset":
            self._send({"type": "reset", "sub": number, "cursor": start.cursor})
        self.fanout(queue).start(sub, self)

    def _number(self) -> int:
        number = self._next_sub
        self._next_sub += 1
        return number

    def _unsubscribe(self, frame: Unsubscribe) -> None:
        self._drop(self._sub(frame.sub))
        self._ok(frame.id)

    def _credit(self, frame: Credit) -> None:
        sub = self._sub(frame.sub)
        credit = checked_credit(frame.n, pointer="/n")
        if isinstance(sub, WorkSubscription):
            sub.grant(min(CREDIT_MAX, sub.credit + credit))
        else:
            self.fanout(sub.queue).allow(sub, credit, self)
        self._ok(frame.id)

    def _sub(self, number: int) -> Subscription:
        sub = self.subs.get(number)
        if sub is None:
            raise _field("/sub", f"this session has no subscription {number}")
        return sub

    def fanout(self, queue: Queue) -> Fanout:
        return self.hub.fanout(queue)

    def _drop(self, sub: Subscription) -> None:
        """Ends a subscription the client no longer wants: what it holds goes back at once."""
        del self.subs[sub.number]
        if isinstance(sub, WorkSubscription):
            sub.stop()
            sub.give_back()
        else:
            self.fanout(sub.queue).stop(sub)
            sub.queue.consumers -= 1

    def end(self, sub: Subscription, error: PushqError) -> None:
        """Ends a subscription because its queue is gone."""
        self._drop(sub)
        self._send({"type": "ended", "sub": sub.number, "problem": problem(error)})

    # ----------------------------------------------------------------------------------------------------- others

    def _refresh(self, frame: Refresh) -> None:
        assert self.principal is not None
        principal = self.hub.desk.identify(frame.token)
        if principal.tenant != self.principal.tenant:
            raise Unauthenticated("the new token belongs to another tenant")
        self.principal = principal
        self._ok(frame.id)

    def _ping(self, frame: Ping) -> None:
        self._send({"type": "pong"} if frame.id is None else {"type": "pong", "id": frame.id})

    def _pong(self, frame: Pong) -> None:
        """Heard: any frame shows that the peer is alive."""

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

    def _reply(self, frame: bytes) -> None:
        self._replies.append(frame)
        if not self._dirty:
            self._dirty = True
            self.hub.flush_soon(self)

    def _send(self, frame: dict[str, Any]) -> None:
        self._reply(encode(frame, self.encoding))

    def _single(self, frame: dict[str, Any]) -> None:
        """A frame that never shares: `connected`, `error`, `bye`. What was said before it goes first."""
        self.flush()
        if not self.closed:
            self.wire.send_frame(encode(frame, self.encoding), self.encoding)

    def _ok(self, request_id: RequestId, **fields: Any) -> None:
        if request_id is not None:
            self._send({"type": "ok", "id": request_id, **fields})

    def error(self, request_id: RequestId, error: PushqError) -> None:
        self._single(
            {"type": "error", "problem": problem(error), **({"id": request_id} if request_id is not None else {})}
        )

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        if number in self.subs:
            self._send({"type": "lost", "sub": number, "receipts": receipts})

    def flush(self) -> None:
        """Writes answers, then messages. Called once a turn of the loop, when there is something to write."""
        self._dirty = False
        if self.closed:
            return
        if self._replies:
            replies, self._replies = self._replies, []
            for part in _cut(replies, REPLY_FRAME_BYTES_MAX):
                self.wire.send_frame(join(part, self.encoding), self.encoding)
        for sub in list(self.subs.values()):
            if type(sub) is WorkSubscription and sub.pending:
                self._deliver(sub)

    def _deliver(self, sub: WorkSubscription) -> None:
        leases = sub.take_pending()
        messages: list[bytes] = []
        for lease in leases:
            if lease.bits:
                messages.extend(leased_messages(lease, self.encoding))
        for part in _cut(messages, DELIVER_FRAME_BYTES_MAX):
            self.wire.send_frame(deliver_frame(sub.number, part, self.encoding), self.encoding)
        self.hub.delivered += len(messages)
        sub.sent(leases)

    # -------------------------------------------------------------------------------------------------------- end

    def resumed_writing(self) -> None:
        """The peer reads again: everybody who waited for room goes on."""
        for sub in self.subs.values():
            if isinstance(sub, WorkSubscription):
                sub.more()
            else:
                self.fanout(sub.queue).start(sub, self)

    def _protocol_error(self, error: PushqError) -> None:
        close = Close.PROTOCOL_ERROR
        self._refuse(None, error, close)

    def _refuse(self, request_id: RequestId, error: PushqError, close: Close) -> None:
        self.error(request_id, error)
        self.close(close, error.detail)

    def close(self, code: int, reason: str) -> None:
        """Closes from our side. Messages in flight wait for a session that may come back, unless the client must not."""
        if not self.closed:
            self.flush()
            self.wire.close(code, reason)
            self.gone(clean=4500 <= code <= 4999)

    def ping(self) -> None:
        if self.wire.is_writable:
            self.wire.write(self.hub.ping_frame(self.encoding))

    def bye(self, retry_ms: int) -> None:
        self._single({"type": "bye", "code": int(Close.DRAIN), "reason": "the server is shutting down", "retry_ms": retry_ms})
        self.close(Close.DRAIN, "the server is shutting down")

    def gone(self, *, clean: bool) -> None:
        """The socket is closed. Cleanly: leases return at once. Cut: they wait for the session to come back."""
        if self.closed:
            return
        self.closed = True
        self.hub.closed(self, clean=clean)


_HANDLERS: dict[type, Callable[..., None]] = {
    Connect: Session._connect_again,
    Subscribe: Session._subscribe,
    Unsubscribe: Session._unsubscribe,
    Credit: Session._credit,
    Ack: Session._ack,
    Nack: Session._nack,
    Extend: Session._extend,
    Refresh: Session._refresh,
    Ping: Session._ping,
    Pong: Session._pong,
}


def results_ok(request_id: RequestId, receipts: list[str], verdicts: list[Verdict]) -> dict[str, Any]:
    return {"type": "ok", "id": request_id, "results": results(receipts, verdicts)}


def results(receipts: list[str], verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """One row a receipt, as HTTP and WebSocket both answer."""
    return [
        {"receipt": receipt, "ok": True} if verdict.ok else {"receipt": receipt, "ok": False, "error": verdict.error}
        for receipt, verdict in zip(receipts, verdicts, strict=True)
    ]


def checked_credit(credit: int, *, pointer: str = "/credit") -> int:
    if not 1 <= credit <= CREDIT_MAX:
        raise _field(pointer, f"credit is {credit}; it goes from 1 to {CREDIT_MAX}")
    return credit


def checked_visibility(visibility_ms: int) -> int:
    if not 0 <= visibility_ms <= VISIBILITY_MS_MAX:
        raise _field(
            "/visibility_timeout_ms", f"visibility_timeout_ms is {visibility_ms}; it goes from 0 to {VISIBILITY_MS_MAX}"
        )
    return visibility_ms


def _check_id(request_id: RequestId) -> None:
    if isinstance(request_id, str) and len(request_id) > REQUEST_ID_CHARS_MAX:
        raise _field("/id", f"an id of {len(request_id)} characters; it may have {REQUEST_ID_CHARS_MAX}")


def _field(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, errors=(FieldError(pointer, detail),))


def _not_yet(pointer: str, what: str) -> InvalidRequest:
    return _field(pointer, f"this version does not have {what} yet")


def _cut(parts: list[bytes], size_max: int) -> list[list[bytes]]:
    """Groups encoded parts so that each group stays below a size; a part that is bigger stands alone."""
    if sum(map(len, parts)) <= size_max:
        return [parts] if parts else []
    groups: list[list[bytes]] = []
    size = 0
    for part in parts:
        if not groups or size + len(part) > size_max:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += len(part)
    return groups


__all__ = ["Lease", "Session", "checked_credit", "checked_visibility", "results"]
