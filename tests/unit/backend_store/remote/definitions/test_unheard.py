"""A name that is not known here is asked about before anybody is told that it is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from backend_store.model import Unavailable
from backend_store.remote.definitions import unheard as module
from backend_store.remote.definitions.unheard import Unheard
from backend_store.remote.queues.answers import Landing

pytestmark = pytest.mark.anyio


class LookingUp(Unavailable):
    def __init__(self, what: str, flight: Landing) -> None:
        super().__init__(what)
        self.flight = flight


class World:
    """A backend that answers when it is told to."""

    def __init__(self) -> None:
        self.questions = 0
        self.answers: asyncio.Queue[None] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []
        self.unheard = Unheard(LookingUp, self._background, self._hear)

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def _hear(self) -> None:
        self.questions += 1
        await self.answers.get()

    def flight(self, name: str) -> Landing:
        with pytest.raises(LookingUp) as looking:
            self.unheard.check(name, name)
        return looking.value.flight


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What was heard counts for a minute; a test that wants it older says so."""
    monkeypatch.setattr(module, "UNHEARD_FRESH_SECONDS", 60.0)
    return lambda: monkeypatch.setattr(module, "UNHEARD_FRESH_SECONDS", -1.0)


async def test_who_looks_again_after_the_answer_is_told_that_it_is_not_there() -> None:
    world = World()
    flight = world.flight("a")
    world.answers.put_nowait(None)
    await flight.landed()
    world.unheard.check("a", "a")
    world.flight("b")


async def test_those_of_one_moment_share_a_question() -> None:
    world = World()
    flights = [world.flight(name) for name in ("a", "b", "a")]
    world.answers.put_nowait(None)
    for flight in flights:
        await flight.landed()
    assert world.questions == 1
    for name in ("a", "b"):
        world.unheard.check(name, name)


async def test_who_comes_while_a_question_is_under_way_needs_a_later_answer() -> None:
    """What it asks for may have been made since."""
    world = World()
    early = world.flight("a")
    await asyncio.sleep(0.01)
    assert world.questions == 1
    late = world.flight("b")
    world.answers.put_nowait(None)
    await early.landed()
    world.unheard.check("a", "a")
    assert late is not early
    world.answers.put_nowait(None)
    await late.landed()
    assert world.questions == 2
    world.unheard.check("b", "b")


async def test_an_old_answer_does_not_count(unhurried: Callable[[], None]) -> None:
    world = World()
    flight = world.flight("a")
    world.answers.put_nowait(None)
    await flight.landed()
    unhurried()
    world.flight("a")


async def test_names_that_callers_make_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNHEARD_NAMES_MAX", 3)
    world = World()
    for number in range(10):
        flight = world.flight(str(number))
        world.answers.put_nowait(None)
        await flight.landed()
    assert len(world.unheard._heard) <= 3
