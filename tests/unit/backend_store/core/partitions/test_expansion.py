"""`auto_expand`: a queue grows with its load and shrinks when the load has been low for a while."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.partitions.expansion import SHRINK_AFTER_MS, Wanted, wanted_partitions


class Rule(NamedTuple):
    limit: int = 100
    at_percent: int = 80
    shrink_percent: int = 30
    max_partitions: int = 8


def look(*loads: int, partitions: int, low_since_ms: int | None = None, now_ms: int = 0, **rule: int) -> Wanted:
    return wanted_partitions(
        Rule(**rule), loads, partitions=partitions, least=1, low_since_ms=low_since_ms, now_ms=now_ms
    )


def test_a_queue_grows_at_its_percentage_and_not_below() -> None:
    assert look(79, partitions=1) == Wanted(1, None)
    assert look(80, partitions=1) == Wanted(2, None)


def test_what_lies_in_one_partition_counts_for_all_so_that_a_backlog_grows_a_queue_once() -> None:
    """The backlog stays where it is; new messages go to the new partitions."""
    assert look(90, 0, partitions=2) == Wanted(2, None)


def test_a_sudden_load_is_answered_by_as_many_partitions_as_it_needs() -> None:
    assert look(500, partitions=1) == Wanted(7, None)
    assert look(5000, partitions=1) == Wanted(8, None), "and no more than allowed"


def test_a_queue_that_has_more_partitions_than_it_may_grow_to_keeps_them() -> None:
    assert look(5000, partitions=9) == Wanted(9, None)


def test_a_queue_shrinks_by_one_when_its_load_was_low_for_a_while() -> None:
    first = look(10, partitions=3, now_ms=5)
    assert first == Wanted(3, 5)
    assert look(10, partitions=3, low_since_ms=5, now_ms=4 + SHRINK_AFTER_MS) == first
    assert look(10, partitions=3, low_since_ms=5, now_ms=5 + SHRINK_AFTER_MS) == Wanted(2, None)


def test_a_load_that_comes_back_meanwhile_starts_the_wait_anew() -> None:
    assert look(200, partitions=3, low_since_ms=5, now_ms=50) == Wanted(3, None)


def test_a_queue_never_shrinks_below_its_own_setting() -> None:
    wanted = wanted_partitions(Rule(), [0, 0], partitions=2, least=2, low_since_ms=0, now_ms=10**9)
    assert wanted == Wanted(2, None)


@given(
    st.integers(0, 2000),
    st.integers(1, 8),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_a_load_that_does_not_change_is_answered_once_and_then_left_alone(
    load: int, partitions: int, at_percent: int, shrink_percent: int
) -> None:
    """However the percentages are chosen, a queue does not swing between two sizes."""
    rule = Rule(at_percent=at_percent, shrink_percent=shrink_percent)
    sizes = [partitions]
    low_since_ms = None
    for now_ms in range(0, 40 * SHRINK_AFTER_MS, SHRINK_AFTER_MS):
        wanted = wanted_partitions(
            rule, [load], partitions=sizes[-1], least=1, low_since_ms=low_since_ms, now_ms=now_ms
        )
        low_since_ms = wanted.low_since_ms
        sizes.append(wanted.partitions)
    steps = [b - a for a, b in pairwise(sizes) if a != b]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
    assert sizes[-1] == sizes[-5]
