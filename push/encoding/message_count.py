"""Counts the messages of a request or frame before they are decoded: counting costs less than decoding."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from backend_store.model import MESSAGES_PER_REQUEST_MAX, InvalidRequest
from push.limits import COUNTED_BYTES_MIN, COUNTED_OBJECTS_MIN
from push.operations.checks import field
from push.ports import Encoding

ACK_PUBLISHES: Final = "/publish"


class _TooMany(Exception):
    """Ends the decoding once the limit is passed."""


class _Tally:
    """Messages of the object that is being decoded."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, pointer: str) -> None:
        self.count += 1
        if self.count > MESSAGES_PER_REQUEST_MAX:
            raise _TooMany(pointer)


_tally: Final = _Tally()


class _Message(msgspec.Struct, gc=False):
    def __post_init__(self) -> None:
        _tally.add("/messages")


class _Attached(msgspec.Struct, gc=False):
    """A message that an ack publishes."""

    def __post_init__(self) -> None:
        _tally.add(ACK_PUBLISHES)


class _Part(msgspec.Struct, gc=False):
    messages: list[_Attached] = []


class _Whole(msgspec.Struct, gc=False):
    """A request, or one object of a frame."""

    messages: list[_Message] = []
    publish: list[_Part] | None = None

    def __post_init__(self) -> None:
        _tally.count = 0


_json_whole: Final = msgspec.json.Decoder(_Whole | list[_Whole])
_pack_whole: Final = msgspec.msgpack.Decoder(_Whole | list[_Whole])
_json_events: Final = msgspec.json.Decoder(list[_Message])


def check_messages(data: bytes, encoding: Encoding) -> None:
    """Raises `InvalidRequest` where an object of a request or frame holds more messages than one may."""
    _check(data, encoding, _json_whole if encoding == "json" else _pack_whole)


def check_events(data: bytes) -> None:
    """`check_messages` for a list that holds the messages themselves, as a batch of CloudEvents does."""
    _check(data, "json", _json_events)


def _check(data: bytes, encoding: Encoding, decoder: Any) -> None:
    # Most are too short to hold too many messages, or have too few objects.
    if len(data) < COUNTED_BYTES_MIN or (encoding == "json" and data.count(b"{") < COUNTED_OBJECTS_MIN):
        return
    _tally.count = 0
    try:
        decoder.decode(data)
    except _TooMany as found:
        raise _refusal(str(found)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # the decoding that follows says what is wrong


def _refusal(pointer: str) -> InvalidRequest:
    whose = "an ack can publish" if pointer == ACK_PUBLISHES else "a request can have"
    return field(pointer, f"too many messages; {whose} at most {MESSAGES_PER_REQUEST_MAX}")
