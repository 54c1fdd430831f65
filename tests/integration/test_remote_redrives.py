"""Redrives of dead letters that lie at a backend: run there, asked for here, and whole whatever becomes of either."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.support.backend import Backend
from tests.support.patience import until
from tests.support.server import PushqServer

WAIT_S = 90.0
"""Far above what anything here takes: these machines are busy."""
_numbers = count()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("backend")) as backend:
        yield backend


@pytest.fixture(scope="module")
def gateway(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("gateway") / "data", env=backend.gateway_env) as gateway:
        yield gateway


@pytest.fixture
def http(gateway: PushqServer) -> Iterator[Client]:
    with Client(base_url=gateway.url, headers=gateway.headers, timeout=WAIT_S) as client:
        yield client


def made(http: Client, **config: Any) -> str:
    name = f"redriven{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json={"max_attempts": 1, **config})
    assert answer.status_code == 201, answer.text
    return name


def stats(http: Client, queue: str) -> dict[str, int]:
    found: dict[str, int] = http.get(f"/v1/queues/{queue}").raise_for_status().json()["stats"]
    return found


def died(http: Client, queue: str, *messages: dict[str, Any]) -> None:
    """Messages whose only attempt failed."""
    before = stats(http, queue)["dead"]
    for first in range(0, len(messages), 500):
        assert publish(http, queue, *messages[first : first + 500]).status_code == 201
    left = len(messages)
    while left:
        held = receive(http, queue, max=1000, wait_ms=20_000)
        answer = http.post(f"/v1/queues/{queue}/nack", json={"receipts": [one["receipt"] for one in held]})
        left -= sum(row["ok"] for row in answer.raise_for_status().json()["results"])
    assert stats(http, queue)["dead"] == before + len(messages)


def start(http: Client, queue: str, **wanted: Any) -> httpx2.Response:
    return http.post(f"/v1/queues/{queue}/redrives", json=wanted)


def started(http: Client, queue: str, **wanted: Any) -> str:
    answer = start(http, queue, **wanted)
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


def job(http: Client, location: str) -> dict[str, Any]:
    answer = http.get(location)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ended(http: Client, location: str) -> dict[str, Any]:
    until(lambda: job(http, location)["state"] != "running", within_s=WAIT_S)
    return job(http, location)


def all_of(http: Client, queue: str, expected: int) -> list[Any]:
    """The bodies of all that is ready, each acked."""
    found: list[Any] = []
    while len(found) < expected:
        held = receive(http, queue, max=1000, wait_ms=20_000)
        assert held, f"{len(found)} of {expected}"
        found += [one["body"] for one in held]
        answer = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [one["receipt"] for one in held]})
        assert all(row["ok"] for row in answer.raise_for_status().json()["results"])
    return found


# ----------------------------------------------------------------------------------------------------- what goes where


@pytest.mark.parametrize("suffix", ["", ".dead"])
@pytest.mark.parametrize("encrypted", [True, False])
def test_dead_letters_go_back_to_their_queue_as_if_new(http: Client, suffix: str, encrypted: bool) -> None:
    queue = made(http, priorities=3, encrypted=encrypted)
    messages = [
        {"body": {"n": n}, "id": f"m{n}", "key": "k", "priority": n % 3, "headers": {"a": str(n)}} for n in range(6)
    ]
    died(http, queue, *messages)
    assert start(http, queue + suffix, dry_run=True).json() == {"total": 6}
    found = ended(http, started(http, queue + suffix))
    assert (found["state"], found["done"], found["total"], found["error"]) == ("done", 6, 6, None)
    assert (stats(http, queue)["ready"], stats(http, queue)["dead"]) == (6, 0)
    again: list[dict[str, Any]] = []
    while len(again) < 6:
        again += receive(http, queue, max=10, wait_ms=20_000)
    assert [message["body"]["n"] for message in again] == [2, 5, 1, 4, 0, 3], "their priorities came with them"
    for message in again:
        assert message["id"] == f"m{message['body']['n']}"
        assert (message["key"], message["headers"]) == ("k", {"a": str(message["body"]["n"])})
        assert message["attempt"] == 1 and "dead_letter" not in message


@pytest.mark.parametrize("encrypted", [True, False])
def test_the_reason_of_a_nack_is_told_and_lies_at_the_backend_as_its_queue_says(
    http: Client, backend: Backend, encrypted: bool
) -> None:
    queue, why = made(http, encrypted=encrypted), f"plain-why-{encrypted}"
    publish(http, queue, {"body": 1})
    (held,) = receive(http, queue, max=1, wait_ms=20_000)
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [held["receipt"]], "reason": why})
    (letter,) = receive(http, f"{queue}.dead", max=1, wait_ms=20_000)
    (shown,) = http.get(f"/v1/queues/{queue}/messages?state=dead").json()["items"]
    for message in (letter, shown):
        assert [row["reason"] for row in message["dead_letter"]["history"]] == [why]
    stored = [file for file in backend.folder.rglob("*.mdb") if why.encode() in file.read_bytes()]
    assert bool(stored) is not encrypted


def test_sealed_messages_of_one_block_may_go_back_one_by_one(http: Client) -> None:
    queue = made(http)
    died(http, queue, *({"body": n, "id": f"m{n}"} for n in range(20)))
    for wanted in (["m3", "m17"], ["m4"]):
        assert ended(http, started(http, queue, filter={"ids": wanted}))["done"] == len(wanted)
    assert sorted(all_of(http, queue, 3)) == [3, 4, 17]
    assert ended(http, started(http, queue, filter={"reason": "max_attempts"}))["done"] == 17
    assert sorted(all_of(http, queue, 17)) == [n for n in range(20) if n not in (3, 4, 17)]


def test_sealed_messages_of_several_partitions_go_back_to_their_own(http: Client) -> None:
    queue = made(http, partitions=3)
    died(http, queue, *({"body": n, "key": f"k{n % 7}" if n % 2 else None} for n in range(60)))
    assert ended(http, started(http, queue))["done"] == 60
    assert sorted(all_of(http, queue, 60)) == list(range(60))


def test_letters_keep_their_priority_and_have_it_again_at_the_backend(http: Client) -> None:
    ranked = [("low", 0), ("high", 4), ("middle", 2)]
    queue, other = made(http, priorities=5, encrypted=False), made(http, priorities=5, encrypted=False)
    for body, priority in ranked:
        died(http, queue, {"body": body, "priority": priority})
    items = http.get(f"/v1/queues/{queue}/messages?state=dead").json()["items"]
    assert [(item["body"], item["priority"]) for item in items] == ranked
    for wanted, target in (({}, queue), ({"to": other}, other)):
        assert ended(http, started(http, queue, **wanted))["done"] == 3
        found: list[dict[str, Any]] = []
        while len(found) < 3:
            found += receive(http, target, max=3, wait_ms=20_000)
        assert [(m["body"], m["priority"]) for m in found] == [("high", 4), ("middle", 2), ("low", 0)]
        answer = http.post(f"/v1/queues/{target}/nack", json={"receipts": [m["receipt"] for m in found]})
        assert all(row["ok"] for row in answer.json()["results"])


def test_plain_messages_go_wherever_they_are_sent_and_are_found_by_their_headers(http: Client) -> None:
    queue, other = made(http, encrypted=False), made(http, encrypted=False)
    died(http, queue, *({"body": n, "headers": {"odd": str(n % 2)}} for n in range(6)))
    assert ended(http, started(http, queue, to=other, filter={"header": {"odd": "1"}}))["done"] == 3
    assert sorted(all_of(http, other, 3)) == [1, 3, 5]


def test_what_needs_keys_is_refused_by_name(http: Client) -> None:
    queue, other = made(http), made(http)
    died(http, queue, {"body": 1})
    assert pointers(refused(start(http, queue, to=other), 400, "invalid-request")) == ["/to"]
    problem = refused(start(http, queue, filter={"header": {"a": "b"}}), 400, "invalid-request")
    assert pointers(problem) == ["/filter/header"]
    assert "store.backends" in problem["detail"]
    assert stats(http, queue)["dead"] == 1


def test_plain_messages_stay_out_of_an_encrypted_queue(http: Client) -> None:
    queue, other = made(http, encrypted=False), made(http)
    died(http, queue, {"body": 1})
    found = ended(http, started(http, queue, to=other))
    assert found["state"] == "failed" and "with store.backends, encrypted messages of" in found["error"]
    assert (stats(http, queue)["dead"], stats(http, other)["ready"]) == (1, 0)


# --------------------------------------------------------------------------------------------------------------- jobs


def test_a_cancelled_redrive_leaves_what_it_has_not_moved(http: Client) -> None:
    queue = made(http)
    died(http, queue, *({"body": n} for n in range(40)))
    location = started(http, queue, rate_per_s=10)
    conflict = refused(start(http, queue), 409, "conflict")
    assert location.rpartition("/")[2] in conflict["detail"]
    until(lambda: job(http, location)["done"] >= 3, within_s=WAIT_S)
    found = http.delete(location).json()
    assert found["state"] == "cancelled" and 3 <= found["done"] < 40
    assert job(http, location) == found == http.delete(location).json()
    assert (stats(http, queue)["ready"], stats(http, queue)["dead"]) == (found["done"], 40 - found["done"])
    assert [one["id"] for one in http.get(f"/v1/queues/{queue}.dead/redrives").json()["items"]] == [found["id"]]
    refused(http.get(f"/v1/queues/{queue}/redrives/absent"), 404, "not-found")


def test_another_gateway_sees_a_redrive_and_may_cancel_it(
    http: Client, gateway: PushqServer, backend: Backend, tmp_path: Path
) -> None:
    queue = made(http)
    died(http, queue, *({"body": n} for n in range(40)))
    location = started(http, queue, rate_per_s=10)
    data = tmp_path / "second"
    data.mkdir(mode=0o700)
    (data / "master.key").write_bytes((gateway.data / "master.key").read_bytes())
    (data / "master.key").chmod(0o600)
    with (
        PushqServer(data, env=backend.gateway_env) as second,
        Client(base_url=second.url, headers=gateway.headers, timeout=WAIT_S) as other,
    ):
        assert job(other, location)["total"] == 40
        found = other.delete(location).json()
        assert found["state"] in ("cancelled", "done")
    assert job(http, location) == found


def test_a_redrive_ends_with_the_key_that_it_was_begun_with(http: Client) -> None:
    queue = made(http)
    died(http, queue, *({"body": n} for n in range(40)))
    key = make_key(http, f"manage:{queue}", f"publish:{queue}")
    with with_key(http, key["key"]) as client:
        location = started(client, queue, rate_per_s=10)
    assert http.delete(f"/v1/keys/{key['id']}").status_code == 204
    until(lambda: job(http, location)["state"] != "running", within_s=WAIT_S)
    found = job(http, location)
    assert found["state"] == "failed" and found["error"].startswith("the API key was revoked"), found
    assert (stats(http, queue)["ready"], stats(http, queue)["dead"]) == (found["done"], 40 - found["done"])


# ------------------------------------------------------------------------------------------------------------ crashes


def test_a_redrive_outlives_a_killed_backend_and_moves_every_message_once(tmp_path: Path) -> None:
    messages = 900
    (tmp_path / "b").mkdir()
    with (
        Backend(tmp_path / "b") as backend,
        PushqServer(tmp_path / "g", env=backend.gateway_env) as gateway,
        Client(base_url=gateway.url, headers=gateway.headers, timeout=WAIT_S) as http,
    ):
        queue = made(http)
        died(http, queue, *({"body": n} for n in range(messages)))
        location = started(http, queue, rate_per_s=300)
        for share in (messages // 5, messages // 2):
            until(lambda share=share: job(http, location)["done"] >= share, within_s=WAIT_S)  # type: ignore[misc]
            backend.kill()
            backend.start()
            until(lambda: http.get(location).status_code == 200, within_s=WAIT_S)
            now = stats(http, queue)
            assert now["ready"] + now["dead"] == messages
            assert now["ready"] >= share
        found = ended(http, location)
        assert (found["state"], found["done"], found["total"], found["error"]) == ("done", messages, messages, None)
        assert sorted(all_of(http, queue, messages)) == list(range(messages))
        assert stats(http, queue)["ready"] == 0


def test_a_cancel_that_was_refused_while_the_backend_was_away_may_be_asked_again(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with (
        Backend(tmp_path / "b") as backend,
        PushqServer(tmp_path / "g", env=backend.gateway_env) as gateway,
        Client(base_url=gateway.url, headers=gateway.headers, timeout=WAIT_S) as http,
    ):
        queue = made(http)
        died(http, queue, *({"body": n} for n in range(200)))
        location = started(http, queue, rate_per_s=20)
        until(lambda: job(http, location)["done"] >= 2, within_s=WAIT_S)
        backend.kill()
        refused(http.delete(location), 503, "unavailable")
        backend.start()
        until(lambda: http.get(location).status_code == 200, within_s=WAIT_S)
        found = http.delete(location).json()
        assert found["state"] == "cancelled" and found["done"] < 100
        now = stats(http, queue)
        assert (now["ready"], now["dead"]) == (found["done"], 200 - found["done"])
