"""Burn rates: both windows of a pair must burn, and a few requests prove nothing."""

from __future__ import annotations

from gateway.alerts.core.slo import HOUR_MINUTES, HOURS_KEPT, Budget


def filled(minutes: range, *, total: int, bad: int) -> Budget:
    budget = Budget()
    for minute in minutes:
        budget.put(minute, total, bad)
    return budget


def test_a_steady_stream_of_failures_is_an_alert() -> None:
    """2 % of failures burn a budget of 0.1 % twenty times too fast."""
    value = filled(range(1000, 1060), total=100, bad=2).value(1059, 99.9)
    assert value is not None and round(value, 2) == round(20 / 6, 2)


def test_what_is_over_is_no_alert_any_more() -> None:
    budget = filled(range(1000, 1030), total=100, bad=50)
    for minute in range(1030, 1061):
        budget.put(minute, 100, 0)
    assert budget.value(1060, 99.9) == 0.0


def test_a_failure_among_few_requests_proves_nothing() -> None:
    assert filled(range(1000, 1005), total=1, bad=1).value(1004, 99.9) is None


def test_minutes_that_are_long_gone_do_not_count() -> None:
    budget = filled(range(300), total=100, bad=100)
    for minute in range(1000, 1360):
        budget.put(minute, 100, 0)
    assert budget.value(1359, 99.9) == 0.0


def test_a_later_word_on_a_minute_counts() -> None:
    budget = filled(range(10, 70), total=100, bad=0)
    budget.put(69, 100, 7)
    assert budget.counts(69, 1) == (100, 7)


def test_who_has_seen_less_of_a_minute_does_not_take_back_what_was_known() -> None:
    budget = Budget([(100, 50, 5)])
    budget.put(100, 20, 9)
    assert budget.counts(100, 1) == (50, 5)


def test_what_changed_is_said_once_by_the_hour_and_makes_the_same_budget() -> None:
    budget = filled(range(110, 130), total=100, bad=2)
    budget.put(130, 0, 0)
    changed = budget.take_changed()
    assert {hour: len(minutes) for hour, minutes in changed.items()} == {1: 10, 2: 10} and not budget.take_changed()
    again = Budget(one for minutes in changed.values() for one in minutes)
    assert again.value(129, 99.9) == budget.value(129, 99.9) != 0 and not again.take_changed()
    again.put(129, 101, 2)
    assert list(again.take_changed()) == [2]


def test_who_is_never_asked_what_has_changed_knows_of_no_more_hours_than_count() -> None:
    budget = filled(range(0, 60 * HOUR_MINUTES, 10), total=100, bad=2)
    assert list(budget.take_changed()) == list(range(60 - HOURS_KEPT, 60))
