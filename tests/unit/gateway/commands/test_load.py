"""The figures of `pushq bench`: percentiles, and a measurement that ends however it goes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.commands import load
from gateway.commands.exits import Failure
from gateway.commands.load import Countdown, Result, percentile


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [([5.0], 0.5, 5.0), ([5.0], 0.99, 5.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0), (list(range(1, 101)), 0.99, 99)],
)
def test_percentile_is_a_value_that_was_measured(values: list[float], fraction: float, expected: float) -> None:
    assert percentile(values, fraction) == expected


def test_rate_is_messages_over_seconds() -> None:
    assert Result("publish", 100, 0.5).per_s == 200
    assert Result("publish", 100, 0.0).per_s == 0


@pytest.mark.anyio
async def test_countdown_ends_with_the_last_ack() -> None:
    count = Countdown(3)
    for _ in range(3):
        asyncio.get_running_loop().call_soon(count.acked)
    seen: list[int] = []
    await count.wait([], seen.append)
    assert seen[-1:] == [3]


@pytest.mark.anyio
async def test_countdown_ends_with_the_error_of_a_task() -> None:
    async def fail() -> None:
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError):
        await Countdown(1).wait([asyncio.ensure_future(fail())], lambda done: None)


@pytest.mark.anyio
async def test_countdown_ends_after_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SILENCE_S_MAX", 0.2)
    with pytest.raises(Failure, match=r"no message received for 0\.2 s; 2 of 2"):
        await Countdown(2).wait([], lambda done: None)
