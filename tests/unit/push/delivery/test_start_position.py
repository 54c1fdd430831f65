"""Where a stream's reader wants to begin, as its request says it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.cursor import encode_cursor
from backend_store.model import InvalidRequest
from push.delivery.start_position import parse_query, stream_start
from tests.support.world import REPLICA, START_MS, World, queue_of

WORLD = World(kind="stream")
WORLD.stored(b"1", b"2", b"3")
QUEUE: Any = queue_of(WORLD)
AFTER = "2033-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("wanted", "offset"),
    [
        (None, 3),
        ("latest", 3),
        ("earliest", 0),
        ({"seq": 0}, 0),
        ({"seq": 2}, 2),
        ({"seq": 99}, 3),
        ({"cursor": encode_cursor(1, 1, uid=REPLICA)}, 1),
        ({"time": "2000-01-01T00:00:00Z"}, 0),
        ({"time": "2000-01-01T00:00:00+02:00"}, 0),
        ({"time": AFTER}, 3),
        ({"time": "0001-01-01T00:00:00Z"}, 0),
    ],
)
def test_each_form_of_a_start_is_understood(wanted: Any, offset: int) -> None:
    assert START_MS < 1_988_150_400_000
    assert stream_start(QUEUE, wanted).places == {0: offset}


@pytest.mark.parametrize(
    "wanted",
    [
        "", "first", 5, True, [], {}, {"seq": -1}, {"seq": 1.5}, {"seq": "1"}, {"seq": True}, {"seq": None},
        {"cursor": 5}, {"cursor": ""}, {"time": 5}, {"time": ""}, {"time": "noon"}, {"time": "2000-01-01T00:00:00"},
        {"seq": 1, "time": AFTER}, {"offset": 1}, {"time": "2000-13-01T00:00:00Z"},
    ],
)  # fmt: skip
def test_what_is_no_start_is_refused_at_its_place(wanted: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        stream_start(QUEUE, wanted)
    assert refused.value.errors[0].pointer.startswith("/from")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, None),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("seq:42", {"seq": 42}),
        ("time:2026-11-21T10:00:00Z", {"time": "2026-11-21T10:00:00Z"}),
        ("cursor:abc", {"cursor": "abc"}),
    ],
)
def test_an_address_says_the_same_in_its_own_words(text: str | None, wanted: Any) -> None:
    assert parse_query(text) == wanted


@given(st.text(max_size=30))
def test_any_text_of_an_address_is_a_start_or_refused(text: str) -> None:
    try:
        found = stream_start(QUEUE, parse_query(text))
    except InvalidRequest:
        return
    assert 0 <= found.places[0] <= 3


@pytest.mark.parametrize("text", ["seq:-1", "seq:٣", "seq:" + "9" * 30, "seq:", "seq:1.5", "x", "", ":"])
def test_an_address_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        stream_start(QUEUE, parse_query(text))
