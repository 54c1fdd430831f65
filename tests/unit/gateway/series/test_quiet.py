"""Quiet queues: rows that are made afterwards are those that looking would have written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.series.core.columns import QUEUE_COLUMNS, QUEUE_LEVELS
from gateway.series.core.quiet import catch_up, quiet_row
from gateway.series.core.ring import TIERS, Series
from gateway.series.core.tally import Tally

STEP_MS = TIERS[0].step_ms
BEGAN = 340_000_017
BUSY = (5.0, 1.0, 0.0, 2.0, 1_000.0, 1.0, 3.0, 2.0, 0.0, 0.5)


def series() -> Series:
    return Series(len(QUEUE_COLUMNS), len(QUEUE_LEVELS))


def both(quiet_slots: int, looks: Callable[[int], bool]) -> tuple[Series, Series]:
    """A series that somebody wrote at each look, and one that was left alone and caught up."""
    watched, alone, looked = series(), series(), series()
    for slot in range(BEGAN, BEGAN + 5):
        for one in (watched, alone, looked):
            one.write(slot * STEP_MS, BUSY)
    for slot in range(BEGAN + 5, BEGAN + 5 + quiet_slots):
        if looks(slot):
            watched.write(slot * STEP_MS, quiet_row(BUSY, slot - BEGAN - 4))
            looked.write(slot * STEP_MS, [0.0] * 10)
    catch_up(alone, looked, BEGAN + 5 + quiet_slots)
    return watched, alone


def columns(one: Series, tier: int, now: int) -> list[list[float]]:
    end = now * STEP_MS // TIERS[tier].step_ms + 1
    found = [one.column(tier, column, end - TIERS[tier].rows, end) for column in range(len(QUEUE_COLUMNS))]
    return [[-1.0 if value != value else round(value, 3) for value in values] for values in found]


@pytest.mark.parametrize("quiet_slots", [1, 3, 42, 43, 44, 59, 60, 61, 179, 181, 700, 5_000])
def test_what_is_made_afterwards_is_what_looking_would_have_written(quiet_slots: int) -> None:
    watched, alone = both(quiet_slots, lambda slot: True)
    for tier in range(len(TIERS)):
        assert columns(alone, tier, BEGAN + 4 + quiet_slots) == columns(watched, tier, BEGAN + 4 + quiet_slots)


@pytest.mark.parametrize("quiet_slots", [100, 1_000])
def test_of_when_nobody_looked_nothing_is_known(quiet_slots: int) -> None:
    """Of long ago it is known to within a step of what is still kept; so levels are compared, not ages and means."""
    watched, alone = both(quiet_slots, lambda slot: not BEGAN + 20 < slot < BEGAN + 90)
    for tier in range(len(TIERS)):
        made, written = (columns(one, tier, BEGAN + 4 + quiet_slots) for one in (alone, watched))
        assert made[:4] == written[:4]


def test_a_queue_without_a_message_has_no_age() -> None:
    assert quiet_row([0.0] * 10, 100) == (0.0,) * 10


def test_a_tally_is_what_counting_all_would_find() -> None:
    tally, pulses = Tally(), {uid: [uid, 1, 0, 0, 10_000 - uid, 2] for uid in range(1, 50)}
    for uid, pulse in pulses.items():
        tally.add(uid, pulse, [0.0] * 6 + [0.5, 0, 0, 0])
    for uid in range(40, 50):
        del pulses[uid]
        tally.remove(uid)
    pulses[39] = [0, 0, 0, 0, 0, 0]
    tally.add(39, pulses[39])
    assert tally.row(20_000) == [sum(range(39)), 38, 0, 0, 20_000 - (10_000 - 38), 2 * 38, 24.5, 0, 0, 0]
    assert tally.row(20_000)[6:] == [0, 0, 0, 0]
    for _ in range(10):
        for uid in range(1, 39):
            tally.add(uid, [1, 0, 0, 0, pulses[uid][4] + 1, 0])
            tally.add(uid, pulses[uid])
    assert len(tally._oldest) < 200 and tally.row(20_000)[0] == sum(range(39))
