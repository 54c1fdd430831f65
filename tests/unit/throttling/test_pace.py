"""A burst at once, then the rate."""

from __future__ import annotations

from throttling.gcra import NS_PER_S
from throttling.pace import FairPace, Pace


def test_a_burst_comes_in_at_once_and_then_the_rate() -> None:
    pace = Pace(rate=200, burst=500)
    assert sum(pace.admits(NS_PER_S) for _ in range(2000)) == 500
    assert sum(pace.admits(2 * NS_PER_S) for _ in range(2000)) == 200


def test_what_is_refused_does_not_count() -> None:
    pace = Pace(rate=1, burst=1)
    assert pace.admits(NS_PER_S)
    assert not any(pace.admits(NS_PER_S + n) for n in range(100))
    assert pace.admits(2 * NS_PER_S)


def test_one_subject_leaves_a_tenth_to_others_at_once_and_at_any_time_after() -> None:
    pace = FairPace(rate=200, burst=500)
    assert sum(pace.admits(NS_PER_S, "flood") for _ in range(2000)) == 450
    assert sum(pace.admits(NS_PER_S, f"other {n}") for n in range(100)) == 50
    assert sum(pace.admits(2 * NS_PER_S, "flood") for _ in range(2000)) == 180
    assert sum(pace.admits(2 * NS_PER_S, f"other {n}") for n in range(100)) == 20


def test_what_a_subject_is_refused_counts_for_nobody() -> None:
    pace = FairPace(rate=10, burst=10)
    assert [pace.admits(NS_PER_S, "flood") for _ in range(1000)].count(True) == 9
    assert pace.admits(NS_PER_S, "other")
    assert not pace.admits(NS_PER_S, "other")


def test_a_burst_of_one_is_everybodys() -> None:
    pace = FairPace(rate=1, burst=1)
    assert pace.admits(NS_PER_S, "a") and not pace.admits(NS_PER_S, "b")
    assert pace.admits(3 * NS_PER_S, "b")


def test_subjects_that_owe_nothing_are_forgotten_and_of_busy_ones_there_is_a_bound() -> None:
    pace = FairPace(rate=1000, burst=1000, subjects_max=100)
    for n in range(500):
        assert pace.admits(NS_PER_S, str(n))
    assert len(pace) == 100
    for n in range(200):
        assert pace.admits(10 * NS_PER_S + n * NS_PER_S, f"late {n}")
    assert len(pace) <= 2
