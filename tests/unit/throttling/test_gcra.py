from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from throttling.gcra import NS_PER_S, decide


def test_first_hit_of_a_principal_is_allowed_and_leaves_the_burst_less_its_cost() -> None:
    decision = decide(tat=0, now=10 * NS_PER_S, rate=100, burst=50, cost=1)
    assert (decision.allowed, decision.remaining, decision.retry_after) == (True, 49, 0)


def test_whole_burst_is_allowed_at_one_instant_and_nothing_more() -> None:
    tat, now = 0, NS_PER_S
    for left in reversed(range(50)):
        decision = decide(tat, now, rate=100, burst=50, cost=1)
        assert (decision.allowed, decision.remaining) == (True, left)
        tat = decision.new_tat
    refused = decide(tat, now, rate=100, burst=50, cost=1)
    assert (refused.allowed, refused.remaining, refused.new_tat) == (False, 0, tat)


def test_refused_hit_is_allowed_exactly_when_it_was_told_to_come_back() -> None:
    tat = decide(0, NS_PER_S, rate=100, burst=5, cost=5).new_tat
    refused = decide(tat, NS_PER_S, rate=100, burst=5, cost=2)
    assert refused.retry_after == 2 * NS_PER_S // 100
    assert not decide(tat, NS_PER_S + refused.retry_after - 1, rate=100, burst=5, cost=2).allowed
    assert decide(tat, NS_PER_S + refused.retry_after, rate=100, burst=5, cost=2).allowed


def test_refused_hit_costs_nothing() -> None:
    tat = decide(0, NS_PER_S, rate=10, burst=10, cost=8).new_tat
    refused = decide(tat, NS_PER_S, rate=10, burst=10, cost=3)
    assert (refused.allowed, refused.remaining) == (False, 2)
    assert decide(refused.new_tat, NS_PER_S, rate=10, burst=10, cost=2).allowed


def test_cost_above_the_burst_is_refused_for_ever() -> None:
    decision = decide(0, NS_PER_S, rate=10, burst=10, cost=11)
    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 10, None)


def test_idle_time_earns_back_no_more_than_the_burst() -> None:
    tat = decide(0, NS_PER_S, rate=10, burst=10, cost=10).new_tat
    assert decide(tat, 1_000_000 * NS_PER_S, rate=10, burst=10, cost=1).remaining == 9


@given(
    rate=st.integers(1, 1_000_000),
    burst=st.integers(1, 1_000),
    pauses_ns=st.lists(st.integers(0, NS_PER_S // 100), max_size=60),
)
def test_allowed_cost_never_exceeds_burst_plus_what_the_rate_earned(
    rate: int, burst: int, pauses_ns: list[int]
) -> None:
    start = now = NS_PER_S
    tat = allowed = 0
    interval = NS_PER_S // rate
    for pause in pauses_ns:
        now += pause
        decision = decide(tat, now, rate, burst, cost=1)
        tat = decision.new_tat
        allowed += decision.allowed
        assert 0 <= decision.remaining < burst
        assert allowed <= burst + (now - start) // interval
