"""A stream as its readers see it: chunks found from any place, and where a reader begins."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.client import StreamPart, encode_cursor
from backend_store.model import Offset
from tests.support.world import START_MS, World, queue_of


@pytest.fixture
def stream() -> World:
    """Chunks of 1, 200, 1, 3 and 64 messages, a second apart, after 5 that were purged."""
    world = World(kind="stream")
    world.stored(*[b"x"] * 5)
    world.purge()
    world.commit()
    for count in (1, 200, 1, 3, 64):
        world.now_ms += 1000
        world.stored(*[b"1"] * count)
    return world


FIRST = 6
"""Where the first message after the purge stands."""


def part_of(world: World) -> StreamPart:
    [part] = queue_of(world).parts.all
    return part


def test_the_chunk_that_holds_an_offset_is_found_from_any_place_in_it(stream: World) -> None:
    part = part_of(stream)
    bases = [FIRST, FIRST + 1, FIRST + 201, FIRST + 202, FIRST + 205]
    for base, count in zip(bases, (1, 200, 1, 3, 64), strict=True):
        for offset in {base, base + count // 2, base + count - 1}:
            chunk = part.read(offset)
            assert chunk is not None and chunk.base == base, offset
    assert part.read(part.end) is None


def test_an_offset_that_was_purged_finds_the_first_there_is(stream: World) -> None:
    chunk = part_of(stream).read(2)
    assert chunk is not None and chunk.base == FIRST


def test_reading_on_needs_one_look_at_the_disk(stream: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small chunks behind each other: looking back 255 offsets each time would read them all."""
    for _ in range(100):
        stream.stored(b"1")
    part = part_of(stream)
    reads = 0
    real = stream.partition.read

    def counted(offset: Offset) -> Any:
        nonlocal reads
        reads += 1
        return real(offset)

    monkeypatch.setattr(stream.partition, "read", counted)
    position = part.end - 100
    for _ in range(100):
        chunk = part.read(position)
        assert chunk is not None and chunk.base == position
        position = chunk.base + chunk.count
    assert reads == 100


@pytest.mark.parametrize(
    ("seconds", "offset"), [(0.001, 6), (1, 6), (2, 7), (3, 207), (4, 208), (5, 211), (5.001, 275), (99, 275)]
)
def test_a_time_is_the_first_message_stored_at_or_after_it(stream: World, seconds: float, offset: int) -> None:
    found = part_of(stream).start({"time": START_MS + int(seconds * 1000)})
    assert (found.offset, found.outcome) == (offset, "complete")


@pytest.mark.parametrize("seconds", [-99, -1, 0])
def test_a_time_before_the_end_of_what_was_purged_is_a_gap(stream: World, seconds: int) -> None:
    found = part_of(stream).start({"time": START_MS + seconds * 1000})
    assert (found.offset, found.outcome, found.missed) == (FIRST, "gap", (0, FIRST - 2))


def test_a_cursor_of_an_earlier_queue_of_the_name_begins_anew(stream: World) -> None:
    parts = queue_of(stream).parts
    for uid, outcome in ((parts.uid, "complete"), (parts.uid + 1, "reset")):
        start = parts.start({"cursor": encode_cursor(1, FIRST + 3, uid=uid)})
        assert (start.outcome, start.places) == (outcome, {0: FIRST + 3 if outcome == "complete" else FIRST - 1})
        assert parts.start({"cursor": start.cursor}).outcome == "complete", "it goes on from there"
