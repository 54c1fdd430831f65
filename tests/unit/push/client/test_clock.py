from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from push.client.core.clock import HybridClock, stamp_text, stamp_us

NOW_MS = 1_790_000_000_000


def test_the_first_stamp_of_a_millisecond_is_the_millisecond() -> None:
    assert HybridClock(ahead_ms_max=500).tick(NOW_MS) == NOW_MS * 1000


def test_stamps_of_one_millisecond_count_up() -> None:
    clock = HybridClock(ahead_ms_max=500)
    assert [clock.tick(NOW_MS) - NOW_MS * 1000 for _ in range(4)] == [0, 1, 2, 3]


def test_more_than_a_thousand_in_one_millisecond_run_over_into_the_next() -> None:
    clock = HybridClock(ahead_ms_max=500)
    stamps = [clock.tick(NOW_MS) for _ in range(1002)]
    assert stamps[-1] == (NOW_MS + 1) * 1000 + 1
    assert clock.tick(NOW_MS + 1) == stamps[-1] + 1


def test_a_clock_that_is_set_back_gives_no_earlier_stamp() -> None:
    clock = HybridClock(ahead_ms_max=500)
    before = clock.tick(NOW_MS)
    assert clock.tick(NOW_MS - 3_600_000) == before + 1
    assert clock.tick(NOW_MS + 1) == (NOW_MS + 1) * 1000


def test_what_was_seen_lies_before_what_comes_next() -> None:
    clock = HybridClock(ahead_ms_max=500)
    assert clock.merge((NOW_MS + 400) * 1000, NOW_MS)
    assert clock.tick(NOW_MS) == (NOW_MS + 400) * 1000 + 1


def test_a_stamp_of_the_past_changes_nothing() -> None:
    clock = HybridClock(ahead_ms_max=500)
    now = clock.tick(NOW_MS)
    assert clock.merge(now - 5_000_000, NOW_MS)
    assert clock.tick(NOW_MS) == now + 1


def test_a_clock_too_far_ahead_is_not_followed() -> None:
    clock = HybridClock(ahead_ms_max=500)
    assert not clock.merge((NOW_MS + 501) * 1000, NOW_MS)
    assert clock.tick(NOW_MS) == NOW_MS * 1000


@given(some.lists(some.tuples(some.sampled_from(["tick", "merge"]), some.integers(0, 10_000)), max_size=50))
def test_stamps_always_rise(steps: list[tuple[str, int]]) -> None:
    clock, stamps = HybridClock(ahead_ms_max=500), []
    for action, wall_ms in steps:
        if action == "tick":
            stamps.append(clock.tick(wall_ms))
        else:
            clock.merge(wall_ms * 1000 + 7, 5_000)
    assert all(earlier < later for earlier, later in pairwise(stamps))


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_790_000_000_000_000, "2026-09-21T14:13:20.000Z"),
        (1_790_000_000_123_000, "2026-09-21T14:13:20.123Z"),
        (1_790_000_000_123_004, "2026-09-21T14:13:20.123004Z"),
    ],
)
def test_a_stamp_has_three_digits_for_a_whole_millisecond_and_else_six(stamp: int, text: str) -> None:
    assert (stamp_text(stamp), stamp_us(text)) == (text, stamp)


@given(some.integers(0, 4_000_000_000_000_000))
def test_a_stamp_comes_back_from_its_text(stamp: int) -> None:
    assert stamp_us(stamp_text(stamp)) == stamp


def test_other_ways_to_write_a_time_are_understood_and_what_is_none_is_none() -> None:
    noon = datetime(2026, 9, 21, 12, tzinfo=UTC)
    assert stamp_us("2026-09-21T14:00:00+02:00") == noon.timestamp() * 1_000_000
    assert [stamp_us(text) for text in ("", "noon", "2026-09-21T12:00:00")] == [None, None, None]
