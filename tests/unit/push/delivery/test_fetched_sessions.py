"""Sessions that a hub fetches from another gateway, and gives to one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.model import Unavailable
from push.core.resume import Parked
from push.delivery import hub as hubs
from push.delivery.hub import Hub
from push.ports import Principal
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

KEY: Any = SimpleNamespace(id="key", tenant="default")


class Others:
    """The other gateways: what `fetch` gives once `answer` is set."""

    suffix = ".here"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def fetch(self, session: str, principal: Principal) -> Any:
        self.asked.append(session)
        return await self.answer


def made(others: Others | None) -> Hub:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    return Hub(store, KEY, clock_ms=lambda: 1_000_000, elsewhere=others)


async def fetched(hub: Hub, session: str) -> None:
    fetching = hub.fetching(session, KEY)
    assert fetching is not None
    await fetching


async def test_a_fetched_session_is_parked_for_its_client() -> None:
    others = Others()
    hub = made(others)
    others.answer.set_result(Parked("s", "key", 0))
    await fetched(hub, "s")
    assert "s" in hub.parked and hub.parked.all()[0].until_ms == hub.awake_ms() + hub.resume_ms
    assert hub.fetching("s", KEY) is None, "it is here now"
    await hub.close()


async def test_nobody_is_asked_where_there_is_no_other_gateway() -> None:
    hub = made(None)
    assert hub.fetching("s", KEY) is None
    await hub.close()


async def test_a_second_connect_waits_for_the_same_answer() -> None:
    """The session would be asked for twice, and given once."""
    others = Others()
    hub = made(others)
    both = [asyncio.create_task(fetched(hub, "s")) for _ in range(2)]
    await eventually(lambda: bool(others.asked))
    others.answer.set_result(Parked("s", "key", 0))
    await asyncio.gather(*both)
    assert others.asked == ["s"] and "s" in hub.parked
    await hub.close()


async def test_what_no_gateway_gave_out_is_not_asked_for() -> None:
    hub = made(Others())
    assert hub.fetching("x" * 129, KEY) is None
    await hub.close()


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("a fault of ours")])
async def test_a_session_that_cannot_be_fetched_is_a_new_one(error: Exception) -> None:
    others = Others()
    hub = made(others)
    others.answer.set_exception(error)
    await fetched(hub, "s")
    assert len(hub.parked) == 0
    await hub.close()


async def test_a_client_does_not_wait_for_ever_and_what_comes_late_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leases are this gateway's by then: nobody else would return them before their time."""
    monkeypatch.setattr(hubs, "SESSION_FETCH_SECONDS_MAX", 0.01)
    others = Others()
    hub = made(others)
    await fetched(hub, "s")
    assert others.asked == ["s"] and len(hub.parked) == 0
    others.answer.set_result(Parked("s", "key", 0))
    await eventually(lambda: "s" in hub.parked)
    await hub.close()


async def test_a_session_is_given_away_once_and_to_its_own_principal_alone() -> None:
    hub = made(Others())
    hub.parked.park(Parked("s", "key", hub.awake_ms() + 5_000))
    assert hub.give_away("s", "another") is None
    given = hub.give_away("s", "key")
    assert given is not None and given.session == "s"
    assert hub.give_away("s", "key") is None
    await hub.close()
