from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from push.client.config import Limits
from push.client.core.backoff import ceiling_s, delay_s

LIMITS = Limits()


def test_the_longest_wait_doubles_from_half_a_second_to_twenty() -> None:
    assert [ceiling_s(tries, LIMITS) for tries in range(8)] == [0.5, 1, 2, 4, 8, 16, 20, 20]


@given(tries=some.integers(0, 10_000), asked=some.floats(0, 300), chance=some.floats(0, 1))
def test_the_wait_lies_between_nothing_and_the_longest(tries: int, asked: float, chance: float) -> None:
    assert 0 <= delay_s(tries, asked, chance, LIMITS) <= max(20, asked)


def test_a_server_that_asks_for_more_time_widens_the_wait() -> None:
    assert delay_s(0, 60, 0.5, LIMITS) == 30
    assert delay_s(9, 1, 0.5, LIMITS) == 10
