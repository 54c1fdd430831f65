"""Tickets on the real server: good once, for streams and sockets, and never for more than their key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.integration.calls import Client, codes, first_events, make_key, ticket_for, with_key
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def admin(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(admin: Client) -> str:
    name = f"q{next(_numbers)}"
    assert admin.put(f"/v1/queues/{name}").status_code == 201
    return name


def test_a_ticket_opens_one_stream(admin: Client, shared_server: PushqServer, queue: str) -> None:
    ticket = ticket_for(admin, queue=queue)
    with Client(base_url=shared_server.url) as browser:
        path = f"/v1/queues/{queue}/events?ticket={ticket}"
        assert first_events(browser, path)[0] == 200
        assert first_events(browser, path) == (401, "unauthenticated")


def test_a_ticket_opens_events_and_sockets_only(admin: Client, shared_server: PushqServer, queue: str) -> None:
    with Client(base_url=shared_server.url) as browser:
        assert codes(browser.get(f"/v1/queues/{queue}?ticket={ticket_for(admin)}"))[0] == 401
        answer = browser.post(f"/v1/queues/{queue}/receive?ticket={ticket_for(admin)}", json={})
        assert codes(answer)[0] == 401


def test_a_ticket_is_narrowed_to_its_queue_and_scopes(admin: Client, shared_server: PushqServer, queue: str) -> None:
    admin.put("/v1/queues/another")
    with Client(base_url=shared_server.url) as browser:
        other = f"/v1/queues/another/events?ticket={ticket_for(admin, queue=queue)}"
        assert first_events(browser, other) == (403, "forbidden")
        publishes = f"/v1/queues/{queue}/events?ticket={ticket_for(admin, scopes=[f'publish:{queue}'])}"
        assert first_events(browser, publishes) == (403, "forbidden")
        consumes = f"/v1/queues/{queue}/events?ticket={ticket_for(admin, queue=queue, scopes=['consume:*'])}"
        assert first_events(browser, consumes)[0] == 200


def test_a_ticket_gives_no_more_than_its_key_has(admin: Client, shared_server: PushqServer, queue: str) -> None:
    with with_key(admin, make_key(admin, f"publish:{queue}", "view:*")["key"]) as limited:
        path = f"/v1/queues/{queue}/events?ticket={ticket_for(limited, scopes=['consume:*'])}"
        with Client(base_url=shared_server.url) as browser:
            assert first_events(browser, path) == (403, "forbidden")
        for scopes in ([f"consume:{queue}"], ["admin"], ["operator"]):
            assert codes(limited.post("/v1/tickets", json={"scopes": scopes})) == (403, "forbidden")
        assert codes(limited.post("/v1/tickets", json={"queue": "nowhere"})) == (404, "queue-not-found")
        assert codes(limited.post("/v1/tickets", json={"scopes": ["x"]})) == (400, "invalid-request")


def test_a_ticket_opens_a_socket_once(admin: Client, shared_server: PushqServer) -> None:
    ticket = ticket_for(admin)

    def first_answer() -> dict[str, Any]:
        with connect(shared_server.ws_url) as ws:
            ws.send(json.dumps({"type": "connect", "ticket": ticket}))
            answer: dict[str, Any] = json.loads(ws.recv(5))
            return answer

    assert first_answer()["type"] == "connected"
    assert first_answer()["problem"]["code"] == "unauthenticated"
