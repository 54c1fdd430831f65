from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from push.client.config import Limits
from push.client.core.backoff import asked_wait_s, ceiling_s, delay_s

LIMITS = Limits()


def test_the_longest_wait_doubles_from_half_a_second_to_twenty() -> None:
    assert [ceiling_s(tries, LIMITS) for tries in range(8)] == [0.5, 1, 2, 4, 8, 16, 20, 20]


@given(tries=some.integers(0, 10_000), asked=some.floats(0, 120), chance=some.floats(0, 1))
def test_the_wait_lies_between_what_was_asked_and_the_longest_after_it(tries: int, asked: float, chance: float) -> None:
    assert asked <= delay_s(tries, asked, chance, LIMITS) <= asked + 20


def test_nobody_comes_earlier_than_the_server_asks_and_those_who_were_asked_alike_still_spread() -> None:
    assert [delay_s(0, 60, chance, LIMITS) for chance in (0, 0.5, 1)] == [60, 60.25, 60.5]
    assert delay_s(9, 1, 0.5, LIMITS) == 11


@given(asked=some.floats(120, 1e9, exclude_min=True), chance=some.floats(0, 1))
def test_of_more_than_two_minutes_that_are_asked_between_one_and_two_are_kept(asked: float, chance: float) -> None:
    assert asked_wait_s(asked, chance, LIMITS) == pytest.approx(60 + chance * 60)
    assert 60 <= delay_s(0, asked, chance, LIMITS) <= 120.5


def test_advice_drawn_from_a_window_brings_clients_back_evenly() -> None:
    """A thousand clients that were told a time in 100 s each: about as many come in the first tenth as in the last."""
    waits = sorted(delay_s(0, 0.1 * n, (n * 7 % 1000) / 1000, LIMITS) for n in range(1000))
    tenths = [sum(10 * k <= wait < 10 * (k + 1) for wait in waits) for k in range(10)]
    assert max(tenths) - min(tenths) < 10
