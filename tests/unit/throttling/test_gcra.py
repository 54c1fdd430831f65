from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttling.gcra import NS_PER_S, decide


def test_first_hit_of_a_principal_is_allowed_and_leaves_the_quota_less_its_cost() -> None:
    decision = decide(tat=0, now=10 * NS_PER_S, window=NS_PER_S, quota=50, cost=1)
    assert (decision.allowed, decision.remaining, decision.retry_after) == (True, 49, 0)


@pytest.mark.parametrize("quota", [1, 3, 7, 50, 50_000])
def test_whole_quota_is_allowed_at_one_instant_and_nothing_more(quota: int) -> None:
    tat, now = 0, NS_PER_S
    for left in reversed(range(quota)):
        decision = decide(tat, now, NS_PER_S, quota, cost=1)
        assert decision.allowed and decision.remaining == pytest.approx(left, abs=1)
        tat = decision.new_tat
    refused = decide(tat, now, NS_PER_S, quota, cost=1)
    assert (refused.allowed, refused.remaining, refused.new_tat) == (False, 0, tat)


def test_refused_hit_is_allowed_exactly_when_it_was_told_to_come_back() -> None:
    tat = decide(0, NS_PER_S, NS_PER_S, quota=5, cost=5).new_tat
    refused = decide(tat, NS_PER_S, NS_PER_S, quota=5, cost=2)
    assert refused.retry_after == 2 * NS_PER_S // 5
    assert not decide(tat, NS_PER_S + refused.retry_after - 1, NS_PER_S, quota=5, cost=2).allowed
    assert decide(tat, NS_PER_S + refused.retry_after, NS_PER_S, quota=5, cost=2).allowed


def test_refused_hit_costs_nothing() -> None:
    tat = decide(0, NS_PER_S, NS_PER_S, quota=10, cost=8).new_tat
    refused = decide(tat, NS_PER_S, NS_PER_S, quota=10, cost=3)
    assert (refused.allowed, refused.remaining) == (False, 2)
    assert decide(refused.new_tat, NS_PER_S, NS_PER_S, quota=10, cost=2).allowed


def test_cost_above_the_quota_is_refused_for_ever() -> None:
    decision = decide(0, NS_PER_S, NS_PER_S, quota=10, cost=11)
    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 10, None)


def test_idle_time_earns_back_no_more_than_the_quota() -> None:
    tat = decide(0, NS_PER_S, NS_PER_S, quota=10, cost=10).new_tat
    assert decide(tat, 1_000_000 * NS_PER_S, NS_PER_S, quota=10, cost=1).remaining == 9


def test_clock_that_goes_back_locks_nobody_out_for_longer_than_a_window() -> None:
    tat = decide(0, 7200 * NS_PER_S, NS_PER_S, quota=10, cost=10).new_tat
    now = 3600 * NS_PER_S
    refused = decide(tat, now, NS_PER_S, quota=10, cost=1)
    assert (refused.allowed, refused.retry_after) == (False, NS_PER_S // 10)
    assert decide(refused.new_tat, now + NS_PER_S // 10, NS_PER_S, quota=10, cost=1).allowed


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    """A quota, a window, and (pause, cost) of hits, in whole nanoseconds."""
    quota = draw(st.integers(1, 1_000))
    window = draw(st.integers(1, 1_000)) * quota  # whole nanoseconds for each unit: no rounding between the two
    hits = st.tuples(st.integers(0, 2 * window), st.integers(1, quota + 1))
    return quota, window, draw(st.lists(hits, max_size=60))


@given(histories())
def test_decisions_are_those_of_a_leaky_bucket(history: tuple[int, int, list[tuple[int, int]]]) -> None:
    quota, window, hits = history
    now, tat = NS_PER_S, 0
    level = 0  # of the bucket, in units times nanoseconds, so that it leaks whole numbers
    for pause, cost in hits:
        now += pause
        level = max(0, level - pause * quota)
        is_allowed = level + cost * window <= quota * window
        decision = decide(tat, now, window, quota, cost)
        assert decision.allowed == is_allowed
        if is_allowed:
            level += cost * window
        assert decision.remaining == (quota * window - level) // window
        tat = decision.new_tat


@given(
    quota=st.integers(1, 1_000_000),
    pauses_ns=st.lists(st.integers(0, NS_PER_S // 100), max_size=60),
)
def test_allowed_cost_never_exceeds_the_quota_plus_what_the_rate_earned(quota: int, pauses_ns: list[int]) -> None:
    start = now = NS_PER_S
    tat = allowed = 0
    for pause in pauses_ns:
        now += pause
        decision = decide(tat, now, NS_PER_S, quota, cost=1)
        tat = decision.new_tat
        allowed += decision.allowed
        assert 0 <= decision.remaining <= quota
        # A nanosecond is rounded away with each hit.
        assert allowed <= quota + (now - start + allowed) * quota / NS_PER_S
