"""Rings: what was written is read at its time, and coarser steps say the worst of levels and the mean of rates."""

from __future__ import annotations

from math import isnan, nan

from hypothesis import given
from hypothesis import strategies as st

from gateway.series.core.ring import Ring, Series, Tier

TIERS = (Tier(5, 8), Tier(20, 6), Tier(100, 4))


def same(one: list[float], other: list[float]) -> bool:
    return [None if isnan(v) else v for v in one] == [None if isnan(v) else v for v in other]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(0, 40))
def test_a_ring_reads_like_a_dictionary_of_the_last_slots(slots: list[int], start: int) -> None:
    ring, model, last = Ring(8, 2), {}, -1
    for slot in slots:
        ring.write(slot, (float(slot), 1.0))
        if slot > last:
            model[slot], last = float(slot), slot
    known = {slot: value for slot, value in model.items() if slot > last - 8}
    assert same(ring.column(0, start, start + 30), [known.get(slot, nan) for slot in range(start, start + 30)])


def test_time_that_goes_back_changes_nothing() -> None:
    ring = Ring(4, 1)
    ring.write(7, (1.0,))
    ring.write(6, (2.0,))
    ring.write(7, (3.0,))
    assert ring.column(0, 7, 8) == [1.0] and isnan(ring.column(0, 6, 7)[0])


def test_coarser_steps_say_the_worst_level_and_the_mean_rate() -> None:
    series = Series(2, 1, TIERS)
    for at, level, rate in ((0, 3.0, 1.0), (5, 9.0, 2.0), (10, 1.0, 3.0), (15, 2.0, 6.0), (20, 0.0, 0.0)):
        series.write(at, (level, rate), TIERS)
    assert series.column(1, 0, 0, 1, TIERS) == [9.0] and series.column(1, 1, 0, 1, TIERS) == [3.0]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_every_step_that_was_seen_shows_up_in_every_tier(pauses: list[int]) -> None:
    """The step that is not over too: a plot of a day ends now."""
    series, at, seen = Series(1, 1, TIERS), 0, {}
    for pause in pauses:
        at += 5 * pause
        series.write(at, (float(at),), TIERS)
        seen[at // 5] = float(at)
    for number, tier in enumerate(TIERS):
        end = at // tier.step_ms + 1
        value = series.column(number, 0, end - 1, end, TIERS)[0]
        assert value == float(at)


def test_memory_does_not_grow() -> None:
    series = Series(3, 2, TIERS)
    before = series.bytes
    for at in range(0, 5_000, 5):
        series.write(at, (1.0, 2.0, 3.0), TIERS)
    assert series.bytes == before == (8 + 6 + 4) * 3 * 4
