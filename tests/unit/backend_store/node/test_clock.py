"""The clock that leases go by."""

from __future__ import annotations

import time

import pytest

from backend_store.node.node import steady_clock


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_moves_no_lease(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    steady_ms = steady_clock()
    before = steady_ms()
    said = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: said + hours * 3_600_000_000_000)
    assert 0 <= steady_ms() - before < 60_000


def test_it_begins_with_the_time_of_day() -> None:
    assert abs(steady_clock()() - time.time_ns() // 1_000_000) < 1_000
