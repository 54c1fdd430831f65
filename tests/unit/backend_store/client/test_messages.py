"""A stored message as the public `Message`."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backend_store.client.messages import full_message, message_id, timestamp
from backend_store.core.chunk import KIND_BYTES, KIND_JSON, Draft
from tests.support.world import World


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
