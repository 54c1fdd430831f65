"""Queues of an embedded store: reading a stream from any place, verdicts in the order of receipts, exact counts."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.model import Offset, Verdict
from tests.support.world import START_MS, Consumer, World, queue_of, receipts_by_seq


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


def test_the_chunk_that_holds_an_offset_is_found_from_any_place_in_it(stream: World) -> None:
    queue = queue_of(stream)
    bases = [FIRST, FIRST + 1, FIRST + 201, FIRST + 202, FIRST + 205]
    for base, count in zip(bases, (1, 200, 1, 3, 64), strict=True):
        for offset in {base, base + count // 2, base + count - 1}:
            chunk = queue.read(Offset(offset))
            assert chunk is not None and chunk.base == base, offset
    assert queue.read(queue.end.offset) is None


def test_an_offset_that_was_purged_finds_the_first_there_is(stream: World) -> None:
    chunk = queue_of(stream).read(Offset(2))
    assert chunk is not None and chunk.base == FIRST


def test_reading_on_needs_one_look_at_the_disk(stream: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small chunks behind each other: looking back 255 offsets each time would read them all."""
    for _ in range(100):
        stream.stored(b"1")
    queue = queue_of(stream)
    reads = 0
    real = stream.partition.read

    def counted(offset: Offset) -> Any:
        nonlocal reads
        reads += 1
        return real(offset)

    monkeypatch.setattr(stream.partition, "read", counted)
    position = queue.end.offset - 100
    for _ in range(100):
        chunk = queue.read(Offset(position))
        assert chunk is not None and chunk.base == position
        position = chunk.base + chunk.count
    assert reads == 100


@pytest.mark.parametrize(
    ("seconds", "offset"), [(-1, 6), (0, 6), (1, 6), (2, 7), (3, 207), (4, 208), (5, 211), (5.001, 275), (99, 275)]
)
def test_a_time_is_the_first_message_stored_at_or_after_it(stream: World, seconds: float, offset: int) -> None:
    found = queue_of(stream).start({"time": START_MS + int(seconds * 1000)})
    assert (found.offset, found.outcome) == (offset, "complete")


def test_verdicts_stand_in_the_order_of_the_receipts() -> None:
    world = World()
    world.stored(*[b"1"] * 4)
    a, b, c, _ = receipts_by_seq(world.leased(4)).values()
    world.ack(b)
    answers: list[Any] = []
    queue_of(world).settle([c, "forged", b, a, c, a[:-2] + "xx"], answers.append)
    world.commit()
    ok, stale = Verdict(True), Verdict(False, "stale-receipt")
    assert answers == [[ok, stale, ok, ok, ok, stale]]


def test_counts_are_exact_and_of_now() -> None:
    world = World()
    queue = queue_of(world)
    world.stored(*[b"1"] * 10)
    world.now_ms += 5000
    first, second, *_ = receipts_by_seq(world.leased(4, Consumer())).values()
    world.ack(first)
    world.nack(second, due_ms=world.now_ms + 1000)
    stats = queue.stats()
    assert (stats.ready, stats.in_flight, stats.delayed) == (6, 2, 1)
    assert (stats.published_total, stats.acked_total, stats.oldest_age_ms) == (10, 1, 5000)
    assert stats.bytes == world.partition.state.live_bytes > 0


def test_an_empty_queue_has_no_age_and_no_bytes() -> None:
    world = World()
    world.stored(b"1")
    world.ack(*receipts_by_seq(world.leased()).values())
    world.now_ms += 5000
    stats = queue_of(world).stats()
    assert (stats.ready, stats.oldest_age_ms, stats.bytes) == (0, 0, 0)


def test_a_delay_is_counted_from_now() -> None:
    world = World()
    world.stored(b"1")
    answers: list[Any] = []
    queue_of(world).give_back(list(receipts_by_seq(world.leased()).values()), 500, answers.append)
    world.commit()
    assert answers == [[Verdict(True)]]
    assert world.partition.next_wakeup_ms() == world.now_ms + 500
