"""Messages are counted before they are decoded: too many cost no more than as many as a request takes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from backend_store.model import MESSAGES_PER_REQUEST_MAX, InvalidRequest
from push.encoding import message_count
from push.encoding.message_count import check_events, check_messages
from push.limits import COUNTED_BYTES_MIN, COUNTED_OBJECTS_MIN
from push.ports import Encoding

PADDING = "x" * COUNTED_BYTES_MIN
MANY = MESSAGES_PER_REQUEST_MAX
NESTED: list[Any] = [{"body": [{}] * (COUNTED_OBJECTS_MIN // MANY)}] * MANY
"""As many messages as a request takes, with objects enough to be counted."""


def encoded(value: Any, encoding: Encoding) -> bytes:
    return msgspec.json.encode(value) if encoding == "json" else msgspec.msgpack.encode(value)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"messages": [{}] * 200_000}, "/messages"),
        ({"type": "publish", "queue": "q", "messages": [*NESTED, {}], "more": PADDING}, "/messages"),
        ([{"type": "publish", "messages": NESTED}, {"messages": [*NESTED, {}], "more": PADDING}], "/messages"),
        ({"receipts": [], "publish": [{"messages": NESTED}, {"messages": [{}]}], "more": PADDING}, "/publish"),
    ],
)
def test_too_many_messages_are_refused_by_their_number(given: Any, pointer: str, encoding: Encoding) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MANY}") as refused:
        check_messages(encoded(given, encoding), encoding)
    assert [each.pointer for each in refused.value.errors] == [pointer]


def test_the_decoder_stops_at_the_first_message_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest):
        check_messages(b'{"messages":[' + b"{}," * 5_000_000 + b"{}]}", "json")
    assert message_count._tally.count == MANY + 1


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(
    "given",
    [
        {"messages": NESTED, "more": PADDING},
        [{"messages": NESTED, "more": PADDING}] * 3,
        {"publish": [{"messages": NESTED[:500]}, {"messages": NESTED[500:]}], "more": PADDING},
        {"messages": {"a": 1}, "more": [PADDING, *NESTED]},
        {"messages": None, "more": [PADDING, *NESTED]},
        ["no object", PADDING, *NESTED],
    ],
)
def test_what_is_within_the_limit_or_no_list_of_messages_is_left_to_the_decoder(given: Any, encoding: Encoding) -> None:
    for _ in range(2):  # what one left behind is not counted for the next
        check_messages(encoded(given, encoding), encoding)


@pytest.mark.parametrize("data", [b"[" * COUNTED_BYTES_MIN + b"{" * COUNTED_OBJECTS_MIN, b'{"messages":[{' * 10_000])
def test_what_does_not_parse_is_left_to_the_decoder(data: bytes) -> None:
    check_messages(data, "json")
    check_messages(data, "msgpack")


def test_a_batch_of_events_is_counted_as_messages_are() -> None:
    event = {"data": [{}] * (COUNTED_OBJECTS_MIN // MANY), "more": "x" * 200}
    check_events(json.dumps([event] * MANY).encode())
    with pytest.raises(InvalidRequest, match=f"at most {MANY}"):
        check_events(json.dumps([event] * (MANY + 1)).encode())
