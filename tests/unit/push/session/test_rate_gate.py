"""A frame that waits for its limits holds what comes behind it, and nothing gets lost or out of order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.model import PushqError
from push.session.rate_gate import RateGate
from throttling.config import ABUSE_REFUSED_MIN, ABUSE_SECONDS

pytestmark = pytest.mark.anyio

TOO_MUCH = PushqError("too much", code="rate-limited")


class World:
    """A session, as a gate sees it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.did: list[Any] = []
        self.is_paused = False
        self.closed = False
        self.id = "session"
        self.hub = SimpleNamespace(loop=asyncio.get_running_loop(), clock_ms=lambda: self.now_ms)
        self.wire = SimpleNamespace(pause=lambda: setattr(self, "is_paused", True))
        self.gate = RateGate(self)  # type: ignore[arg-type]

    def read_on(self) -> None:
        self.is_paused = False

    def turn_ended(self) -> None: ...

    def close(self, code: int, reason: str) -> None:
        self.did.append(int(code))

    def over_rate(self, why: str) -> None:
        self.did.append(why)
        self.closed = True

    def frame(self, name: str, verdict: Any = None) -> None:
        """A frame that comes in. One that is called `broken` fails by a fault of ours."""
        if self.gate.held is not None:
            self.gate.held.append(lambda: self.frame(name, verdict))
            return

        def go() -> None:
            if name == "broken":
                raise ValueError("not foreseen")
            self.did.append(name)

        self.gate.enter(verdict, go, lambda error: self.did.append((name, error.code)))


async def after(event: asyncio.Event, verdict: PushqError | None) -> PushqError | None:
    await event.wait()
    return verdict


async def test_frames_behind_one_that_waits_go_on_in_their_order() -> None:
    world, first, second = World(), asyncio.Event(), asyncio.Event()
    world.frame("a", after(first, None))
    world.frame("b")
    world.frame("c", after(second, TOO_MUCH))
    world.frame("d", TOO_MUCH)
    world.frame("e")
    assert world.did == [] and world.is_paused
    first.set()
    await asyncio.sleep(0.01)
    assert world.did == ["a", "b"] and world.is_paused, "another frame waits"
    second.set()
    await asyncio.sleep(0.01)
    assert world.did == ["a", "b", ("c", "rate-limited"), ("d", "rate-limited"), "e"]
    assert not world.is_paused and world.gate.held is None


async def test_frame_of_a_session_that_closed_meanwhile_is_refused_and_does_nothing() -> None:
    world, ready = World(), asyncio.Event()
    world.frame("a", after(ready, None))
    world.closed = True
    ready.set()
    await asyncio.sleep(0.01)
    assert world.did == [("a", "unavailable")]


async def test_frame_that_fails_by_our_fault_gives_back_what_it_took_and_ends_the_session() -> None:
    world, ready = World(), asyncio.Event()
    world.frame("broken", after(ready, None))
    ready.set()
    await asyncio.sleep(0.01)
    assert world.did == [("broken", "internal"), 1011]


async def test_limits_that_fail_by_our_fault_refuse_the_frame_and_hold_nothing() -> None:
    async def fails() -> None:
        raise ValueError("not foreseen")

    world = World()
    world.frame("a", fails())
    world.frame("b")
    await asyncio.sleep(0.01)
    assert world.did == [("a", "internal"), "b"] and not world.is_paused and world.gate.held is None


async def test_client_that_does_nothing_but_run_into_its_limit_is_closed_after_a_while() -> None:
    world = World()
    for _ in range(ABUSE_REFUSED_MIN):
        assert not world.gate.is_abused()
    world.now_ms = ABUSE_SECONDS * 1000
    assert world.gate.is_abused() and world.did == ["nearly everything exceeded the rate limit for 10 s"]


async def test_client_that_gets_something_through_stays() -> None:
    world = World()
    for _ in range(ABUSE_REFUSED_MIN):
        world.gate.is_abused()
        for _ in range(2):
            world.frame("published")
    world.now_ms = ABUSE_SECONDS * 1000
    assert not world.gate.is_abused() and not world.closed


async def test_client_that_waits_as_it_is_told_stays_for_ever() -> None:
    world = World()
    for second in range(100):
        world.now_ms = second * 1000
        assert not world.gate.is_abused()
