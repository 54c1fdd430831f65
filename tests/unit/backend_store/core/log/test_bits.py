"""Sets of messages as integers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.bits import indexes, lowest

bit_sets = st.sets(st.integers(0, 255))


def packed(numbers: set[int]) -> int:
    return sum(1 << n for n in numbers)


@given(bit_sets)
def test_indexes_are_the_numbers_of_the_set_bits_rising(numbers: set[int]) -> None:
    assert list(indexes(packed(numbers))) == sorted(numbers)


@given(bit_sets, st.integers(1, 300))
def test_lowest_takes_that_many_from_below_or_all_there_are(numbers: set[int], count: int) -> None:
    assert list(indexes(lowest(packed(numbers), count))) == sorted(numbers)[:count]


def test_no_messages_have_no_numbers() -> None:
    assert list(indexes(0)) == []
    assert lowest(0, 5) == 0


def test_a_run_without_holes_costs_no_loop() -> None:
    assert isinstance(indexes(0b1111000), range)
