"""The frames of the WebSocket protocol as small structs, and the codecs between them and bytes.

The HTTP transports pass the same frames to the core, so every rule about them is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from push.client.errors import Problem
from push.client.model import AckMode, Encoding, Outgoing

FRAME_BYTES_TARGET = 1024 * 1024

_FIXMAP = 0x80
"""MessagePack's map of up to 15 fields: one byte, then the fields."""
_FIXMAP_COUNT = 0x0F


class ClientFrame(msgspec.Struct, omit_defaults=True, kw_only=True, tag_field="type"):
    """A frame that the client sends."""


class Resume(msgspec.Struct, frozen=True):
    """The session to resume."""

    session: str


class Connect(ClientFrame, tag="connect"):
    id: int
    token: str | None = None
    resume: Resume | None = None


class Subscribe(ClientFrame, tag="subscribe"):
    id: int
    queue: str
    credit: int | None = None
    ack: AckMode | None = None
    group: str | None = None
    start: Any = msgspec.field(default=None, name="from")
    visibility_timeout_ms: int | None = None
    attempts: str | None = None


class Begin(ClientFrame, tag="begin"):
    """A handler has begun with these messages. No id: the client does not wait for the answer."""

    sub: int
    receipts: Sequence[str]


class Unsubscribe(ClientFrame, tag="unsubscribe"):
    id: int
    sub: int


class Credit(ClientFrame, tag="credit"):
    sub: int
    n: int


class Publish(ClientFrame, tag="publish"):
    id: int
    queue: str
    messages: Sequence[msgspec.Raw]
    idempotency_key: str | None = None
    timeout_ms: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class PublishPart(msgspec.Struct, frozen=True):
    """Messages that an ack publishes to one queue."""

    queue: str
    messages: Sequence[msgspec.Raw]


class Ack(ClientFrame, tag="ack"):
    id: int
    queue: str
    receipts: Sequence[str]
    sub: int | None = None
    publish: Sequence[PublishPart] | None = None


class Nack(ClientFrame, tag="nack"):
    id: int
    queue: str
    receipts: Sequence[str]
    sub: int | None = None
    delay_ms: int | None = None
    reason: str | None = None
    tried: bool = True


class Extend(ClientFrame, tag="extend"):
    id: int
    queue: str
    receipts: Sequence[str]
    visibility_timeout_ms: int
    sub: int | None = None


class Refresh(ClientFrame, tag="refresh"):
    """A newer token. No id: the client does not wait for the answer."""

    token: str


class Ping(ClientFrame, tag="ping"):
    pass


class Pong(ClientFrame, tag="pong"):
    pass


class WireMessage(msgspec.Struct, frozen=True):
    """A `Message` of the API. `body` and `body_base64` exclude each other."""

    id: str
    seq: int = 0
    partition: int = 0
    body: Any = None
    body_base64: str | None = None
    content_type: str = "application/json"
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0
    attempt: int = 1
    published_at: str = ""
    expires_at: str | None = None
    receipt: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    ordering: dict[str, Any] | None = None
    producer: str | None = None
    producer_seq: int | None = None
    dead_letter: dict[str, Any] | None = None


class UnreadMessage(msgspec.Struct, frozen=True):
    """The fields other than the body of a message that could not be decoded, and why it could not."""

    id: str
    seq: int = 0
    partition: int = 0
    receipt: str | None = None
    why: str = ""


class PublishedItem(msgspec.Struct, frozen=True):
    """One message's part of a publish answer: either `error` or `seq`. For a duplicate by number, the server may have
    forgotten both the place and the id."""

    id: str | None = None
    seq: int | None = None
    partition: int = 0
    duplicate: bool = False
    error: Problem | None = None


class SettleResult(msgspec.Struct, frozen=True):
    """One receipt's part of an ack, nack or extend answer."""

    receipt: str
    ok: bool
    error: Any = None


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A frame that the server sends. Fields and types unknown to this version are skipped."""


class ConnectedFrame(ServerFrame, frozen=True, tag="connected"):
    session: str
    id: int | str | None = None
    ping_ms: int | None = None


class Ok(ServerFrame, frozen=True, tag="ok"):
    id: int | str
    sub: int | None = None
    resume: str | None = None
    cursor: str | None = None
    visibility_timeout_ms: int | None = None
    mode: str | None = None
    ordering: str | None = None
    retry_backoff_ms: int | None = None
    messages: list[PublishedItem] | None = None
    sequencing: str | None = None
    dedupe: str | None = None
    results: list[SettleResult] | None = None


class Error(ServerFrame, frozen=True, tag="error"):
    problem: Problem
    id: int | str | None = None


class Deliver(ServerFrame, frozen=True, tag="deliver"):
    sub: int
    messages: list[WireMessage]
    cursor: str | None = None
    unread: list[UnreadMessage] = []
    """Set by this client, never by the server."""


class _Parts(ServerFrame, frozen=True, tag="deliver"):
    """A `deliver` whose messages are decoded one by one."""

    sub: int
    messages: list[msgspec.Raw]
    cursor: str | None = None


class _Kind(msgspec.Struct):
    type: str


class GapFrame(ServerFrame, frozen=True, tag="gap"):
    sub: int
    start: Any = msgspec.field(default=None, name="from")
    end: Any = msgspec.field(default=None, name="to")
    partition: int | None = None


class ResetFrame(ServerFrame, frozen=True, tag="reset"):
    sub: int
    cursor: str | None = None


class LostFrame(ServerFrame, frozen=True, tag="lost"):
    receipts: list[str]
    sub: int | None = None


class Ended(ServerFrame, frozen=True, tag="ended"):
    sub: int
    problem: Problem


class Bye(ServerFrame, frozen=True, tag="bye"):
    code: int = 4000
    reason: str = ""
    retry_ms: int = 0


class ServerPing(ServerFrame, frozen=True, tag="ping"):
    pass


class ServerPong(ServerFrame, frozen=True, tag="pong"):
    pass


AnyServerFrame = (
    ConnectedFrame | Ok | Error | Deliver | GapFrame | ResetFrame | LostFrame | Ended | Bye | ServerPing | ServerPong
)
AnyClientFrame = (
    Connect | Subscribe | Begin | Unsubscribe | Credit | Publish | Ack | Nack | Extend | Refresh | Ping | Pong
)

_TYPES = frozenset({"connected", "ok", "error", "deliver", "gap", "reset", "lost", "ended", "bye", "ping", "pong"})


class UnreadableFrame(Exception):
    """Bytes that are no frame of this protocol: the connection cannot be trusted any more."""


class Codec:
    """One encoding: JSON text or MessagePack bytes."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.subprotocol = f"pushq.v1.{encoding}"
        self.is_text = encoding == "json"
        frames = AnyServerFrame | list[AnyServerFrame]
        self._encode: Callable[[Any], bytes]
        self._decode: Callable[[bytes | str], Any]
        self._decode_as: Callable[..., Any]
        if encoding == "json":
            self._encode = msgspec.json.Encoder().encode
            self._decode = msgspec.json.Decoder(frames).decode
            self._decode_as = msgspec.json.decode
        else:
            self._encode = msgspec.msgpack.Encoder().encode
            self._decode = msgspec.msgpack.Decoder(frames).decode  # type: ignore[assignment]
            self._decode_as = msgspec.msgpack.decode

    def message(self, message: Outgoing) -> msgspec.Raw:
        """Encodes a message, once: its size is known, and a repeat after a reconnect costs nothing."""
        if self.is_text and isinstance(message.body, bytes | bytearray | memoryview):
            fields = msgspec.structs.asdict(message)
            fields["body_base64"] = fields.pop("body")  # msgspec writes bytes as base64
            given = {name: value for name, value in fields.items() if value is not None}
            return msgspec.Raw(self._encode(given))
        return msgspec.Raw(self._encode(message))

    def add_fields(self, message: msgspec.Raw, fields: Mapping[str, Any]) -> msgspec.Raw:
        """Appends fields to an encoded message: those that are known only when it is sent."""
        own, more = bytes(message), self._encode(fields)
        if self.is_text:
            return msgspec.Raw(own[:-1] + b"," + more[1:])
        count = (own[0] & _FIXMAP_COUNT) + len(fields)
        assert own[0] & ~_FIXMAP_COUNT == _FIXMAP and count <= _FIXMAP_COUNT, "a message has too few fields"
        return msgspec.Raw(bytes((_FIXMAP | count,)) + own[1:] + more[1:])

    def pack(self, frames: Sequence[AnyClientFrame]) -> list[bytes]:
        """Packs frames into as few socket messages as possible: arrays of up to 1 MiB, a single frame as a plain
        object."""
        packed: list[bytes] = []
        batch: list[bytes] = []
        size = 0
        for frame in frames:
            encoded = self._encode(frame)
            if batch and size + len(encoded) > FRAME_BYTES_TARGET:
                packed.append(self._array(batch))
                batch, size = [], 0
            batch.append(encoded)
            size += len(encoded)
        if batch:
            packed.append(self._array(batch))
        return packed

    def _array(self, encoded: list[bytes]) -> bytes:
        return encoded[0] if len(encoded) == 1 else self._encode([msgspec.Raw(frame) for frame in encoded])

    def unpack(self, data: bytes | str) -> list[AnyServerFrame]:
        """The frames in one socket message; skips types of a later version. Raises `UnreadableFrame`."""
        try:
            frames = self._decode(data)
        except msgspec.ValidationError:
            return self._one_by_one(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableFrame(f"not {self.encoding}: {error}") from error
        return frames if isinstance(frames, list) else [frames]

    def message_of(self, data: bytes | str | msgspec.Raw) -> WireMessage | UnreadMessage:
        """Decodes one message by itself, so that others are delivered beside a body that cannot be decoded."""
        try:
            found: WireMessage = self._decode_as(data, type=WireMessage)
        except (msgspec.MsgspecError, RecursionError) as error:
            beside: UnreadMessage = self._decode_as(data, type=UnreadMessage)  # skips the body
            return msgspec.structs.replace(beside, why=str(error))
        return found

    def messages_of(self, parts: Sequence[msgspec.Raw]) -> tuple[list[WireMessage], list[UnreadMessage]]:
        """The messages that can be decoded, and the others."""
        found = [self.message_of(part) for part in parts]
        read = [one for one in found if isinstance(one, WireMessage)]
        return read, [one for one in found if isinstance(one, UnreadMessage)]

    def _one_by_one(self, data: bytes | str) -> list[AnyServerFrame]:
        try:
            frames = [self._frame(raw) for raw in self._raw_frames(data)]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UnreadableFrame(f"not a frame of {self.subprotocol}: {error}") from error
        return [frame for frame in frames if frame is not None]

    def _raw_frames(self, data: bytes | str) -> list[msgspec.Raw]:
        try:
            frames: list[msgspec.Raw] = self._decode_as(data, type=list[msgspec.Raw])
        except msgspec.ValidationError:
            return [msgspec.Raw(data)]
        return frames

    def _frame(self, raw: msgspec.Raw) -> AnyServerFrame | None:
        """None for a type that this version does not know."""
        kind = self._decode_as(raw, type=_Kind).type
        if kind not in _TYPES:
            return None
        try:
            frame: AnyServerFrame = self._decode_as(raw, type=AnyServerFrame)
        except msgspec.ValidationError:
            if kind != "deliver":
                raise
            parts = self._decode_as(raw, type=_Parts)
            messages, unread = self.messages_of(parts.messages)
            return Deliver(sub=parts.sub, messages=messages, cursor=parts.cursor, unread=unread)
        return frame
