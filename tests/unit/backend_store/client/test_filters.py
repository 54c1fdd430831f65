"""Which messages of a chunk a peek's filters choose."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.client.filters import PeekFilter, matching
from backend_store.core.log.chunk import KIND_BYTES, KIND_JSON, Chunk, Draft, message_id
from tests.support.world import World

ALL = -1


def chunk_of(*drafts: Draft) -> Chunk:
    world = World()
    world.publish_drafts(drafts)
    world.commit()
    chunk = world.partition.read(0)
    assert chunk is not None
    return chunk


def chosen(chunk: Chunk, **wanted: Any) -> list[int]:
    bits = matching(chunk, (1 << chunk.count) - 1, PeekFilter(**wanted))
    return [index for index in range(chunk.count) if bits >> index & 1]


@pytest.fixture
def chunk() -> Chunk:
    return chunk_of(
        Draft(KIND_JSON, b'"one"', {"id": "a", "key": "k", "headers": {"h": "1", "i": "2"}}),
        Draft(KIND_JSON, b'"two"', {"key": "k", "headers": {"h": "2"}}),
        Draft(KIND_BYTES, b"one\xff", None),
        Draft(KIND_JSON, b'"tw\\u00f6"', {"id": "b", "key": "l"}),
    )


def test_without_a_filter_all_are_chosen(chunk: Chunk) -> None:
    assert chosen(chunk) == [0, 1, 2, 3]


def test_only_those_asked_about_are_chosen(chunk: Chunk) -> None:
    assert matching(chunk, 0b1110, PeekFilter(key="k")) == 0b0010


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"id": "a"}, [0]),
        ({"id": message_id(0, 1)}, [1]),
        ({"id": message_id(0, 0)}, []),  # the message there has an id of its own
        ({"id": message_id(1, 1)}, []),  # a place in another partition
        ({"id": "nobody's"}, []),
        ({"key": "k"}, [0, 1]),
        ({"key": "k", "id": "b"}, []),
        ({"headers": {"h": "1"}}, [0]),
        ({"headers": {"h": "2", "i": "2"}}, []),
        ({"headers": {"i": "2", "h": "1"}}, [0]),
        ({"contains": "one"}, [0, 2]),
        ({"contains": '"one"'}, [0]),
        ({"contains": "twö"}, [3]),
        ({"contains": "three"}, []),
        ({"contains": ""}, [0, 1, 2, 3]),
    ],
)
def test_each_filter_chooses_what_it_says(chunk: Chunk, wanted: dict[str, Any], found: list[int]) -> None:
    assert chosen(chunk, **wanted) == found


def test_times_are_those_of_publishing_even_for_messages_that_were_moved() -> None:
    chunk = chunk_of(Draft(KIND_JSON, b"1", {"at": 500}), Draft(KIND_JSON, b"2", None))
    now = chunk.time_ms
    assert chosen(chunk, since_ms=501) == [1]
    assert chosen(chunk, until_ms=501) == [0]
    assert chosen(chunk, since_ms=500, until_ms=now + 1) == [0, 1]
    plain = chunk_of(Draft(KIND_JSON, b"1", None), Draft(KIND_JSON, b"2", None))
    assert chosen(plain, since_ms=plain.time_ms) == [0, 1]
    assert chosen(plain, until_ms=plain.time_ms) == []


def test_bytes_are_searched_for_the_text_itself_and_not_for_how_json_would_write_it() -> None:
    chunk = chunk_of(Draft(KIND_BYTES, b'say \\"hi\\"', None), Draft(KIND_JSON, b'"say \\"hi\\""', None))
    assert chosen(chunk, contains='"hi"') == [1]
