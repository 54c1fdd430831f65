"""Long looks go through one turnstile: everybody else has a turn between slices, and many look as little as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

import pytest

from backend_store.node.limits import LOOK_SLICE_SECONDS
from backend_store.node.views.scan_scheduler import ScanScheduler
from tests.support.patience import FAR

pytestmark = pytest.mark.anyio

STEP_SECONDS = 0.0001
STEPS_OF_A_SLICE = LOOK_SLICE_SECONDS / STEP_SECONDS + 1


class Others:
    """Somebody who is at work in each turn of the loop, and counts the steps of looks between his turns."""

    def __init__(self) -> None:
        self.worked = 0.0
        self.steps = 0
        self.steps_between: list[int] = []

    async def run(self) -> None:
        while True:
            self.worked += work(0.0005)
            self.steps = 0
            await asyncio.sleep(0)
            self.steps_between.append(self.steps)

    def look(self, steps: int) -> Generator[None, bool, int]:
        """Takes some time at each step, and says how many it got to."""
        for step in range(steps):
            work(STEP_SECONDS)
            self.steps += 1
            if (yield):
                return step + 1
        return steps


def work(seconds: float) -> float:
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        pass
    return took


async def beside(others: Others, looks: int, steps: int) -> float:
    """Runs looks beside them; returns how long that took."""
    turnstile = ScanScheduler()
    task = asyncio.create_task(others.run())
    began = time.perf_counter()
    found = await asyncio.gather(*(turnstile.through(others.look(steps), seconds_max=60) for _ in range(looks)))
    took = time.perf_counter() - began
    task.cancel()
    assert found == [steps] * looks
    return took


async def test_a_look_alone_gets_to_its_end() -> None:
    assert await ScanScheduler().through(Others().look(200), seconds_max=60) == 200


async def test_whoever_is_at_work_has_a_turn_after_each_slice_and_most_of_the_time() -> None:
    others = Others()
    took = await beside(others, looks=1, steps=200)
    assert max(others.steps_between) <= STEPS_OF_A_SLICE
    assert others.worked > 0.4 / FAR * took


async def test_many_looks_take_no_more_of_a_turn_than_one() -> None:
    others = Others()
    await beside(others, looks=8, steps=50)
    assert max(others.steps_between) <= STEPS_OF_A_SLICE


async def test_a_look_is_told_when_its_time_is_up() -> None:
    began = time.perf_counter()
    steps = await ScanScheduler().through(Others().look(1_000_000), seconds_max=0.05)
    assert 1 <= steps < 1_000_000 and time.perf_counter() - began < 5


async def test_one_that_fails_leaves_the_way_free() -> None:
    def broken() -> Generator[None, bool, int]:
        yield
        raise ValueError("broken")

    turnstile = ScanScheduler()
    with pytest.raises(ValueError, match="broken"):
        await turnstile.through(broken(), seconds_max=60)
    assert await turnstile.through(Others().look(1), seconds_max=60) == 1
