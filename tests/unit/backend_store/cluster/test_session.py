"""How long a holder may trust in its session, whatever its coordinator does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from backend_store.cluster import session as sessions
from backend_store.cluster.core.values import SessionId
from backend_store.cluster.limits import KEEP_ALIVES_IN_FLIGHT_MAX
from backend_store.cluster.session import Session
from backend_store.model import OutcomeUnknown, Unauthenticated, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "KEEP_ALIVE_SECONDS", 0.001)


@dataclass
class World:
    """A clock that is moved by hand, and a coordinator that answers when and what the test says."""

    now: float = 100.0
    answers: list[asyncio.Future[bool]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    async def keep(self, session: SessionId) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    async def end(self, session: SessionId) -> None:
        self.ended.append(session)
        raise Unavailable("it may fail")

    def open(
        self,
        is_alive: Callable[[], bool] = lambda: True,
        *,
        end: Callable[[SessionId], Awaitable[None]] | None = None,
    ) -> Session:
        return Session(
            SessionId(7),
            10,
            sent_at=self.now,
            clock=lambda: self.now,
            keep=self.keep,
            end=end or self.end,
            is_alive=is_alive,
        )

    async def beats(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.answers) < count:  # noqa: ASYNC110 - what is waited for is the session's
                await asyncio.sleep(0.001)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_confirmed_keep_alive_counts_from_when_it_was_sent() -> None:
    world = World()
    session = world.open()
    await world.beats(1)
    assert session.held_until == 108.0
    world.now = 105.0
    await world.beats(2)
    world.now = 107.0
    world.answers[1].set_result(True)
    await settled()
    assert (session.confirmed_at, session.held_until) == (105.0, 113.0)
    world.answers[0].set_result(True)
    await settled()
    assert session.confirmed_at == 105.0, "an answer to an older one takes nothing back"
    world.now = 112.9
    assert session.is_held
    world.now = 113.0
    assert not session.is_held and not session.is_lost
    await session.close()


async def test_keep_alives_overlap_and_are_bounded() -> None:
    world = World()
    session = world.open()
    await world.beats(KEEP_ALIVES_IN_FLIGHT_MAX)
    await asyncio.sleep(0.02)
    assert len(world.answers) == KEEP_ALIVES_IN_FLIGHT_MAX
    world.answers[2].set_result(True)
    await world.beats(KEEP_ALIVES_IN_FLIGHT_MAX + 1)
    await session.close()


async def test_failed_keep_alives_are_followed_by_others_until_the_time_is_up() -> None:
    world = World()
    session = world.open()
    await world.beats(1)
    world.answers[0].set_exception(Unavailable("no"))
    await world.beats(2)
    world.answers[1].set_exception(OutcomeUnknown("perhaps"))
    await world.beats(3)
    assert not session.is_lost
    world.now = 110.0
    assert "no keep-alive was confirmed for 10 s" in await asyncio.wait_for(session.wait_lost(), 10)
    assert not session.is_held
    await session.close()
    assert world.ended == [7], "its records need not wait for the coordinator to notice"


async def test_what_was_lost_stays_lost() -> None:
    world = World()
    session = world.open()
    await world.beats(2)
    world.answers[0].set_result(False)
    assert "does not know it" in await asyncio.wait_for(session.wait_lost(), 10)
    world.answers[1].set_result(True)
    await settled()
    assert session.is_lost and not session.is_held and "does not know it" in session.reason
    await session.close()
    assert world.ended == []


async def test_a_refusal_ends_it_at_once() -> None:
    world = World()
    session = world.open()
    await world.beats(1)
    world.answers[0].set_exception(Unauthenticated("the password was changed"))
    assert "the password was changed" in await asyncio.wait_for(session.wait_lost(), 10)
    await session.close()


async def test_a_question_that_fails_ends_it_and_hangs_nobody() -> None:
    def is_alive() -> bool:
        raise RuntimeError("a mistake of the caller's")

    session = World().open(is_alive)
    assert "a mistake of the caller's" in await asyncio.wait_for(session.wait_lost(), 10)
    await session.close()


async def test_who_makes_no_progress_sends_no_sign_of_life() -> None:
    world, progress = World(), False
    session = world.open(lambda: progress)
    await asyncio.sleep(0.02)
    assert world.answers == []
    progress = True
    await world.beats(1)
    await session.close()
    assert session.reason == "it was closed"


async def test_a_coordinator_is_away_a_second_after_it_answered_last_and_not_while_nothing_failed() -> None:
    world = World()
    session = world.open()
    await world.beats(1)
    world.now = 105.0
    assert session.is_answered, "a keep-alive takes its time, and may be confirmed yet"
    world.now = 100.9
    world.answers[0].set_exception(Unavailable("no"))
    await settled()
    assert session.is_answered, "one that fails is no absence"
    world.now = 101.1
    assert not session.is_answered
    await world.beats(2)
    world.answers[1].set_result(True)
    await settled()
    assert session.is_answered
    await session.close()


async def test_a_coordinator_that_is_away_is_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ETCD_READ_SECONDS_MAX", 60.0)
    monkeypatch.setattr(sessions, "FAREWELL_SECONDS_MAX", 0.01)
    world = World()

    async def end(session: SessionId) -> None:
        await asyncio.get_running_loop().create_future()

    session = world.open(end=end)
    await world.beats(1)
    world.answers[0].set_exception(Unavailable("no"))
    await settled()
    world.now = 102.0
    await asyncio.wait_for(session.close(), 10)
