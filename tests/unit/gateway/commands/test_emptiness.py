"""`--until-empty` is over when nothing comes and nothing is ready, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.commands import emptiness
from gateway.commands.emptiness import Emptiness
from push.client import Connected, Disconnected, Forbidden, Problem, Unavailable

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
HERE = Connected(session="s", resumed=False)


class World:
    """A server that says how much is ready, and a subscription that a test puts messages into."""

    def __init__(self, ready: Callable[[], int]) -> None:
        self.ready = ready
        self.asked = 0
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[World]:
        yield self

    async def get_queue(self, name: str) -> dict[str, Any]:
        self.asked += 1
        return {"stats": {"ready": self.ready()}}

    async def group_lag(self, name: str, group: str) -> int:
        self.asked += 1
        return self.ready()

    async def get(self) -> Any:
        return await self.inbox.get()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emptiness, "QUIET_S", 0.01)


async def consume(empty: Emptiness, world: Any) -> None:
    while True:
        await empty.get(world)


async def reached(empty: Emptiness, world: Any) -> None:
    """The end, while somebody reads."""
    reading = asyncio.ensure_future(consume(empty, world))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await empty.reached(world)
    finally:
        reading.cancel()


async def test_it_goes_on_while_messages_are_ready() -> None:
    left = iter([3, 2, 1, 0])
    world, empty = World(lambda: next(left)), Emptiness("q", None)
    empty.heard(HERE)
    await reached(empty, world)
    assert world.asked == 4


async def test_a_group_is_at_its_end_without_lag() -> None:
    world, empty = World(lambda: 0), Emptiness("s", "g")
    empty.heard(HERE)
    await reached(empty, world)


async def test_a_message_that_was_on_its_way_when_the_server_said_none_is_waited_for() -> None:
    world, empty = World(lambda: 0), Emptiness("q", None)
    taken: list[Any] = []

    def ready() -> int:
        if world.asked == 1:
            world.inbox.put_nowait("late")
        return 0

    async def read() -> None:
        while True:
            taken.append(await empty.get(world))  # type: ignore[arg-type]

    world.ready = ready
    empty.heard(HERE)
    reading = asyncio.ensure_future(read())
    async with asyncio.timeout(PATIENCE_S):
        await empty.reached(world)  # type: ignore[arg-type]
    reading.cancel()
    assert taken == ["late"] and world.asked == 2


async def test_silence_of_a_lost_connection_says_nothing() -> None:
    world, empty = World(lambda: 0), Emptiness("q", None)
    empty.heard(HERE)
    empty.heard(Disconnected("cut", 1.0))
    ending = asyncio.ensure_future(reached(empty, world))
    done, _ = await asyncio.wait([ending], timeout=0.2)
    assert not done and world.asked == 0
    empty.heard(HERE)
    await ending


async def test_a_server_that_is_away_is_asked_again_and_a_refusal_is_the_end() -> None:
    asked_twice = asyncio.Event()

    def away() -> int:
        if world.asked == 2:
            asked_twice.set()
        raise Unavailable("gone")

    def refuse() -> int:
        raise Forbidden(Problem(code="forbidden", status=403, detail="no scope view"))

    world, empty = World(away), Emptiness("q", None)
    empty.heard(HERE)
    ending = asyncio.ensure_future(reached(empty, world))
    await asked_twice.wait()
    world.ready = refuse
    with pytest.raises(Forbidden):
        await ending


async def test_while_a_message_is_in_hand_the_queue_is_not_empty() -> None:
    world, empty = World(lambda: 0), Emptiness("q", None)
    empty.heard(HERE)
    ending = asyncio.ensure_future(empty.reached(world))  # type: ignore[arg-type]
    done, _ = await asyncio.wait([ending], timeout=0.2)
    assert not done and world.asked == 0, "nobody waits for a message: the last one is being written"
    ending.cancel()
