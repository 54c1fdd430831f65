"""The clients of the load: publishers, consumers and readers, written on raw protocols to keep them cheap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from tests.bench.codec import AnyArrival, Codec, TokenCounter, client_frame
from tests.bench.scale import PER_FRAME, STAMP_DIGITS

_UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %b\r\n\r\n"
)
_CLOSE, _PING, _PONG = 8, 9, 10
_SHORT_READ_BYTES = 128
_SHOWN_BYTES = 400


class ClientFailed(Exception):
    """The server refused something, or closed a connection that the benchmark still needs."""


def now_stamp() -> bytes:
    return b"%016x" % time.monotonic_ns()


def age_ns(body: str | bytes, now_ns: int) -> int:
    return now_ns - int(body[:STAMP_DIGITS], 16)


class Client(asyncio.Protocol):
    """One WebSocket: performs the handshake, sends `hello`, and is ready when it has received `awaited`."""

    awaited = b"connected"

    def __init__(self, codec: Codec, port: int, token: str) -> None:
        self.codec = codec
        self.error: Exception | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.port = port
        self._token = token
        self._head = b""
        self._is_open = False
        self._is_closing = False

    def hello(self) -> bytes:
        return self.codec.frame({"type": "connect", "token": self._token})

    def received(self, data: bytes) -> None:
        """Called with the bytes after the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(_UPGRADE % (self.port, self.codec.subprotocol.encode()))

    def data_received(self, data: bytes) -> None:
        if self._is_open and self.ready.done():
            self.received(data)
            return
        self._head += data
        if not self._is_open:
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                self.fail(ClientFailed(f"no upgrade: {self._head[:_SHOWN_BYTES]!r}"))
                return
            self._is_open, self._head = True, rest
            self.transport.write(self.hello())
        self._await_ready()

    def _await_ready(self) -> None:
        if self.codec.problem in self._head:
            self.fail(ClientFailed(f"refused: {self._head[:_SHOWN_BYTES]!r}"))
        elif self.awaited in self._head:
            head, self._head = self._head, b""
            self.ready.set_result(None)
            self.received(head)

    def answer_ping(self, data: bytes) -> None:
        """The server disconnects a client that is silent for half a minute."""
        if len(data) < _SHORT_READ_BYTES and self.codec.ping in data:
            self.transport.write(self.codec.pong)

    def fail(self, error: Exception) -> None:
        if self.error is None and not self._is_closing:
            self.error = error
            self.transport.abort()
        if not self.ready.done():
            self.ready.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closing:
            self.fail(error or ClientFailed("the server closed the connection"))

    def close(self) -> None:
        self._is_closing = True
        self.transport.abort()


class Publisher(Client):
    """Sends messages in frames, and counts those that the server confirms."""

    def __init__(self, codec: Codec, port: int, token: str, *, queue: str, per_frame: int = PER_FRAME) -> None:
        super().__init__(codec, port, token)
        self.sent = 0
        self.acked = 0
        self.on_acked: Callable[[], None] | None = None
        self._queue = queue
        self._per_frame = per_frame
        self._counter = TokenCounter(codec.accepted)
        self._frames: dict[int, bytes] = {}
        one = codec.publish(queue, 1, b"0" * STAMP_DIGITS)
        self._before, _, self._after = one.partition(b"0" * STAMP_DIGITS)

    @property
    def unconfirmed(self) -> int:
        return self.sent - self.acked

    def send(self, count: int) -> None:
        """Sends `count` messages; all frames of a size repeat the time stamps of the first one."""
        self.sent += count
        whole, rest = divmod(count, self._per_frame)
        frames = [self._frame(self._per_frame)] * whole
        if rest:
            frames.append(self._frame(rest))
        self.transport.write(b"".join(frames))

    def _frame(self, count: int) -> bytes:
        frame = self._frames.get(count)
        if frame is None:
            frame = self._frames[count] = self.codec.publish(self._queue, count, now_stamp())
        return frame

    def send_stamped(self) -> None:
        """Sends one message with the current time."""
        self.sent += 1
        self.transport.write(self._before + now_stamp() + self._after)

    def received(self, data: bytes) -> None:
        if self.codec.problem in data:
            self.fail(ClientFailed(f"a publish failed: {data[:_SHOWN_BYTES]!r}"))
            return
        self.answer_ping(data)
        self.acked += self._counter.feed(data)
        if self.on_acked is not None:
            self.on_acked()


class FrameClient(Client):
    """A client that splits what it receives into frames and decodes them."""

    awaited = b"complete"
    """The response to a subscription that starts where it asked to."""
    _rest = b""

    def arrived(self, frame: AnyArrival) -> None:
        """Called with one object from the server."""

    def received(self, data: bytes) -> None:
        data = self._rest + data
        at, size = 0, len(data)
        while size - at >= 2:
            length, start = data[at + 1], at + 2
            if length >= 126:
                extended = 2 if length == 126 else 8
                length, start = int.from_bytes(data[start : start + extended], "big"), start + extended
            if start + length > size:
                break
            self._frame(data[at] & 15, data[start : start + length])
            at = start + length
        self._rest = data[at:]

    def _frame(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self.transport.write(client_frame(payload, _PONG))
        elif opcode == _CLOSE:
            self.fail(ClientFailed(f"the server closed: {payload!r}"))
        else:
            for frame in self.codec.arrivals(payload):
                if frame.problem is not None:
                    self.fail(ClientFailed(f"the server said {frame.problem}"))
                elif frame.type == "ping":
                    self.transport.write(self.codec.pong)
                else:
                    self.arrived(frame)


class Consumer(FrameClient):
    """Receives messages of a work queue, and acks those of each frame together, or each message in its own frame."""

    def __init__(
        self,
        codec: Codec,
        port: int,
        token: str,
        *,
        queue: str,
        credit: int,
        on_messages: Callable[[AnyArrival], None],
        ack_singly: bool = False,
    ) -> None:
        super().__init__(codec, port, token)
        self._queue = queue
        self._credit = credit
        self._on_messages = on_messages
        self._ack_singly = ack_singly
        self._held: list[AnyArrival] | None = None

    def hello(self) -> bytes:
        subscribe = {"type": "subscribe", "id": 7, "queue": self._queue, "credit": self._credit}
        return super().hello() + self.codec.frame(subscribe)

    def pause(self) -> None:
        """Leaves messages unacked from now on, so that credit brings the server to a halt."""
        self._held = []

    def resume(self) -> None:
        held, self._held = self._held or [], None
        for frame in held:
            self.arrived(frame)

    def arrived(self, frame: AnyArrival) -> None:
        if self._held is not None:
            self._held.append(frame)
        elif frame.type == "deliver":
            receipts = [message.receipt for message in frame.messages]
            groups = [[receipt] for receipt in receipts] if self._ack_singly else [receipts]
            acks = [self.codec.frame({"type": "ack", "queue": self._queue, "receipts": group}) for group in groups]
            self.transport.write(b"".join(acks))
            self._on_messages(frame)


class Tally:
    """What all readers of a stream have received in total."""

    def __init__(self) -> None:
        self.count = 0
        self.latencies_ns: list[int] = []
        self.on_data: Callable[[], None] | None = None

    def add(self, count: int) -> None:
        self.count += count
        if count and self.on_data is not None:
            self.on_data()


def _subscribe(codec: Codec, queue: str) -> bytes:
    return codec.frame({"type": "subscribe", "id": 7, "queue": queue})


class Reader(Client):
    """Reads a stream and only counts, so that one core can run hundreds of readers."""

    awaited = b"complete"

    def __init__(self, codec: Codec, port: int, token: str, *, queue: str, tally: Tally) -> None:
        super().__init__(codec, port, token)
        self.count = 0
        self._queue = queue
        self._tally = tally
        self._counter = TokenCounter(codec.message)

    def hello(self) -> bytes:
        return super().hello() + _subscribe(self.codec, self._queue)

    def received(self, data: bytes) -> None:
        found = self._counter.feed(data)
        if not found:
            self.answer_ping(data)
        self.count += found
        self._tally.add(found)


class SamplingReader(FrameClient):
    """Reads a stream message by message, and checks each one's age, uniqueness and order."""

    def __init__(self, codec: Codec, port: int, token: str, *, queue: str, tally: Tally) -> None:
        super().__init__(codec, port, token)
        self.count = 0
        self._queue = queue
        self._tally = tally
        self._last_seq = -1

    def hello(self) -> bytes:
        return super().hello() + _subscribe(self.codec, self._queue)

    def arrived(self, frame: AnyArrival) -> None:
        if frame.type != "deliver":
            return
        now_ns = time.monotonic_ns()
        for message in frame.messages:
            if message.seq <= self._last_seq:
                self.fail(ClientFailed(f"seq {message.seq} came after {self._last_seq}"))
            self._last_seq = message.seq
        self._tally.latencies_ns.extend([age_ns(message.body, now_ns) for message in frame.messages])
        self.count += len(frame.messages)
        self._tally.add(len(frame.messages))
