"""What `publish` makes of text and bytes, and the line that shows a message."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.consume import Transport, parse_start
from gateway.commands.group import parse_position
from gateway.commands.messages import as_body, as_line, parse_headers
from gateway.commands.moments import duration_ms

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_json_is_sent_as_its_value(value: Any) -> None:
    assert as_body(json.dumps(value).encode() + b"\n") == value


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"hello", "hello"),
        (b"hello\n", "hello"),
        (b"hello\r\n", "hello"),
        (b"two\nlines\n", "two\nlines"),
        (b"", ""),
        (b"NaN", "NaN"),
        (b"{broken", "{broken"),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_what_is_no_json_stays_text_and_what_is_no_text_stays_bytes(raw: bytes, body: str | bytes) -> None:
    assert as_body(raw) == body


def test_text_that_begins_as_json_does_is_doubted_and_no_other() -> None:
    doubts: list[str] = []
    for raw in (b'{"a": 1', b" [1, 2", b"[NaN]", b"[" * 100_000):
        assert as_body(raw, doubt=doubts.append) == raw.decode()
    assert len(doubts) == 4 and "line 1 column 8" in doubts[0]
    for raw in (b"hello", b"[1]", b"{}", b"", b"\xff{"):
        as_body(raw, doubt=doubts.append)
    as_body(b"{", is_text=True, doubt=doubts.append)
    as_body(b"{", is_verbatim=True, doubt=doubts.append)
    assert len(doubts) == 4


def test_text_can_be_kept_from_being_read_as_json() -> None:
    assert as_body(b"42", is_text=True) == "42"
    assert as_body(b"42") == 42


def test_bytes_under_a_content_type_are_sent_as_they_are() -> None:
    assert as_body(b"a,b\n", is_verbatim=True) == b"a,b\n"


def test_headers_are_pairs_and_the_value_may_hold_an_equals_sign() -> None:
    assert parse_headers(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert parse_headers([]) is None
    with pytest.raises(click.BadParameter):
        parse_headers(["=1"])


def test_line_shows_what_is_known_of_a_message() -> None:
    pushed = {"seq": 7, "id": "m-1", "attempt": 2, "key": "ann", "body": {"ü": [1, None]}}
    assert as_line(pushed) == '7 m-1 attempt=2 key=ann {"ü":[1,null]}'
    peeked = {"seq": 8, "id": "m-2", "state": "ready", "key": None, "body_base64": "/w==", "content_type": "image/png"}
    assert as_line(peeked) == "8 m-2 state=ready image/png;base64,/w=="
    assert as_line({"seq": 9, "id": "m-3", "state": "ready"}).startswith("9 m-3 state=ready (body hidden")


def test_message_is_always_one_line() -> None:
    assert "\n" not in as_line({"seq": 1, "id": "m", "attempt": 1, "body": "two\nlines"})


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (None, None),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("seq:42", {"seq": 42}),
        ("time:2026-01-01T00:00:00Z", {"time": "2026-01-01T00:00:00Z"}),
        ("cursor:AbC", {"cursor": "AbC"}),
    ],
)
def test_start_of_a_stream_is_said_as_the_api_says_it(text: str | None, start: object) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "now", "seq:", "seq:-1", "seq:1.5", "seq:1e4", "seq:1_0", "seq:٣", "offset:1"])
def test_unknown_start_of_a_stream_is_refused(text: str) -> None:
    for parse in (parse_start, parse_position):
        with pytest.raises(click.BadParameter):
            parse(text)


@pytest.mark.parametrize("text", ["٣s", "1_0s", "1e4", "+5", "-5", " 5"])
def test_a_duration_is_of_plain_digits(text: str) -> None:
    assert duration_ms(text) is None


def test_transports_have_the_names_of_the_clients_and_their_earlier_ones() -> None:
    convert = Transport().convert
    names = ("ws", "sse", "poll", "websocket", "longpoll")
    assert [convert(name, None, None) for name in names] == ["ws", "sse", "poll", "ws", "poll"]
    with pytest.raises(click.BadParameter, match="'ws', 'sse', 'poll'"):
        convert("pigeon", None, None)
