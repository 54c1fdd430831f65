"""What a process under load refuses: levels rise at once and fall one at a time; a backlog is what does not go away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from throttling.admission import Admission, Backlog, Level, Readings
from throttling.config import CALM_MS, SOJOURN_ALERT_MS, SOJOURN_PATIENCE_MS

CALM = Readings()
FRACTIONS = some.floats(0, 1)


def at(**readings: float) -> Level:
    return Admission(lag_ms_max=100).observe(Readings(**readings), 0)


@pytest.mark.parametrize(
    ("memory_fraction", "level"),
    [(0.59, Level.NORMAL), (0.60, Level.NO_NEW_SOCKETS), (0.70, Level.NO_REPLAYS), (0.80, Level.NO_PUBLISHES)],
)
def test_the_fuller_the_memory_the_less_is_taken(memory_fraction: float, level: Level) -> None:
    assert at(memory_fraction=memory_fraction) == level


def test_a_late_loop_refuses_sockets_and_then_replays_but_never_publishes() -> None:
    assert [at(lag_ms=ms) for ms in (100, 101, 1001, 60_000)] == [
        Level.NORMAL,
        Level.NO_NEW_SOCKETS,
        Level.NO_REPLAYS,
        Level.NO_REPLAYS,
    ]


def test_the_worse_reading_counts() -> None:
    assert at(lag_ms=150, memory_fraction=0.75) == Level.NO_REPLAYS


def test_levels_rise_at_once_and_fall_one_at_a_time() -> None:
    admission = Admission(lag_ms_max=100)
    assert admission.observe(Readings(memory_fraction=0.85), 0) == Level.NO_PUBLISHES
    seen = [admission.observe(CALM, ms) for ms in range(100, 4 * CALM_MS, 100)]
    assert sorted(set(seen)) == [0, 1, 2, 3] and seen == sorted(seen, reverse=True)
    assert seen.count(Level.NO_REPLAYS) * 100 == CALM_MS


def test_just_below_the_mark_a_level_stays() -> None:
    admission = Admission(lag_ms_max=100)
    admission.observe(Readings(memory_fraction=0.61), 0)
    assert admission.observe(Readings(memory_fraction=0.58), 10 * CALM_MS) == Level.NO_NEW_SOCKETS


def test_a_short_calm_lowers_nothing() -> None:
    admission = Admission(lag_ms_max=100)
    admission.observe(Readings(lag_ms=200), 0)
    admission.observe(CALM, 100)
    admission.observe(Readings(lag_ms=95), CALM_MS)
    assert admission.observe(CALM, CALM_MS + 200) == Level.NO_NEW_SOCKETS


@given(some.lists(some.tuples(some.floats(0, 5000), FRACTIONS, some.integers(0, 3000)), max_size=40))
def test_the_level_is_never_below_what_the_readings_ask_for(history: list[tuple[float, float, int]]) -> None:
    admission, now = Admission(lag_ms_max=100), 0
    before = Level.NORMAL
    for lag_ms, memory_fraction, passed_ms in history:
        now += passed_ms
        level = admission.observe(Readings(lag_ms=lag_ms, memory_fraction=memory_fraction), now)
        assert level >= at(lag_ms=lag_ms, memory_fraction=memory_fraction)
        assert level >= before - 1
        before = level


@given(some.floats(0, 5000), FRACTIONS)
def test_every_level_falls_to_normal_within_ten_seconds_of_calm(lag_ms: float, memory_fraction: float) -> None:
    admission = Admission(lag_ms_max=100)
    admission.observe(Readings(lag_ms=lag_ms, memory_fraction=memory_fraction), 0)
    for ms in range(500, 10_000, 500):
        admission.observe(CALM, ms)
    assert admission.level == Level.NORMAL


def test_the_reason_names_the_reading_that_counts() -> None:
    admission = Admission(lag_ms_max=100)
    assert "150 ms late" in admission.why(Readings(lag_ms=150, memory_fraction=0.2))
    assert "75% of the memory limit" in admission.why(Readings(lag_ms=150, memory_fraction=0.75))


# ------------------------------------------------------------------------------------------------------ backlog


def test_publishes_are_refused_when_they_wait_too_long_for_too_long() -> None:
    backlog = Backlog(sojourn_ms_max=50)
    assert not backlog.observe(60, 5, 0)
    assert not backlog.observe(60, 5, SOJOURN_PATIENCE_MS - 1)
    assert backlog.observe(60, 5, SOJOURN_PATIENCE_MS)
    assert not backlog.observe(40, 5, SOJOURN_PATIENCE_MS + 10)


def test_a_peak_that_goes_away_refuses_nothing() -> None:
    backlog = Backlog(sojourn_ms_max=50)
    assert not any(backlog.observe(200 if ms % 400 else 0, 5, ms) for ms in range(0, 10_000, 100))


def test_a_slow_disk_at_work_is_no_backlog() -> None:
    """With commits of 80 ms whoever comes waits for up to 80 ms, and the next commit takes all of them."""
    backlog = Backlog(sojourn_ms_max=50)
    assert not any(backlog.observe(80, 80, ms) for ms in range(0, 10_000, 80))
    assert any(backlog.observe(200, 80, ms) for ms in range(10_000, 20_000, 80))


def test_a_disk_that_hangs_is_noticed_without_a_commit() -> None:
    backlog = Backlog(sojourn_ms_max=50)
    assert [backlog.observe(ms, 3, ms) for ms in range(0, 800, 100)].index(True) == 6


def test_soon_after_a_backlog_the_next_one_is_refused_at_once() -> None:
    backlog = Backlog(sojourn_ms_max=50)
    backlog.observe(60, 5, 0)
    backlog.observe(60, 5, 600)
    backlog.observe(0, 5, 700)
    assert backlog.observe(60, 5, 800)
    backlog.observe(0, 5, 900)
    assert not backlog.observe(60, 5, 901 + SOJOURN_ALERT_MS)
