"""The two subprotocols, as cheaply as a client can speak them: frames built once, responses counted by their bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tests.bench.scale import BODY_BYTES, STAMP_DIGITS

Encoding = Literal["json", "msgpack"]
B = TypeVar("B", str, bytes)

_FILLER = b"x" * (BODY_BYTES - STAMP_DIGITS)
_TEXT, _BINARY = 1, 2


class Delivered(msgspec.Struct, Generic[B], gc=False):
    """The fields of a message that a client uses. A stamped body is a string in JSON and bytes in MessagePack."""

    seq: int
    body: B
    receipt: str | None


class Arrival(msgspec.Struct, Generic[B], gc=False):
    """Any frame from the server, with the fields that a benchmark client uses."""

    type: str
    messages: list[Delivered[B]] = []
    problem: Any = None


_JSON = msgspec.json.Decoder(Arrival[str] | list[Arrival[str]])
_PACK = msgspec.msgpack.Decoder(Arrival[bytes] | list[Arrival[bytes]])
AnyArrival = Arrival[str] | Arrival[bytes]


class Codec:
    """One encoding: how to build its frames, and what to look for in responses."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.subprotocol = f"pushq.v1.{encoding}"
        is_json = encoding == "json"
        self._decode: Callable[[bytes], Any] = _JSON.decode if is_json else _PACK.decode
        self._encode: Callable[[Any], bytes] = _compact if is_json else msgspec.msgpack.Encoder().encode
        self._opcode = _TEXT if is_json else _BINARY
        self.accepted = b'"duplicate":false' if is_json else b"\xa9duplicate\xc2"
        """Occurs once in the response for each stored message."""
        self.message = b'"published_at":' if is_json else b"\xacpublished_at"
        """Occurs once in each delivered message."""
        self.problem = b'"problem":' if is_json else b"\xa7problem"
        self.ping = self._encode({"type": "ping"})
        self.pong = self.frame({"type": "pong"})

    def frame(self, value: Any) -> bytes:
        return client_frame(self._encode(value), self._opcode)

    def arrivals(self, payload: bytes) -> list[AnyArrival]:
        found = self._decode(payload)
        return found if isinstance(found, list) else [found]

    def publish(self, queue: str, count: int, stamp: bytes) -> bytes:
        body = stamp + _FILLER
        value = body.decode() if self.encoding == "json" else body
        return self.frame({"type": "publish", "id": 1, "queue": queue, "messages": [{"body": value}] * count})


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def client_frame(payload: bytes, opcode: int) -> bytes:
    """A complete frame, masked with zeros: RFC 6455 requires a mask, and this one costs the generator nothing."""
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 65536:
        head = bytes([0x80 | opcode, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


CODECS: dict[Encoding, Codec] = {"json": Codec("json"), "msgpack": Codec("msgpack")}


class TokenCounter:
    """Counts a token in a stream of bytes, even if a read splits it."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._tail = b""

    def feed(self, data: bytes) -> int:
        data = self._tail + data
        self._tail = data[-(len(self._token) - 1) :]
        return data.count(self._token)
