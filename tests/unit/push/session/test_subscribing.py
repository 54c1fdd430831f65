"""How many subscriptions a session may have, those that are being opened among them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.model import InvalidRequest, PushqError, Unavailable
from push.delivery import replay_pacer
from push.protocol import Subscribe
from push.session import requests
from tests.unit.push.session.test_runs import world


def test_subscriptions_whose_group_is_being_opened_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at once, before the first group was there, any number was one too few."""
    monkeypatch.setattr(requests, "SUBSCRIPTIONS_PER_SESSION_MAX", 3)
    opening: list[Any] = []
    monkeypatch.setattr(requests, "open_group", lambda stream, name, wanted, reply: opening.append(reply))
    session = fake()
    for number in range(2):
        requests.subscribe(session, frame(number))
    session.subs[1] = object()
    with pytest.raises(InvalidRequest, match="limit of 3 subscriptions"):
        requests.subscribe(session, frame(3))
    assert len(opening) == 2
    opening.pop()(Unavailable("no group"))
    requests.subscribe(session, frame(4))
    assert len(opening) == 2, "one that was not opened counts no more"


def frame(number: int) -> Subscribe:
    return Subscribe(id=number, queue="news", group=f"g{number}")


def fake() -> Any:
    queue = SimpleNamespace(name="news", config=SimpleNamespace(kind="stream"), group=None)
    throttle = SimpleNamespace(operation=lambda *of: None, enter=lambda *of: None)
    intake = SimpleNamespace(check_subscribe=lambda: None)
    desk = SimpleNamespace(queue=lambda *of: queue)
    return SimpleNamespace(
        hub=SimpleNamespace(desk=desk, draining=False, intake=intake, throttle=throttle),
        principal=object(),
        who=object(),
        subs={},
        opening=0,
        closed=False,
        gate=SimpleNamespace(enter=lambda verdict, go, refuse: go()),
        began=lambda: None,
        ended=lambda: None,
        leave=lambda kind: None,
        error=lambda number, error: None,
        refuse=lambda number, error: raised(error),
    )


def raised(error: PushqError) -> None:
    raise error


@pytest.mark.anyio
async def test_a_stream_is_delivered_behind_the_answer_while_another_reader_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or its first messages come under a number that the client has not been told of."""
    monkeypatch.setattr(replay_pacer, "CATCH_UP_WORK_SECONDS", 1000.0)  # however long a turn takes
    async with world() as one:
        for body in ("a", "b"):
            one.hear([{"type": "publish", "id": body, "queue": "stream", "messages": [{"body": body}]}])
            one.session.turn_ended()
            await one.answered()
        told: list[str] = []
        one.wire.write = lambda data: told.append("deliver")  # type: ignore[method-assign]
        one.wire.send_frame = lambda payload, encoding: told.append(payload.decode())  # type: ignore[method-assign]
        one.hub._pacer.add(lambda: False)  # his turn is the next
        one.hear([{"type": "subscribe", "id": 1, "queue": "stream", "from": "earliest"}])
        async with asyncio.timeout(10):
            while "deliver" not in told:  # noqa: ASYNC110 - the loop is turned by hand
                await asyncio.sleep(0)
        assert told[0].startswith('{"type":"ok","id":1,"sub":1,')
