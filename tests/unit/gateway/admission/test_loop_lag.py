"""How late the event loop is, as the level of load reads it."""

from __future__ import annotations

from gateway.admission.loop_lag import JUDGED_TICKS, KEPT_TICKS, LoopLag


def filled(*late: float) -> LoopLag:
    lag = LoopLag()
    for delay in (*late, *[0.001] * (JUDGED_TICKS - len(late))):
        lag.add(delay)
    return lag


def test_one_long_turn_is_the_worst_and_no_percentile() -> None:
    lag = filled(3.0)
    assert (lag.worst_seconds, lag.p99_seconds) == (3.0, 0.001)


def test_turns_that_are_long_again_and_again_are() -> None:
    assert filled(0.3, 0.2, 0.4).p99_seconds == 0.2


def test_a_start_says_nothing() -> None:
    lag = LoopLag()
    lag.add(5.0)
    assert lag.p99_seconds == 0.0


def test_what_is_past_is_forgotten() -> None:
    lag = filled(1.0, 1.0, 1.0)
    for _ in range(JUDGED_TICKS):
        lag.add(0.0)
    assert (lag.worst_seconds, lag.p99_seconds) == (1.0, 0.0)
    for _ in range(KEPT_TICKS - JUDGED_TICKS):
        lag.add(0.0)
    assert lag.worst_seconds == 0.0
