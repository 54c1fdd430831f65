"""The retry budget: a tenth of the calls, however many fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from throttling.retry_budget import RetryBudget


def test_the_tenth_call_pays_for_a_retry() -> None:
    budget = RetryBudget()
    for _ in range(9):
        budget.earn()
    assert not budget.take()
    budget.earn()
    assert budget.take()
    assert not budget.take()


def test_quiet_times_save_up_ten_retries_and_no_more() -> None:
    budget = RetryBudget()
    for _ in range(1_000):
        budget.earn()
    assert [budget.take() for _ in range(11)] == [True] * 10 + [False]


@given(st.lists(st.booleans(), max_size=400))
def test_retries_never_pass_a_tenth_of_the_calls(steps: list[bool]) -> None:
    budget, calls, retries = RetryBudget(), 0, 0
    for is_call in steps:
        if is_call:
            budget.earn()
            calls += 1
        else:
            retries += budget.take()
        assert 10 * retries <= calls
