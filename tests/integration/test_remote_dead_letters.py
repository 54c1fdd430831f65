"""Encrypted dead letters at a backend, which has no keys, on their way to the queue that is named for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.encryption.master_keys import new_master_text
from tests.integration.calls import Client, publish, receive
from tests.support.backend import Backend
from tests.support.patience import until
from tests.support.server import PushqServer

WAIT_S = 30.0
MASTER = {"PUSHQ_ENCRYPTION__MASTER": "environment", "PUSHQ_MASTER_KEY": new_master_text()}
"""The master key that all gateways share."""
_numbers = count()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("backend")) as backend:
        yield backend


@pytest.fixture(scope="module")
def gateway(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("gateway") / "data", env=backend.gateway_env | MASTER) as gateway:
        yield gateway


@pytest.fixture
def http(gateway: PushqServer) -> Iterator[Client]:
    with Client(base_url=gateway.url, headers=gateway.headers, timeout=WAIT_S) as client:
        yield client


def made(http: Client, **config: Any) -> str:
    name = f"letters{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def stats(http: Client, queue: str) -> dict[str, int]:
    found: dict[str, int] = http.get(f"/v1/queues/{queue}").raise_for_status().json()["stats"]
    return found


def given_up(http: Client, queue: str, messages: int) -> None:
    """Nacks the only attempt of so many messages."""
    while messages:
        held = receive(http, queue, max=1000, wait_ms=10_000)
        assert held, f"{messages} are missing"
        told = {"receipts": [one["receipt"] for one in held], "reason": "no stock"}
        results = http.post(f"/v1/queues/{queue}/nack", json=told).raise_for_status().json()["results"]
        messages -= sum(row["ok"] for row in results)


def letters_of(http: Client, queue: str, expected: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < expected:
        held = receive(http, queue, max=1000, wait_ms=10_000)
        assert held, f"{len(found)} of {expected} came"
        found += held
        receipts = [one["receipt"] for one in held]
        results = http.post(f"/v1/queues/{queue}/ack", json={"receipts": receipts}).raise_for_status().json()["results"]
        assert all(row["ok"] for row in results)
    return found


@pytest.mark.parametrize(
    ("from_encrypted", "to_encrypted"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_a_dead_letter_goes_to_the_named_queue_and_can_be_read_there(
    http: Client, from_encrypted: bool, to_encrypted: bool
) -> None:
    grave = made(http, encrypted=to_encrypted)
    queue = made(http, encrypted=from_encrypted, max_attempts=1, dead_letter_queue=grave)
    sent = [{"body": {"n": n}, "headers": {"h": str(n)}, "key": f"k{n % 3}"} for n in range(20)]
    assert publish(http, queue, *sent).status_code == 201
    given_up(http, queue, 20)
    letters = letters_of(http, grave, 20)
    assert sorted(one["body"]["n"] for one in letters) == list(range(20))
    assert all(one["headers"] == {"h": str(one["body"]["n"])} for one in letters)
    assert all(one["key"] == f"k{one['body']['n'] % 3}" and one["attempt"] == 1 for one in letters)
    death = letters[0]["dead_letter"]
    assert (death["from"], death["reason"], death["attempts"]) == (queue, "max_attempts", 1)
    assert death["history"][0]["reason"] == "no stock"
    assert stats(http, queue)["dead"] == 0 and stats(http, grave)["ready"] == 0
    assert [one["name"] for one in http.get("/v1/queues?limit=1000").json()["items"] if "/" in one["name"]] == []


def test_letters_wait_while_their_queue_is_full(http: Client) -> None:
    grave = made(http, max_messages=5)
    queue = made(http, max_attempts=1, dead_letter_queue=grave)
    assert publish(http, queue, *({"body": n} for n in range(8))).status_code == 201
    given_up(http, queue, 8)
    until(lambda: stats(http, grave)["ready"] == 5 or None, within_s=WAIT_S)
    assert stats(http, queue)["dead"] == 3
    assert sorted(one["body"] for one in letters_of(http, grave, 8)) == list(range(8))


def test_letters_stay_with_their_queue_where_it_names_no_other_any_more(http: Client) -> None:
    grave = made(http, max_messages=1)
    queue = made(http, max_attempts=1, dead_letter_queue=grave)
    assert publish(http, queue, {"body": 1}, {"body": 2}).status_code == 201
    given_up(http, queue, 2)
    until(lambda: stats(http, grave)["ready"] == 1 or None, within_s=WAIT_S)
    etag = http.get(f"/v1/queues/{queue}").headers["etag"]
    change = {"dead_letter_queue": f"{queue}.dead"}
    assert http.patch(f"/v1/queues/{queue}", json=change, headers={"if-match": etag}).status_code == 200
    (letter,) = letters_of(http, f"{queue}.dead", 1)
    assert letter["dead_letter"]["from"] == queue


def test_an_outbox_is_no_queue_for_clients(http: Client) -> None:
    grave = made(http)
    queue = made(http, max_attempts=1, dead_letter_queue=grave)
    answer = http.post(f"/v1/queues/{grave}/messages", json={"messages": [{"body": 1}]})
    assert answer.status_code == 201
    assert http.get(f"/v1/queues/{queue}%2Foutbox").status_code == 404


def test_a_gateway_that_is_killed_leaves_each_letter_in_one_place(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory, http: Client
) -> None:
    grave = made(http)
    queue = made(http, max_attempts=1, dead_letter_queue=grave)
    messages = 600
    with PushqServer(tmp_path_factory.mktemp("other") / "data", env=backend.gateway_env | MASTER) as other:
        with Client(base_url=other.url, headers=http.headers, timeout=WAIT_S) as there:
            assert publish(there, queue, *({"body": n} for n in range(messages))).status_code == 201
            held: list[str] = []
            while len(held) < messages:
                held += [one["receipt"] for one in receive(there, queue, max=1000, wait_ms=10_000)]
            there.post(f"/v1/queues/{queue}/nack", json={"receipts": held}).raise_for_status()
        other.kill()
    assert sorted(one["body"] for one in letters_of(http, grave, messages)) == list(range(messages))
    assert stats(http, queue)["dead"] == 0 and stats(http, grave)["ready"] == 0


def test_letters_of_a_single_process_are_carried_by_several(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with PushqServer(folder) as one, Client(base_url=one.url, headers=one.headers, timeout=WAIT_S) as http:
        grave = made(http, max_messages=1)
        queue = made(http, max_attempts=1, dead_letter_queue=grave)
        assert publish(http, queue, *({"body": n} for n in range(3))).status_code == 201
        given_up(http, queue, 3)
    several = PushqServer(folder, "--gateways", "2")
    with several, Client(base_url=several.url, headers=several.headers, timeout=WAIT_S) as http:
        assert sorted(one["body"] for one in letters_of(http, grave, 3)) == [0, 1, 2]
