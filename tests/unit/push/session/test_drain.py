"""How a drain spreads its farewells, and the return of those it says farewell to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from push.session.drain import DrainWaves, Plan


def plan(sockets: int, *, chance: float = 1.0, window_s: int = 4, accepts_per_s: int = 200) -> Plan:
    return DrainWaves(window_s=window_s, accepts_per_s=accepts_per_s, chance=lambda: chance).plan(sockets)


@given(sockets=some.integers(0, 30_000), window_s=some.integers(0, 60))
def test_everybody_leaves_once_and_within_the_window(sockets: int, window_s: int) -> None:
    made = plan(sockets, window_s=window_s)
    waves = list(made.waves(range(sockets)))
    assert [one for wave in waves for one in wave] == list(range(sockets))
    assert len(waves) * made.pause_s <= min(window_s, sockets / 200) + 1e-9


def test_waves_are_even() -> None:
    sizes = {len(wave) for wave in list(plan(20_000).waves(range(20_000)))[:-1]}
    assert sizes == {250}


def test_the_advice_brings_them_back_at_the_pace_of_the_door() -> None:
    assert plan(20_000).window_ms == 100_000
    assert [plan(20_000, chance=chance).retry_ms() for chance in (0.0, 0.5, 1.0)] == [200, 50_200, 100_200]


def test_few_come_back_within_a_second() -> None:
    assert plan(3).window_ms == 1000


def test_a_stream_is_told_one_to_fifteen_seconds_or_more_where_there_are_many() -> None:
    assert [plan(10, chance=chance).stream_retry_ms() for chance in (0.0, 1.0)] == [1_000, 15_000]
    assert plan(20_000).stream_retry_ms() == 100_000
