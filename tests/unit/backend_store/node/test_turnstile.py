"""Long looks go through one turnstile: everybody else has a turn between slices, and many look as little as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

import pytest

from backend_store.node.turnstile import Turnstile

pytestmark = pytest.mark.anyio

STEP_SECONDS = 0.0001


def look(steps: int) -> Generator[None, bool, int]:
    """Takes some time at each step, and says how many it got to."""
    for step in range(steps):
        end = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < end:
            pass
        if (yield):
            return step + 1
    return steps


class Others:
    """Somebody who is at work in each turn of the loop, and measures how long he waits for the next."""

    def __init__(self, work_seconds: float):
        self.work_seconds = work_seconds
        self.worked = 0.0
        self.waits: list[float] = []

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            while time.perf_counter() - began < self.work_seconds:
                pass
            left = time.perf_counter()
            self.worked += left - began
            await asyncio.sleep(0)
            self.waits.append(time.perf_counter() - left)


async def beside(others: Others, looks: int, steps: int = 200) -> float:
    """Runs looks beside them; returns how long that took."""
    turnstile = Turnstile()
    task = asyncio.create_task(others.run())
    began = time.perf_counter()
    found = await asyncio.gather(*(turnstile.through(look(steps), seconds_max=60) for _ in range(looks)))
    took = time.perf_counter() - began
    task.cancel()
    assert found == [steps] * looks
    return took


async def test_a_look_alone_is_as_fast_as_it_can_be() -> None:
    assert await Turnstile().through(look(200), seconds_max=60) == 200


async def test_whoever_is_at_work_keeps_most_of_the_time() -> None:
    others = Others(0.0005)
    took = await beside(others, looks=1)
    assert others.worked > 0.5 * took


async def test_many_looks_take_no_more_of_a_turn_than_one() -> None:
    one, many = Others(0.0005), Others(0.0005)
    await beside(one, looks=1)
    took = await beside(many, looks=8, steps=50)
    assert many.worked > 0.5 * took
    longest = sorted(many.waits)[-1 - len(many.waits) // 50]
    assert longest < 0.005, "a slice or two of one of them, not one of each"


async def test_a_look_is_told_when_its_time_is_up() -> None:
    began = time.perf_counter()
    steps = await Turnstile().through(look(1_000_000), seconds_max=0.05)
    assert 1 < steps < 1_000_000 and time.perf_counter() - began < 5


async def test_one_that_fails_leaves_the_way_free() -> None:
    def broken() -> Generator[None, bool, int]:
        yield
        raise ValueError("broken")

    turnstile = Turnstile()
    with pytest.raises(ValueError, match="broken"):
        await turnstile.through(broken(), seconds_max=60)
    assert await turnstile.through(look(1), seconds_max=60) == 1
