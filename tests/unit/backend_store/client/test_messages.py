"""A stored message as the public `Message`."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backend_store.client.messages import full_message, message_id, timestamp
from backend_store.core.log.chunk import KIND_BYTES, KIND_JSON, Chunk, Draft
from backend_store.model import Stamp
from tests.support.world import World

NOW_MS = 1_700_000_000_000


@given(st.integers(0, 4_102_444_800_000))
def test_a_time_is_rfc_3339_in_utc_with_milliseconds(time_ms: int) -> None:
    text = timestamp(time_ms)
    assert round(datetime.fromisoformat(text).timestamp() * 1000) == time_ms
    assert text.endswith("Z") and text[-5] == "." and datetime.fromisoformat(text).tzinfo == UTC


def test_a_message_without_an_id_is_named_by_its_place() -> None:
    assert message_id(0, 300) == "0-00000000012c"


def test_a_message_that_is_only_a_body_has_the_usual_rest() -> None:
    world = World()
    world.stored(b'{"a": 1}')
    chunk = world.partition.read(world.partition.state.floor)  # type: ignore[arg-type]
    assert chunk is not None
    assert full_message(chunk, 0) == {
        "id": "0-000000000000",
        "seq": 0,
        "partition": 0,
        "body": msgspec.Raw(b'{"a": 1}'),
        "content_type": "application/json",
        "headers": {},
        "key": None,
        "priority": 0,
        "published_at": "2023-11-14T22:13:20.000Z",
    }


def test_a_message_shows_what_its_producer_gave() -> None:
    columns = {"id": "i", "key": "", "content_type": "text/x", "headers": {"h": "v"}, "reply_to": "r"}
    world = World()
    world.publish_drafts([Draft(KIND_BYTES, b"\0", dict(columns)), Draft(KIND_JSON, b"1", None)])
    world.commit()
    chunk = world.partition.read(world.partition.state.floor)  # type: ignore[arg-type]
    assert chunk is not None
    first, second = full_message(chunk, 0), full_message(chunk, 1)
    assert first | columns == first and first["body_base64"] == b64encode(b"\0").decode() and "body" not in first
    assert (second["id"], second["key"], second["content_type"]) == ("0-000000000001", None, "application/json")
    assert "reply_to" not in second and "correlation_id" not in second


def chunk_of(*drafts: Draft, **world: Any) -> Chunk:
    made = World(**world)
    made.publish_drafts(drafts)
    made.commit()
    chunk = made.partition.read(made.partition.state.floor)
    assert chunk is not None
    return chunk


def test_a_message_says_what_it_has_only_when_it_has_something() -> None:
    bare = full_message(chunk_of(Draft(KIND_JSON, b"1", None)), 0)
    assert bare.keys().isdisjoint({"expires_at", "ordering", "dead_letter", "reply_to", "correlation_id"})
    chunk = chunk_of(
        Draft(KIND_JSON, b"1", {"late": True}, expires_ms=NOW_MS + 60_000, stamp=Stamp(NOW_MS * 1000 + 7, "p", 1)),
        Draft(KIND_JSON, b"2", None),
        Draft(KIND_JSON, b"3", {"late": True}),
    )
    first, second, third = (full_message(chunk, n) for n in range(3))
    assert first["expires_at"] == "2023-11-14T22:14:20.000Z"
    assert first["ordering"] == {"timestamp": "2023-11-14T22:13:20.000007Z", "late": True}
    assert second.keys() == bare.keys()
    assert third["ordering"] == {"timestamp": None, "late": True} and "expires_at" not in third


def test_a_dead_letter_says_where_it_was_why_it_ended_and_what_was_tried() -> None:
    history = [[1, NOW_MS + 5, "nacked", "no stock"]]
    dead = {"from": "q", "reason": "expired", "at": NOW_MS, "attempts": 1, "history": history, "priority": 4}
    message = full_message(chunk_of(Draft(KIND_JSON, b"1", {"dead": dead, "at": NOW_MS - 1_000})), 0)
    assert message["dead_letter"] == {
        "from": "q",
        "reason": "expired",
        "at": "2023-11-14T22:13:20.000Z",
        "attempts": 1,
        "history": [{"attempt": 1, "at": "2023-11-14T22:13:20.005Z", "outcome": "nacked", "reason": "no stock"}],
    }
    assert (message["priority"], message["published_at"]) == (4, "2023-11-14T22:13:19.000Z")


def test_a_messages_priority_is_that_of_its_shelf_and_its_place_that_of_its_partition() -> None:
    chunk = chunk_of(Draft(KIND_JSON, b"1", None))
    chunk.shelf, chunk.partition = 7, 3
    message = full_message(chunk, 0)
    assert (message["priority"], message["partition"], message["id"]) == (7, 3, "3-000000000000")
