"""Who is connected, and what a kick and a revoked key do to each kind of connection, on the real server."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.integration.calls import Client, codes, make_key, publish, receive, with_key
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def admin(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(admin: Client) -> str:
    name = f"connections-{next(_numbers)}"
    assert admin.put(f"/v1/queues/{name}").status_code == 201
    return name


def reading(admin: Client, queue: str, *, transport: str | None = None, wait_s: float = 5) -> dict[str, Any]:
    """The one connection that reads a queue; where its transport is named, when the one before has gone."""
    deadline = time.monotonic() + wait_s
    while True:
        items = admin.get("/v1/connections?limit=1000").json()["items"]
        found = [item for item in items if queue in [each["queue"] for each in item["subscriptions"]]]
        if found and transport in (None, *(item["transport"] for item in found)):
            assert len(found) == 1
            return dict(found[0])
        assert time.monotonic() < deadline, items
        time.sleep(0.02)


def gone(admin: Client, connection: dict[str, Any]) -> bool:
    return connection["id"] not in [item["id"] for item in admin.get("/v1/connections?limit=1000").json()["items"]]


@contextmanager
def socket(server: PushqServer, token: str, queue: str) -> Iterator[tuple[ClientConnection, str]]:
    """A consumer and its session."""
    with connect(server.ws_url) as ws:
        ws.send(json.dumps({"type": "connect", "token": token}))
        session = json.loads(ws.recv(5))["session"]
        ws.send(json.dumps({"type": "subscribe", "id": 1, "queue": queue, "credit": 10}))
        assert json.loads(ws.recv(5))["type"] == "ok"
        yield ws, session


def closed_with(ws: ClientConnection, seconds: float) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        _read_on(ws, seconds)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def _read_on(ws: ClientConnection, seconds: float) -> None:
    while True:
        ws.recv(seconds)


@contextmanager
def events(server: PushqServer, token: str, queue: str) -> Iterator[Callable[[], str]]:
    """An event stream; what is given reads it to its end."""
    headers = {"Authorization": f"Bearer {token}"}
    with (
        httpx2.Client(base_url=server.url, headers=headers, timeout=10) as client,
        client.stream("GET", f"/v1/queues/{queue}/events?credit=10") as answer,
    ):
        assert answer.status_code == 200
        yield lambda: "".join(answer.iter_text())


class Waiting(threading.Thread):
    """A receive that waits for half a minute."""

    def __init__(self, server: PushqServer, token: str, queue: str) -> None:
        super().__init__(daemon=True)
        self._ask = lambda: httpx2.post(
            f"{server.url}/v1/queues/{queue}/receive",
            json={"wait_ms": 30_000},
            headers={"Authorization": f"Bearer {token}"},
            timeout=40,
        )
        self.start()

    def run(self) -> None:
        self._answer = self._ask()

    def answer(self, seconds: float) -> httpx2.Response:
        self.join(seconds)
        assert not self.is_alive()
        return self._answer


def test_each_kind_of_connection_is_listed_with_what_it_reads(
    admin: Client, shared_server: PushqServer, queue: str
) -> None:
    key = make_key(admin, "consume:*", name="reader")
    publish(admin, queue, {"body": 1}, {"body": 2})
    with socket(shared_server, key["key"], queue) as (ws, session):
        assert json.loads(ws.recv(5))["type"] == "deliver"
        seen = reading(admin, queue)
    assert set(seen) == {
        *("id", "tenant", "principal", "name", "transport", "connected_at"),
        *("address", "subscriptions", "sent", "outbox_bytes"),
    }
    assert (seen["tenant"], seen["principal"], seen["name"]) == ("default", key["id"], "reader")
    assert (seen["transport"], seen["address"], seen["sent"]) == ("ws", "127.0.0.1", 2)
    assert seen["subscriptions"] == [{"queue": queue, "group": None, "sent": 2}]
    assert session not in json.dumps(seen)
    with events(shared_server, key["key"], queue):
        assert reading(admin, queue)["transport"] == "sse"
    poll = Waiting(shared_server, key["key"], queue)
    reading(admin, queue, transport="poll")
    assert {"ws", "sse", "poll"} == set(
        re.findall(r'pushq_connections\{transport="(\w+)"\}', admin.get("/metrics").text)
    )
    publish(admin, queue, {"body": 3})
    assert poll.answer(5).status_code == 200


def test_a_kicked_socket_gives_back_its_messages_and_is_not_resumed(
    admin: Client, shared_server: PushqServer, queue: str
) -> None:
    token = make_key(admin, "consume:*")["key"]
    publish(admin, queue, {"body": "held"})
    with socket(shared_server, token, queue) as (ws, session):
        assert json.loads(ws.recv(5))["type"] == "deliver"
        kicked = reading(admin, queue)
        assert admin.delete(f"/v1/connections/{kicked['id']}").status_code == 204
        assert closed_with(ws, 5) == 4003
    (message,) = receive(admin, queue, wait_ms=500)
    assert (message["body"], message["attempt"]) == ("held", 2)
    assert gone(admin, kicked)
    assert codes(admin.delete(f"/v1/connections/{kicked['id']}")) == (404, "not-found")
    with connect(shared_server.ws_url) as again:
        again.send(json.dumps({"type": "connect", "token": token, "resume": {"session": session}}))
        connected = json.loads(again.recv(5))
        assert connected["resumed"] is False and connected["session"] != session


def test_a_kicked_event_stream_says_bye_and_gives_back_its_messages(
    admin: Client, shared_server: PushqServer, queue: str
) -> None:
    publish(admin, queue, {"body": "held"})
    with events(shared_server, make_key(admin, "consume:*")["key"], queue) as rest:
        kicked = reading(admin, queue)
        deadline = time.monotonic() + 5
        while reading(admin, queue)["sent"] == 0:
            assert time.monotonic() < deadline
        assert admin.delete(f"/v1/connections/{kicked['id']}").status_code == 204
        said = rest()
    assert "event: bye" in said and '"code":4003' in said and "retry: 1000" in said
    assert [m["body"] for m in receive(admin, queue, wait_ms=500)] == ["held"]
    assert gone(admin, kicked)


def test_a_kicked_receive_is_told_to_ask_again(admin: Client, shared_server: PushqServer, queue: str) -> None:
    poll = Waiting(shared_server, make_key(admin, "consume:*")["key"], queue)
    kicked = reading(admin, queue)
    assert admin.delete(f"/v1/connections/{kicked['id']}").status_code == 204
    answer = poll.answer(5)
    assert codes(answer) == (503, "unavailable") and answer.headers["retry-after"] == "1"
    publish(admin, queue, {"body": "not lost"})
    assert [m["attempt"] for m in receive(admin, queue)] == [1]


def test_a_revoked_key_ends_every_kind_of_connection_within_five_seconds(
    admin: Client, shared_server: PushqServer, queue: str
) -> None:
    admin.put(f"/v1/queues/{queue}-2")
    admin.put(f"/v1/queues/{queue}-3")
    made = make_key(admin, "consume:*")
    with (
        socket(shared_server, made["key"], queue) as (ws, _),
        events(shared_server, made["key"], f"{queue}-2") as rest,
    ):
        poll = Waiting(shared_server, made["key"], f"{queue}-3")
        reading(admin, f"{queue}-3")
        began = time.monotonic()
        assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert closed_with(ws, 5) == 4401
        assert '"code":"unauthenticated"' in rest()
        assert codes(poll.answer(5)) == (401, "unauthenticated")
        assert time.monotonic() - began < 5


def test_a_customer_sees_and_ends_its_own_tenants_connections_only(
    admin: Client, shared_server: PushqServer, queue: str
) -> None:
    tenant = f"tenant-{next(_numbers)}"
    admin.put(f"/v1/tenants/{tenant}")
    customer_key = make_key(admin, "admin", tenant=tenant)["key"]
    with with_key(admin, customer_key) as customer, socket(shared_server, shared_server.key, queue) as (ws, _):
        foreign = reading(admin, queue)
        assert customer.get("/v1/connections").json()["items"] == []
        assert codes(customer.delete(f"/v1/connections/{foreign['id']}")) == (404, "not-found")
        customer.put("/v1/queues/mine")
        with socket(shared_server, customer_key, "mine") as (mine, _):
            (own,) = customer.get("/v1/connections").json()["items"]
            assert own["tenant"] == tenant and own["id"] == reading(admin, "mine")["id"]
            assert customer.delete(f"/v1/connections/{own['id']}").status_code == 204
            assert closed_with(mine, 5) == 4003
        ws.send(json.dumps({"type": "ping"}))
        assert json.loads(ws.recv(5))["type"] == "pong"
    with with_key(admin, make_key(admin, "consume:*", "manage:*")["key"]) as worker:
        assert codes(worker.get("/v1/connections")) == (403, "forbidden")
        assert codes(worker.delete("/v1/connections/x")) == (403, "forbidden")


def test_connections_are_listed_in_pages(admin: Client, shared_server: PushqServer, queue: str) -> None:
    with socket(shared_server, shared_server.key, queue), socket(shared_server, shared_server.key, queue):
        ids: list[str] = []
        path = "/v1/connections?limit=1"
        while path:
            answer = admin.get(path)
            ids += [item["id"] for item in answer.json()["items"]]
            path = answer.headers["link"].partition(">")[0][1:] if "link" in answer.headers else ""
        assert len(ids) == len(set(ids)) >= 2 and ids == sorted(ids)
