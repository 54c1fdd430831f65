"""Which gateway is asked for a session, and what becomes of the answer."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.client.sessions import MovingSessions, opened_by, session_suffix

pytestmark = pytest.mark.anyio

HERE, THERE, THIRD = "gateway-aa", "gateway-bb", "gateway-cc"
SESSION = "abc" + session_suffix(THERE)
WAIT_S = 30.0


class Asked(MovingSessions):
    """Connected to all gateways but those that are `away`."""

    def __init__(self, *away: str) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, str]] = []

        def reach(gateway: str, session: str, principal: str) -> bool:
            self.asked.append((gateway, session, principal))
            return gateway not in away

        self.reach = reach

    async def taken(self, by: str = HERE, *, session: str = SESSION, wait_s: float = WAIT_S) -> bytes | None:
        return await self.take(session, "key", by, 0, wait_s=wait_s, most=2)

    async def taken_with(self, answer: bytes | None, by: str = HERE, *, session: str = SESSION) -> bytes | None:
        taking = asyncio.create_task(self.taken(by, session=session))
        await asyncio.sleep(0)
        self.given(session, answer)
        return await taking


async def test_a_session_names_the_gateway_that_opened_it() -> None:
    assert opened_by(SESSION) == THERE
    assert opened_by("of an older version") not in (HERE, THERE)
    sessions = Asked()
    assert await sessions.taken_with(b"content") == b"content"
    assert sessions.asked == [(THERE, SESSION, "key")]


async def test_a_session_that_moved_is_asked_for_where_it_is() -> None:
    sessions = Asked()
    await sessions.taken_with(b"1", HERE)
    await sessions.taken_with(b"2", THIRD)
    await sessions.taken_with(b"3", THERE)
    assert [gateway for gateway, *_ in sessions.asked] == [THERE, HERE, THIRD]


async def test_it_did_not_move_where_its_gateway_did_not_give_it() -> None:
    sessions = Asked()
    assert await sessions.taken_with(None) is None
    assert await sessions.taken_with(b"1", THIRD) == b"1"
    assert [gateway for gateway, *_ in sessions.asked] == [THERE, THERE]


async def test_nobody_waits_for_a_gateway_that_is_away_or_silent_or_asks_itself() -> None:
    assert await Asked(THERE).taken() is None
    assert await Asked().taken(wait_s=0.01) is None
    own = Asked()
    assert await own.taken(THERE) is None and not own.asked


async def test_only_one_of_two_that_ask_at_once_gets_it() -> None:
    sessions = Asked()
    first = asyncio.create_task(sessions.taken(HERE))
    await asyncio.sleep(0)
    assert await sessions.taken(THIRD) is None
    sessions.given(SESSION, b"content")
    sessions.given(SESSION, b"a repeat")
    assert await first == b"content"
    assert len(sessions.asked) == 1


async def test_what_a_gateway_left_is_taken_once_and_only_by_its_principal() -> None:
    sessions = Asked(THERE)
    sessions.leave(SESSION, "key", "default", b"left", 1000)
    assert await sessions.take(SESSION, "another", HERE, 0, wait_s=0, most=2) is None
    assert await sessions.taken() == b"left"
    assert await sessions.taken(THIRD, wait_s=0.01) is None
    assert sessions.asked[-1][0] == HERE, "it is there now"


async def test_what_was_left_is_not_kept_for_ever() -> None:
    sessions = Asked(THERE)
    sessions.leave(SESSION, "key", "default", b"left", 1000)
    assert await sessions.take(SESSION, "key", HERE, 1000, wait_s=0, most=2) is None


async def test_places_are_known_of_the_last_that_moved_only() -> None:
    sessions = Asked()
    for name in ("first", "second", "third"):
        await sessions.taken_with(b"content", session=name + session_suffix(THERE))
    await sessions.taken_with(b"content", THIRD, session="first" + session_suffix(THERE))
    await sessions.taken_with(b"content", THIRD, session="third" + session_suffix(THERE))
    assert [gateway for gateway, *_ in sessions.asked[-2:]] == [THERE, HERE]


def test_what_is_left_is_bounded_in_bytes_and_leaves_room_for_other_tenants() -> None:
    sessions = MovingSessions()

    def left(tenant: str, number: int) -> bool:
        has_room = sessions.has_room(tenant, 4, 0, most=1000, bytes_max=100)
        if has_room:
            sessions.leave(f"{tenant}{number}", "key", tenant, b"left", 1000)
        return has_room

    assert sum(left("a", number) for number in range(100)) == 13
    assert left("b", 0) and not left("a", 100)


def test_what_nobody_came_for_is_swept() -> None:
    sessions = MovingSessions()
    for number, until_ms in enumerate((2000, 1000)):
        sessions.leave(f"s{number}", "key", "a", b"left", until_ms)
    sessions.sweep(1000)
    assert sessions.left == 1
    sessions.sweep(2000)
    assert sessions.left == 0
