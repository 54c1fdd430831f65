"""The hybrid clock: stamps rise whatever clocks do, stay close to physical time, and read back as they were written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.limits import CLOCK_AHEAD_MS_MAX
from backend_store.core.reorder.hlc import HybridClock, format_stamp, parse_stamp

NOW_US = 1_786_106_096_789_000
TEXT = "2026-08-07T12:34:56.789Z"
AHEAD_US = CLOCK_AHEAD_MS_MAX * 1000


def test_a_stamp_is_the_millisecond_and_a_step_within_it() -> None:
    clock = HybridClock()
    assert [clock.tick(NOW_US + 456) for _ in range(3)] == [NOW_US, NOW_US + 1, NOW_US + 2]
    assert clock.tick(NOW_US + 1000) == NOW_US + 1000


def test_a_thousand_and_first_stamp_of_a_millisecond_goes_on_in_the_next_one() -> None:
    clock = HybridClock()
    assert clock.span(1001, NOW_US)[-1] == NOW_US + 1000
    assert clock.tick(NOW_US + 1000) == NOW_US + 1001


def test_a_span_gives_as_many_stamps_as_single_ticks_would() -> None:
    clock, other = HybridClock(), HybridClock()
    assert list(clock.span(5, NOW_US)) == [other.tick(NOW_US) for _ in range(5)]
    assert clock.tick(NOW_US) == other.tick(NOW_US)


def test_a_clock_that_goes_back_a_little_keeps_the_stamps_rising() -> None:
    clock = HybridClock()
    before = clock.tick(NOW_US)
    assert clock.tick(NOW_US - AHEAD_US) == before + 1
    assert clock.set_back_total == 0


def test_a_clock_that_was_set_back_far_takes_the_stamps_with_it() -> None:
    clock = HybridClock()
    clock.tick(NOW_US)
    assert clock.tick(NOW_US - AHEAD_US - 1000) == NOW_US - AHEAD_US - 1000
    assert clock.tick(NOW_US - AHEAD_US - 1000) == NOW_US - AHEAD_US - 999
    assert clock.set_back_total == 1


def test_what_was_caused_by_a_message_is_stamped_after_it() -> None:
    clock = HybridClock()
    remote = NOW_US + AHEAD_US
    assert clock.receive(remote, NOW_US) == remote + 1
    assert clock.tick(NOW_US + 1000) == remote + 2
    assert clock.receive(NOW_US - 5_000_000, NOW_US) == remote + 3


def test_a_stamp_too_far_ahead_is_not_followed() -> None:
    clock = HybridClock()
    assert clock.receive(NOW_US + AHEAD_US + 1, NOW_US) == NOW_US
    assert clock.ignored_total == 1


def test_a_clock_may_go_on_from_the_last_stamp_of_the_one_before() -> None:
    assert HybridClock(last_us=NOW_US + 7).tick(NOW_US) == NOW_US + 8


@given(st.lists(st.tuples(st.integers(-1500, 3000), st.integers(-800_000, 800_000), st.booleans()), max_size=60))
def test_stamps_rise_and_stay_within_the_bound_of_physical_time(moves: list[tuple[int, int, bool]]) -> None:
    clock, now_us, highest_us, before = HybridClock(), NOW_US, 0, 0
    for step_us, remote, receives in moves:
        now_us += step_us
        highest_us = max(highest_us, now_us)
        stamp = clock.receive(now_us + remote, now_us) if receives else clock.tick(now_us)
        assert stamp > before or clock.set_back_total
        assert now_us - 1000 < stamp <= highest_us + AHEAD_US + len(moves)
        before = stamp


# ----------------------------------------------------------------------------------------------------------- text


def test_a_bare_millisecond_has_three_digits_and_a_step_makes_it_six() -> None:
    assert format_stamp(NOW_US) == TEXT
    assert format_stamp(NOW_US + 12) == "2026-08-07T12:34:56.789012Z"
    assert format_stamp(0) == "1970-01-01T00:00:00.000Z"
    assert format_stamp(7) == "1970-01-01T00:00:00.000007Z"


@given(st.integers(0, parse_stamp("9999-12-31T23:59:59.999999Z")))
def test_every_stamp_reads_back(time_us: int) -> None:
    text = format_stamp(time_us)
    assert parse_stamp(text) == time_us
    assert datetime.fromisoformat(text) == datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(
        microsecond=time_us % 1_000_000
    )


@pytest.mark.parametrize(
    ("text", "after_us"),
    [
        ("2026-08-07T12:34:56.789Z", 0),
        ("2026-08-07t12:34:56.789z", 0),
        ("2026-08-07T12:34:56Z", -789_000),
        ("2026-08-07T12:34:56.7Z", -89_000),
        ("2026-08-07T12:34:56.789012Z", 12),
        ("2026-08-07T12:34:56.789012999Z", 12),
        ("2026-08-07T14:34:56.789+02:00", 0),
        ("2026-08-07T07:04:56.789-05:30", 0),
        ("2026-08-07T12:34:56.789-00:00", 0),
    ],
)
def test_any_time_of_rfc_3339_is_read(text: str, after_us: int) -> None:
    assert parse_stamp(text) == NOW_US + after_us


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-08-07",
        "2026-08-07T12:34:56",
        "2026-08-07 12:34:56Z",
        "2026-08-07T12:34:56.Z",
        "2026-08-07T12:34:56.1234567890Z",
        "2026-08-07T12:34:56,789Z",
        "20260807T123456Z",
        "2026-02-30T12:34:56Z",
        "2026-08-07T24:00:00Z",
        "2026-08-07T12:34:60Z",
        "2026-08-07T12:34:56+24:00",
        "2026-08-07T12:34:56+0200",
        "٢٠٢٦-08-07T12:34:56Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59-00:01",
        " 2026-08-07T12:34:56Z",
        "2026-08-07T12:34:56Z\n",
    ],
)
def test_what_is_no_such_time_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|year"):
        parse_stamp(text)
