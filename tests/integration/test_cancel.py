"""`DELETE /v1/queues/{q}/messages/{id}` on the real server: taken back for good, also when the server is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.integration.calls import Client, make_key, publish, receive, refused, with_key
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(http: Client) -> str:
    return made(http)


def made(http: Client, **config: Any) -> str:
    name = f"cancel{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def cancel(http: Client, queue: str, message: str) -> httpx2.Response:
    return http.delete(f"/v1/queues/{queue}/messages/{quote(message, safe='')}")


def stats(http: Client, queue: str) -> dict[str, int]:
    found: dict[str, int] = http.get(f"/v1/queues/{queue}").json()["stats"]
    return found


def test_a_ready_message_is_cancelled_and_nobody_gets_it(http: Client, queue: str) -> None:
    ids = [m["id"] for m in publish(http, queue, *({"body": n} for n in range(3))).json()["messages"]]
    answer = cancel(http, queue, ids[1])
    assert (answer.status_code, answer.content) == (204, b"")
    assert stats(http, queue)["ready"] == 2, "read your own writes"
    assert [m["body"] for m in receive(http, queue)] == [0, 2]


def test_a_scheduled_message_is_cancelled_and_nobody_gets_it(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n, "id": f"m{n}", "delay_ms": 300} for n in range(3)))
    assert cancel(http, queue, "m1").status_code == 204
    assert stats(http, queue)["delayed"] == 2
    assert [m["body"] for m in wait_for(http, queue, 2)] == [0, 2]
    assert stats(http, queue)["delayed"] == 0 and stats(http, queue)["ready"] == 0


def wait_for(http: Client, queue: str, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10
    while len(found) < number and time.monotonic() < deadline:
        found += receive(http, queue, max=10, wait_ms=500)
    return found


def test_a_message_that_a_consumer_has_is_in_conflict(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1, "id": "mine"})
    (held,) = receive(http, queue)
    problem = refused(cancel(http, queue, "mine"), 409, "conflict")
    assert "in flight" in problem["detail"]
    (result,) = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [held["receipt"]]}).json()["results"]
    assert result["ok"]
    refused(cancel(http, queue, "mine"), 404, "not-found")


def test_what_is_not_there_is_not_found(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1, "id": "once"})
    assert cancel(http, queue, "once").status_code == 204
    refused(cancel(http, queue, "once"), 404, "not-found")
    refused(cancel(http, queue, "nobody's"), 404, "not-found")
    refused(cancel(http, "absent", "once"), 404, "queue-not-found")


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "ä ö?#", "x" * 256])
def test_any_id_can_be_named(http: Client, queue: str, name: str) -> None:
    publish(http, queue, {"body": 1, "id": name})
    assert cancel(http, queue, name).status_code == 204
    assert receive(http, queue) == []


def test_publish_or_manage_is_enough_and_nothing_else_is(http: Client, queue: str) -> None:
    for scope, status in (("publish", 204), ("manage", 204), ("consume", 403), ("view", 403)):
        publish(http, queue, {"body": 1, "id": scope})
        with with_key(http, make_key(http, f"{scope}:{queue}")["key"]) as limited:
            assert cancel(limited, queue, scope).status_code == status, scope


def test_a_dead_letter_can_be_taken_out_by_its_id(http: Client) -> None:
    queue = made(http, max_attempts=1)
    publish(http, queue, {"body": 1, "id": "a"}, {"body": 2, "id": "b"})
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [m["receipt"] for m in receive(http, queue)]})
    assert cancel(http, f"{queue}.dead", "a").status_code == 204
    assert [m["id"] for m in http.get(f"/v1/queues/{queue}/messages?state=dead").json()["items"]] == ["b"]


def test_a_stream_has_nothing_to_cancel(http: Client) -> None:
    queue = made(http, kind="stream")
    (placed,) = publish(http, queue, {"body": 1}).json()["messages"]
    refused(cancel(http, queue, placed["id"]), 400, "invalid-request")


def test_a_strict_queue_goes_on_behind_a_cancelled_message(http: Client) -> None:
    queue = made(http, ordering="strict")
    publish(http, queue, *({"body": n, "key": "k", "id": f"m{n}"} for n in range(4)))
    (held,) = receive(http, queue, max=1)
    assert cancel(http, queue, "m1").status_code == 204
    http.post(f"/v1/queues/{queue}/ack", json={"receipts": [held["receipt"]]})
    assert [m["body"] for m in receive(http, queue, wait_ms=2000)] == [2, 3]


def test_a_message_that_was_cancelled_stays_so_when_the_server_is_killed(server: PushqServer) -> None:
    with Client(base_url=server.url, headers=server.headers, timeout=15) as http:
        queue = made(http)
        publish(http, queue, *({"body": f"ready {n}", "id": f"r{n}"} for n in range(4)))
        publish(http, queue, *({"body": f"later {n}", "id": f"d{n}", "delay_ms": 1500} for n in range(4)))
        for name in ("r1", "d2"):
            assert cancel(http, queue, name).status_code == 204
        server.kill()
        server.start()
        for name in ("r1", "d2"):
            refused(cancel(http, queue, name), 404, "not-found")
        found = sorted(m["body"] for m in wait_for(http, queue, 6))
        assert found == ["later 0", "later 1", "later 3", "ready 0", "ready 2", "ready 3"]
        assert cancel(http, queue, "d1").status_code == 409
