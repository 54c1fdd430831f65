"""A burst at once, then the rate."""

from __future__ import annotations

from throttling.gcra import NS_PER_S
from throttling.pace import Pace


def test_a_burst_comes_in_at_once_and_then_the_rate() -> None:
    pace = Pace(rate=200, burst=500)
    assert sum(pace.admits(NS_PER_S) for _ in range(2000)) == 500
    assert sum(pace.admits(2 * NS_PER_S) for _ in range(2000)) == 200


def test_what_is_refused_does_not_count() -> None:
    pace = Pace(rate=1, burst=1)
    assert pace.admits(NS_PER_S)
    assert not any(pace.admits(NS_PER_S + n) for n in range(100))
    assert pace.admits(2 * NS_PER_S)
