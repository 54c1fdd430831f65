"""The counts of the cluster's demo: what is missing, what came twice, and how long nothing came."""

from __future__ import annotations

from gateway.cluster_demo.limits import AWAY_SECONDS_MIN, BAR_SECONDS, BARS_MAX, SETTLED_SECONDS
from gateway.cluster_demo.tally import Tally


def test_a_confirmed_message_is_on_its_way_then_missing_until_it_comes() -> None:
    tally = Tally()
    tally.confirm(0, 10.0)
    assert (tally.under_way(10.1), tally.missing(10.1)) == (1, 0)
    late_s = 10.1 + SETTLED_SECONDS
    assert (tally.under_way(late_s), tally.missing(late_s)) == (0, 1)
    tally.receive(0, late_s)
    assert (tally.under_way(late_s), tally.missing(late_s)) == (0, 0)
    assert (tally.confirmed, tally.received) == (1, 1)


def test_one_that_comes_before_its_confirmation_is_never_missing() -> None:
    tally = Tally()
    tally.receive(0, 10.0)
    tally.confirm(0, 10.1)
    assert tally.missing(100.0) == 0
    assert (tally.confirmed, tally.received) == (1, 1)


def test_what_comes_after_its_ack_is_doubled_and_what_comes_before_it_is_not() -> None:
    tally = Tally()
    tally.receive(7, 1.0)
    tally.receive(7, 2.0)
    assert (tally.received, tally.again, tally.doubled) == (1, 1, 0)
    tally.ack(7)
    tally.receive(7, 3.0)
    assert (tally.received, tally.again, tally.doubled) == (1, 1, 1)


def test_one_that_was_never_confirmed_is_not_missing() -> None:
    tally = Tally()
    tally.confirm(1, 1.0)
    tally.receive(1, 1.0)
    assert tally.missing(100.0) == 0


def test_a_kill_knows_the_longest_silence_behind_it_and_none_before_it() -> None:
    tally = Tally()
    tally.receive(0, 1.0)
    tally.receive(1, 4.0)
    tally.kill("backend1", 4.1)
    tally.receive(2, 4.2)
    assert [kill.away_s for kill in tally.kills] == [0.0]
    assert tally.longest_away_s == 3.0
    assert round(tally.away_s(9.2), 3) == 5.0
    tally.receive(3, 10.2)
    assert [(kill.part, round(kill.away_s, 3)) for kill in tally.kills] == [("backend1", 6.0)]
    assert tally.away_s(10.2) == 0.0


def test_a_short_silence_is_no_time_without_service() -> None:
    tally = Tally()
    tally.receive(0, 1.0)
    assert tally.away_s(1.0 + AWAY_SECONDS_MIN / 2) == 0.0
    tally.receive(1, 1.0 + AWAY_SECONDS_MIN / 2)
    assert tally.longest_away_s == 0.0
    assert Tally().away_s(100.0) == 0.0


def test_the_plot_has_a_bar_for_each_half_second_of_the_last_minute() -> None:
    tally = Tally()
    for n in range(10):
        tally.confirm(n, 100.0 + n * BAR_SECONDS)
        tally.receive(n, 100.0 + n * BAR_SECONDS)
    assert tally.bars(100.0 + 9 * BAR_SECONDS) == [[1, 1]] * 10
    assert tally.bars(100.0 + 11 * BAR_SECONDS)[-3:] == [[1, 1], [0, 0], [0, 0]]
    long_after = tally.bars(10_000.0)
    assert len(long_after) == BARS_MAX and long_after == [[0, 0]] * BARS_MAX


def test_arrivals_a_second_are_those_of_the_last_whole_bars() -> None:
    tally = Tally()
    assert tally.per_second(1.0) == 0
    for n in range(100):
        tally.receive(n, 50.0 + n * 0.02)
    assert tally.per_second(52.0) == 50
