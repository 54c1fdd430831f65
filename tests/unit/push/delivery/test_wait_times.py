"""The wait of messages from accepted to handed on: who counts, where, and with which trace."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend_store.client import Chunk, Lease
from backend_store.core.log.sublogs import DEAD, LATE, MAIN, SCHEDULED, SORTING
from push.delivery.wait_times import SECONDS_BOUNDS, WaitTimes

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOLD = f"00-{TRACE}-00f067aa0ba902b7-01 congo=t61"


def chunk_of(ago_s: float = 0.0, *, shelf: int = MAIN, traces: list[str | None] | None = None) -> Chunk:
    columns = None if traces is None else {"trace": traces}
    time_ms = round((time.time() - ago_s) * 1000)
    return cast(Chunk, SimpleNamespace(time_ms=time_ms, shelf=shelf, messages=SimpleNamespace(columns=columns)))


def lease_of(bits: int, attempts: dict[int, int] | None = None) -> Lease:
    state: Any = SimpleNamespace(attempts=attempts or {})
    return cast(Lease, SimpleNamespace(bits=bits, state=state))


def counts(waits: WaitTimes) -> dict[float, int]:
    bounds = [*SECONDS_BOUNDS, float("inf")]
    return {bound: count for bound, count in zip(bounds, waits.buckets, strict=True) if count}


def test_each_message_of_a_batch_counts_with_the_age_of_its_chunk() -> None:
    waits = WaitTimes()
    waits.of_lease(lease_of(0b1011), chunk_of(20))
    waits.of_chunk(chunk_of(200), 5)
    assert counts(waits) == {30.0: 3, 300.0: 5}
    assert waits.sum == pytest.approx(3 * 20 + 5 * 200, rel=0.05)


def test_a_repeat_is_no_first_attempt() -> None:
    waits = WaitTimes()
    waits.of_lease(lease_of(0b11, {0: 2}), chunk_of(20))
    waits.of_lease(lease_of(0b1, {0: 2}), chunk_of(20))
    assert counts(waits) == {30.0: 1}


@pytest.mark.parametrize(("shelf", "counted"), [(MAIN, 1), (9, 1), (SORTING, 1), (SCHEDULED, 0), (DEAD, 0), (LATE, 0)])
def test_what_waited_for_something_else_does_not_count(shelf: int, counted: int) -> None:
    waits = WaitTimes()
    waits.of_lease(lease_of(0b1), chunk_of(20, shelf=shelf))
    assert sum(waits.buckets) == counted


def test_a_clock_that_is_ahead_makes_no_wait_below_nothing() -> None:
    waits = WaitTimes()
    waits.of_chunk(chunk_of(-90), 1)
    assert counts(waits) == {0.001: 1} and waits.sum == 0


def test_the_latest_trace_of_a_bucket_is_its_example() -> None:
    waits = WaitTimes()
    waits.of_lease(lease_of(0b10), chunk_of(20, traces=[None, TOLD]))
    waits.of_lease(lease_of(0b1), chunk_of(20, traces=[None, TOLD]))
    waits.of_chunk(chunk_of(200, traces=[TOLD.replace("-01 ", "-00 ")]), 1)
    found = {bound: seen.trace_id for bound, _, seen in waits.cumulative() if seen is not None}
    assert found == {"30.0": TRACE}, "who keeps no trace has none to look at"
