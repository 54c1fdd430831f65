"""How many subscriptions a session may have, those that are being opened among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.model import InvalidRequest, PushqError, Unavailable
from push import requests
from push.protocol import Subscribe


def test_subscriptions_whose_group_is_being_opened_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at once, before the first group was there, any number was one too few."""
    monkeypatch.setattr(requests, "SUBSCRIPTIONS_PER_SESSION_MAX", 3)
    opening: list[Any] = []
    monkeypatch.setattr(requests, "open_group", lambda stream, name, wanted, reply: opening.append(reply))
    session = fake()
    for number in range(2):
        requests.subscribe(session, frame(number))
    session.subs[1] = object()
    with pytest.raises(InvalidRequest, match="3 subscriptions, the most"):
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
