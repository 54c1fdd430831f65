"""Frames between two roles on one WebSocket: MessagePack arrays, requests with numbers and time budgets.

The side that connects sends `Hello` first and gets one back; then requests and answers go in any order. A budget is how
long the caller will wait: a request whose budget is over when its turn comes is not begun. A `Watch` is answered by
`Told` frames for as long as the connection lives.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backend_store.model import Conflict, InvalidRequest, NotFound, Overloaded, PushqError, QueueNotFound, Unavailable

WIRE_VERSION = 1
"""Changes when frames or operations change so that the version before would not understand them: see
`wire.versions`."""
PROTOCOL = "the protocol of servers and the metadata service"
SUBPROTOCOL = "pushq.wire.v1"
"""The same in all versions."""
FRAME_BYTES_MAX = 4 * 1024 * 1024


class _Frame(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """The first element is the frame's name."""


class Hello(_Frame, frozen=True, tag="hello"):
    """The protocol version and the role of this side."""

    version: int
    role: str
    zone: str = ""
    """Its zone, if it has one."""


class Ask(_Frame, frozen=True, tag="ask"):
    """A request. `what` is one of the operations of the service behind the socket, as its own bytes."""

    number: int
    budget_ms: int
    what: msgspec.Raw
    trace: str | None = None
    """The trace that the request belongs to. An older service ignores it."""


class Answer(_Frame, frozen=True, tag="answer"):
    number: int
    value: msgspec.Raw


class Refused(_Frame, frozen=True, tag="refused"):
    number: int
    code: str
    detail: str
    retry_after_ms: int | None = None


class Watch(_Frame, frozen=True, tag="watch"):
    """Asks for all changes after a moment; the service defines what a moment is."""

    after: msgspec.Raw


class Told(_Frame, frozen=True, tag="told"):
    news: msgspec.Raw


FromClient = Hello | Ask | Watch
FromServer = Hello | Answer | Refused | Told

pack = msgspec.msgpack.Encoder().encode
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


def from_client(data: str | bytes) -> FromClient:
    """Raises `InvalidRequest`."""
    try:
        return _from_client.decode(_binary(data))
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is no frame of a client: {error}") from None


def from_server(data: str | bytes) -> FromServer:
    """Raises `InvalidRequest`."""
    try:
        return _from_server.decode(_binary(data))
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is no frame of a server: {error}") from None


def _binary(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise InvalidRequest("roles speak in binary frames, and this one is text")
    return data


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(pack(value))


def refused(number: int, error: PushqError) -> Refused:
    return Refused(number, error.code, error.detail, error.retry_after_ms)


_KINDS: dict[str, type[PushqError]] = {
    kind.code: kind for kind in (Conflict, NotFound, QueueNotFound, Overloaded, Unavailable)
}


def error_of(frame: Refused) -> PushqError:
    """The error that the other side raised, as the type that callers here catch."""
    kind = _KINDS.get(frame.code, PushqError)
    return kind(frame.detail, code=frame.code, retry_after_ms=frame.retry_after_ms)
