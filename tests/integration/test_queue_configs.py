"""Configs of queues over the real server's API: made, shown, changed, refused, and found again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.conftest import StartServer
from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"config-{next(_numbers)}"


def put(http: Client, name: str, **config: Any) -> httpx2.Response:
    return http.put(f"/v1/queues/{name}", json=config)


def patch(http: Client, name: str, **changes: Any) -> httpx2.Response:
    return http.patch(f"/v1/queues/{name}", json=changes, headers={"If-Match": "*"})


def config_of(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code in (200, 201), answer.text
    config: dict[str, Any] = answer.json()["config"]
    return config


def test_a_queue_shows_what_holds_for_it(http: Client, name: str) -> None:
    config = config_of(put(http, name, delivery="exactly_once"))
    assert (config["dedupe"], config["lease_mode"], config["fair_by"]) == ("id", "replicated", "key")
    assert config["dead_letter_queue"] == f"{name}.dead"
    assert config_of(put(http, f"{name}-stream", kind="stream"))["retention_ms"] == 604_800_000


def test_what_a_queue_shows_makes_the_same_queue(http: Client, name: str) -> None:
    config = config_of(put(http, name, ordering="strict", max_messages=5, overflow="dead_letter_oldest"))
    again = put(http, name, **config)
    assert (again.status_code, config_of(again)) == (200, config)
    assert put(http, name, ordering="strict", max_messages=5, overflow="dead_letter_oldest").status_code == 200
    refused(put(http, name, ordering="strict"), 409, "conflict")


def test_a_combination_without_sense_is_refused_and_nothing_is_made(http: Client, name: str) -> None:
    problem = refused(put(http, name, ordering="strict", priorities=3), 400, "invalid-request")
    assert pointers(problem) == ["/ordering", "/priorities"] and "overtake" in problem["detail"]
    refused(http.get(f"/v1/queues/{name}"), 404, "queue-not-found")


def test_a_receive_from_a_queue_without_leases_may_not_ask_for_one(http: Client, name: str) -> None:
    config_of(put(http, name, delivery="at_most_once"))
    answer = http.post(f"/v1/queues/{name}/receive", json={"visibility_timeout_ms": 5000})
    assert pointers(refused(answer, 400, "invalid-request")) == ["/visibility_timeout_ms"]
    assert http.post(f"/v1/queues/{name}/receive", json={}).json() == {"messages": []}
    dead = http.post(f"/v1/queues/{name}.dead/receive", json={"visibility_timeout_ms": 5000})
    assert dead.json() == {"messages": []}, "dead letters are leased"


def lowered_after(http: Client, name: str, attempts: int) -> None:
    """A queue whose only message had so many attempts before it was told to allow but one."""
    config_of(put(http, name, max_attempts=5))
    publish(http, name, {"body": "a", "id": "a"})
    for attempt in range(1, attempts + 1):
        (held,) = receive(http, name, wait_ms=5000)
        assert held["attempt"] == attempt
        assert settled(http, name, "nack", held)
    config_of(patch(http, name, max_attempts=1))


def settled(http: Client, name: str, how: str, message: dict[str, Any]) -> bool:
    (result,) = http.post(f"/v1/queues/{name}/{how}", json={"receipts": [message["receipt"]]}).json()["results"]
    return bool(result["ok"])


def test_a_lower_max_attempts_buries_nothing_and_holds_for_the_attempt_that_follows(http: Client, name: str) -> None:
    lowered_after(http, name, 3)
    stats = http.get(f"/v1/queues/{name}").json()["stats"]
    assert (stats["ready"], stats["dead"]) == (1, 0)
    (held,) = receive(http, name, wait_ms=5000)
    assert held["attempt"] == 4
    assert settled(http, name, "nack", held)
    assert receive(http, name) == []
    (letter,) = receive(http, f"{name}.dead", wait_ms=5000)
    assert (letter["dead_letter"]["reason"], letter["dead_letter"]["attempts"]) == ("max_attempts", 4)


def test_the_attempt_that_a_lower_max_attempts_leaves_may_lapse_or_succeed(http: Client, name: str) -> None:
    lowered_after(http, name, 2)
    assert len(receive(http, name, wait_ms=5000, visibility_timeout_ms=0)) == 1, "its lease lapses at once"
    (letter,) = receive(http, f"{name}.dead", wait_ms=5000)
    assert [row["outcome"] for row in letter["dead_letter"]["history"]] == ["nacked", "nacked", "timed_out"]
    lowered_after(http, f"{name}-acked", 2)
    (held,) = receive(http, f"{name}-acked", wait_ms=5000)
    assert settled(http, f"{name}-acked", "ack", held)
    stats = http.get(f"/v1/queues/{name}-acked").json()["stats"]
    assert (stats["ready"], stats["dead"], stats["acked_total"]) == (0, 0, 1)


def test_a_change_without_sense_is_refused_and_nothing_changes(http: Client, name: str) -> None:
    before = config_of(put(http, name, ordering="strict"))
    assert pointers(refused(patch(http, name, priorities=3), 400, "invalid-request")) == ["/priorities"]
    assert pointers(refused(patch(http, name, lease_mode="memory"), 400, "invalid-request")) == ["/lease_mode"]
    assert config_of(http.get(f"/v1/queues/{name}")) == before


def test_settings_change_while_the_queue_lives(http: Client, name: str) -> None:
    put(http, name)
    changed = config_of(patch(http, name, max_attempts=3, max_messages=5, dead_letter_queue=f"{name}.dead"))
    assert (changed["max_attempts"], changed["max_messages"]) == (3, 5)
    assert config_of(patch(http, name, max_messages=None, tags={"a": "b"}))["max_messages"] is None
    assert config_of(patch(http, name, max_attempts=10, dead_letter_queue=None))["dead_letter_queue"] is None


def test_a_dead_letter_queue_must_be_there_and_end_somewhere(http: Client, name: str) -> None:
    errors = f"{name}-errors"
    assert pointers(refused(put(http, name, dead_letter_queue=errors), 400, "invalid-request")) == [
        "/dead_letter_queue"
    ]
    put(http, errors)
    assert config_of(put(http, name, dead_letter_queue=errors))["dead_letter_queue"] == errors
    for wrong in (name, errors, f"{name}.dead", "absent"):
        problem = refused(patch(http, errors, dead_letter_queue=wrong), 400, "invalid-request")
        assert pointers(problem) == ["/dead_letter_queue"]
    assert config_of(patch(http, errors, dead_letter_queue=f"{errors}.dead"))["dead_letter_queue"] == f"{errors}.dead"


def test_a_neighbour_is_a_queue_of_the_same_tenant(http: Client, name: str) -> None:
    http.put("/v1/tenants/elsewhere")
    key = make_key(http, "admin", tenant="elsewhere")["key"]
    with with_key(http, key) as other:
        put(other, f"{name}-theirs")
    assert pointers(refused(put(http, name, colocate_with=f"{name}-theirs"), 400, "invalid-request")) == [
        "/colocate_with"
    ]
    put(http, f"{name}-ours")
    assert config_of(put(http, name, colocate_with=f"{name}-ours"))["colocate_with"] == f"{name}-ours"


def test_who_names_a_dead_letter_queue_must_be_allowed_to_publish_there(http: Client, name: str) -> None:
    errors = f"{name}-errors"
    put(http, errors)
    with with_key(http, make_key(http, f"manage:{name}", f"manage:{errors}")["key"]) as limited:
        refused(put(limited, name, dead_letter_queue=errors), 403, "forbidden")
        put(limited, name)
        problem = refused(patch(limited, name, dead_letter_queue=errors), 403, "forbidden")
        assert f"publish:{errors}" in problem["detail"]
        assert config_of(http.get(f"/v1/queues/{name}"))["dead_letter_queue"] == f"{name}.dead"
        assert patch(http, name, dead_letter_queue=errors).status_code == 200
        assert patch(limited, name, max_attempts=3).status_code == 200, "what is named already is not asked about"
    with with_key(http, make_key(http, f"manage:{name}*", f"publish:{errors}")["key"]) as allowed:
        assert put(allowed, f"{name}-other", dead_letter_queue=errors).status_code == 201


def test_a_changed_setting_holds_for_the_companions_too(http: Client, name: str) -> None:
    put(http, name)
    assert config_of(http.get(f"/v1/queues/{name}.dead"))["visibility_timeout_ms"] == 30_000
    patch(http, name, visibility_timeout_ms=5_000, max_message_bytes=1_000)
    for suffix in (".dead", ".late"):
        config = config_of(http.get(f"/v1/queues/{name}{suffix}"))
        assert (config["visibility_timeout_ms"], config["max_message_bytes"]) == (5_000, 1_000)


@pytest.mark.parametrize("suffix", [".dead", ".late"])
def test_a_companion_is_changed_and_deleted_with_its_queue(http: Client, name: str, suffix: str) -> None:
    refused(patch(http, name + suffix, tags={}), 404, "queue-not-found")
    put(http, name)
    for answer in (put(http, name + suffix), patch(http, name + suffix, tags={})):
        problem = refused(answer, 400, "invalid-request")
        assert pointers(problem) == ["/name"] and repr(name) in problem["detail"]
    assert http.get(f"/v1/queues/{name}").status_code == 200


def test_a_companion_cannot_be_deleted_alone(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})
    with Client(base_url=server.url, headers=server.headers) as http:
        put(http, "orders")
        answer = http.delete("/v1/queues/orders.dead?confirm=orders.dead&discard=true")
        assert "change 'orders'" in refused(answer, 400, "invalid-request")["detail"]
        assert http.get("/v1/queues/orders").status_code == 200


def changed_while_its_body_comes(server: PushqServer, name: str, etag: str, meanwhile: Callable[[], None]) -> int:
    """The status of a PATCH for three attempts."""
    slow = HTTPConnection(urlsplit(server.url).netloc, timeout=15)
    body = b'{"max_attempts": 3}'
    slow.putrequest("PATCH", f"/v1/queues/{name}")
    for header, value in {**server.headers, "If-Match": etag, "Content-Length": str(len(body))}.items():
        slow.putheader(header, value)
    slow.endheaders()
    time.sleep(0.1)  # for the server to compare the ETag; should it be slower, the answer is the same
    meanwhile()
    slow.send(body)
    status = slow.getresponse().status
    slow.close()
    return status


def test_a_change_that_comes_while_a_body_does_is_not_overwritten(shared_server: PushqServer, name: str) -> None:
    with Client(base_url=shared_server.url, headers=shared_server.headers) as http:
        etag = put(http, name).headers["etag"]

        def meanwhile() -> None:
            assert patch(http, name, tags={"a": "b"}).status_code == 200

        assert changed_while_its_body_comes(shared_server, name, etag, meanwhile) == 412
        assert config_of(http.get(f"/v1/queues/{name}"))["max_attempts"] == 10


def test_a_queue_that_is_made_anew_while_a_body_comes_is_left_alone(start_server: StartServer, name: str) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})
    with Client(base_url=server.url, headers=server.headers) as http:
        etag = put(http, name, visibility_timeout_ms=5_000).headers["etag"]

        def meanwhile() -> None:
            assert http.delete(f"/v1/queues/{name}?confirm={name}&discard=true").status_code == 200
            assert put(http, name).status_code == 201

        assert changed_while_its_body_comes(server, name, etag, meanwhile) == 412
        config = config_of(http.get(f"/v1/queues/{name}"))
        assert (config["max_attempts"], config["visibility_timeout_ms"]) == (10, 30_000)
