"""The HTTP half of the public interface, checked from outside as a client that knows only its description would."""

from __future__ import annotations

import base64
import json
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import httpx2
import pytest

from tests.conftest import StartServer
from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, ticket_for, with_key
from tests.support.patience import FAR
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def anyone(shared_server: PushqServer) -> Iterator[Client]:
    """A client without a credential."""
    with Client(base_url=shared_server.url, timeout=15) as client:
        yield client


@pytest.fixture
def queue(http: Client) -> str:
    name = f"face{next(_numbers)}"
    assert http.put(f"/v1/queues/{name}", json={}).status_code == 201
    return name


AsKey = Callable[[str], Client]


@pytest.fixture
def as_key(http: Client) -> Iterator[AsKey]:
    """`as_key(token)`: a client that is closed with the test."""
    clients: list[Client] = []

    def client(token: str) -> Client:
        clients.append(with_key(http, token))
        return clients[-1]

    yield client
    for made in clients:
        made.close()


def stats(http: Client, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/queues/{queue}").json()["stats"]
    return found


def settle(http: Client, queue: str, verb: str, *receipts: str, **more: Any) -> list[tuple[bool, str | None]]:
    answer = http.post(f"/v1/queues/{queue}/{verb}", json={"receipts": list(receipts), **more})
    assert answer.status_code == 200, answer.text
    assert [result["receipt"] for result in answer.json()["results"]] == list(receipts)
    return [(result["ok"], result.get("error")) for result in answer.json()["results"]]


class Events:
    """An event stream, read event by event; comments come as events named `:`."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.iter_lines()

    def next(self, *names: str) -> dict[str, str]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(":"):
                fields.setdefault("event", ":")
                continue
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif fields:
                if not names or fields.get("event") in names:
                    return fields
                fields = {}
        raise AssertionError(f"the stream ended before {names}")

    def message(self) -> tuple[str, dict[str, Any]]:
        event = self.next("message")
        return event["id"], json.loads(event["data"])


# ------------------------------------------------------------------------------------- identity, order of checks


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/absent", "/v1/no/such/path", "/v1/queues/a/messages"])
def test_without_a_credential_every_path_below_v1_asks_for_one(anyone: Client, method: str, path: str) -> None:
    answer = anyone.request(method, path)
    refused(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["ratelimit"] and answer.headers["ratelimit-policy"]


@pytest.mark.parametrize("credential", ["Bearer", "Bearer pushq_x_y", "Basic dTpw", "Bearer a.b.c", "pushq_a_b", ""])
def test_a_credential_that_is_none_is_401(anyone: Client, credential: str) -> None:
    refused(anyone.get("/v1/queues", headers={"Authorization": credential}), 401, "unauthenticated")


def test_absent_comes_before_forbidden_and_forbidden_before_malformed(http: Client, as_key: AsKey, queue: str) -> None:
    weak = as_key(make_key(http, "view:nothing-*")["key"])
    bad = {"content": b"{", "headers": {"Content-Type": "application/json"}}
    for verb in ("messages", "receive", "ack", "nack", "extend", "purge"):
        refused(weak.post(f"/v1/queues/absent-queue/{verb}", **bad), 404, "queue-not-found")
        refused(weak.post(f"/v1/queues/{queue}/{verb}", **bad), 403, "forbidden")
        refused(http.post(f"/v1/queues/{queue}/{verb}", **bad), 400, "invalid-request")
    refused(weak.get("/v1/queues/absent-queue"), 404, "queue-not-found")
    refused(weak.get(f"/v1/queues/{queue}"), 403, "forbidden")
    refused(weak.get("/v1/queues/absent-queue/events"), 404, "queue-not-found")
    refused(weak.get(f"/v1/queues/{queue}/events?credit=x"), 403, "forbidden")
    refused(weak.put("/v1/queues/fresh-queue", json={"nonsense": 1}), 403, "forbidden")
    refused(weak.post("/v1/keys", json={"nonsense": 1}), 403, "forbidden")


SCOPES = {
    "publish": {("POST", "messages")},
    "consume": {("POST", "receive"), ("POST", "ack"), ("POST", "nack"), ("POST", "extend"), ("GET", "messages")},
    "view": {("GET", ""), ("GET", "messages")},
    "manage": {("PUT", ""), ("POST", "purge"), ("PATCH", "")},
}
CALLS = sorted(set().union(*SCOPES.values()))


@pytest.mark.parametrize("verb", SCOPES)
def test_a_scope_opens_its_calls_on_names_of_its_pattern(http: Client, as_key: AsKey, verb: str) -> None:
    inside, outside = f"{verb}-in-x", f"{verb}-out-x"
    for name in (inside, outside):
        http.put(f"/v1/queues/{name}", json={})
    narrow = as_key(make_key(http, f"{verb}:*-in-*")["key"])
    for method, path in CALLS:
        for name in (inside, outside):
            got = narrow.request(method, f"/v1/queues/{name}/{path}".rstrip("/"), json={"wrong": 1})
            allowed = name == inside and (method, path) in SCOPES[verb]
            assert (got.status_code != 403) == allowed, (method, path, name, got.text)
    listed = [item["name"] for item in narrow.get("/v1/queues?limit=1000").json()["items"]]
    assert outside not in listed and (verb != "view" or inside in listed), listed


def test_a_view_key_peeks_without_bodies(http: Client, as_key: AsKey, queue: str) -> None:
    publish(http, queue, {"body": {"secret": 1}})
    seen = as_key(make_key(http, f"view:{queue}")["key"]).get(f"/v1/queues/{queue}/messages").json()["items"]
    assert len(seen) == 1 and "body" not in seen[0] and "body_base64" not in seen[0] and "receipt" not in seen[0]


def test_another_tenant_has_its_own_names_and_sees_nothing(http: Client, as_key: AsKey, queue: str) -> None:
    assert http.put("/v1/tenants/neighbour").status_code == 201
    assert http.put("/v1/tenants/neighbour").status_code == 200
    other = as_key(make_key(http, "admin", tenant="neighbour")["key"])
    assert other.get("/v1/queues").json() == {"items": [], "next": None}
    for method, path in CALLS:
        if method != "PUT":
            answer = other.request(method, f"/v1/queues/{queue}/{path}".rstrip("/"), json={})
            refused(answer, 404, "queue-not-found")
    assert other.put(f"/v1/queues/{queue}", json={"tags": {"whose": "theirs"}}).status_code == 201
    assert http.get(f"/v1/queues/{queue}").json()["config"].get("tags") in (None, {})
    refused(other.post("/v1/keys", json={"name": "k", "scopes": ["admin"], "tenant": "default"}), 403, "forbidden")
    refused(other.get("/v1/tenants"), 403, "forbidden")


def test_a_key_has_the_shape_of_the_interface_and_lives_until_it_is_deleted(http: Client, as_key: AsKey) -> None:
    made = make_key(http, "view:*")
    assert set(made) == {"id", "key", "name", "tenant", "scopes", "created_at", "expires_at"}
    assert re.fullmatch(rf"pushq_{re.escape(made['id'])}_\S+", made["key"])
    assert (made["tenant"], made["scopes"], made["expires_at"]) == ("default", ["view:*"], None)
    assert all("key" not in item for item in http.get("/v1/keys?limit=1000").json()["items"])
    rotated = http.post(f"/v1/keys/{made['id']}/rotate", json={"grace_ms": 0})
    assert rotated.status_code in (200, 201) and rotated.json()["key"] != made["key"]
    refused(as_key(made["key"]).get("/v1/queues"), 401, "unauthenticated")
    gone = http.delete(f"/v1/keys/{made['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    refused(http.delete(f"/v1/keys/{made['id']}"), 404, "not-found")
    refused(as_key(rotated.json()["key"]).get("/v1/queues"), 401, "unauthenticated")


def test_a_ticket_says_that_it_ends_in_30_s_and_opens_one_stream(http: Client, anyone: Client, queue: str) -> None:
    made = http.post("/v1/tickets", json={"queue": queue, "scopes": [f"consume:{queue}"]})
    assert made.status_code == 201
    left = datetime.fromisoformat(made.json()["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=25) < left <= timedelta(seconds=30.5)
    path = f"/v1/queues/{queue}/events?ticket={made.json()['ticket']}"
    with anyone.stream("GET", path) as answer:
        assert answer.status_code == 200
    refused(anyone.get(path), 401, "unauthenticated")
    refused(anyone.get(f"/v1/queues?ticket={ticket_for(http)}"), 401, "unauthenticated")
    refused(http.post("/v1/tickets", json={"queu": queue}), 400, "invalid-request")


# ------------------------------------------------------------------------------------------- paths and headers


def test_unknown_paths_and_wrong_methods_are_problems(http: Client, anyone: Client, queue: str) -> None:
    refused(anyone.get("/no/such/page"), 404, "not-found")
    refused(http.get("/v1/no-such"), 404, "not-found")
    refused(http.get(f"/v1/queues/{queue}/no-such"), 404, "not-found")
    for method, path in (("PUT", "receive"), ("GET", "ack"), ("DELETE", "messages"), ("POST", "")):
        answer = http.request(method, f"/v1/queues/{queue}/{path}".rstrip("/"))
        refused(answer, 405, "method-not-allowed")
        assert method not in answer.headers["allow"]


def test_every_answer_below_v1_has_the_rate_limit_headers(http: Client, queue: str) -> None:
    answers = [
        http.get("/v1/queues"),
        http.put("/v1/queues/-"),
        http.get("/v1/queues/absent"),
        publish(http, queue, {"body": 1}),
        http.delete(f"/v1/queues/{queue}"),
        http.request("OPTIONS", "/v1/queues"),
    ]
    for answer in answers:
        assert "50000" in answer.headers["ratelimit-policy"] and answer.headers["ratelimit"], answer.request


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/livez", ""),
        ("/readyz", ""),
        ("/lbz", ""),
        ("/metrics", "text/plain"),
        ("/openapi.json", "application/json"),
        ("/asyncapi.json", "application/json"),
        ("/docs", "text/html"),
        ("/", "text/html"),
        ("/static/pushq.js", "text/javascript"),
    ],
)
def test_operations_answer_get_and_head_without_a_key(anyone: Client, path: str, kind: str) -> None:
    answer = anyone.get(path, follow_redirects=True)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
    head = anyone.head(path, follow_redirects=True)
    assert (head.status_code, head.content) == (200, b"")


def test_the_documents_are_of_the_promised_versions(anyone: Client) -> None:
    assert anyone.get("/openapi.json").json()["openapi"].startswith("3.1")
    assert anyone.get("/asyncapi.json").json()["asyncapi"]
    first = anyone.get("/").text
    assert all(f'href="/{name}' in first for name in ("demo", "console", "docs")), first


# ------------------------------------------------------------------------------------------------------ queues

DEFAULTS = {
    "kind": "work", "partitions": 1, "delivery": "at_least_once", "ordering": "best_effort",
    "visibility_timeout_ms": 30000, "durability": "fsync",
}  # fmt: skip


def test_a_queue_tells_its_defaults_and_its_statistics(http: Client) -> None:
    made = http.put("/v1/queues/told", json={})
    assert made.status_code == 201
    got = http.get("/v1/queues/told")
    assert made.json() == got.json() and made.headers["etag"] == got.headers["etag"]
    found = got.json()
    assert set(found) == {"name", "config", "created_at", "owner", "stats"}
    assert {name: found["config"][name] for name in DEFAULTS} == DEFAULTS
    assert found["config"]["max_message_bytes"] == 262144
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["created_at"])
    assert http.put("/v1/queues/told", json=DEFAULTS).status_code == 200
    refused(http.put("/v1/queues/told", json={"visibility_timeout_ms": 1000}), 409, "conflict")


def test_a_patch_needs_the_etag_it_was_based_on(http: Client, queue: str) -> None:
    path = f"/v1/queues/{queue}"
    old = http.get(path).headers["etag"]
    refused(http.patch(path, json={"visibility_timeout_ms": 1000}), 428, "precondition-required")
    stale = http.patch(path, json={"visibility_timeout_ms": 1000}, headers={"If-Match": '"other"'})
    refused(stale, 412, "precondition-failed")
    done = http.patch(path, json={"visibility_timeout_ms": 1000}, headers={"If-Match": old})
    assert (done.status_code, done.json()["config"]["visibility_timeout_ms"]) == (200, 1000)
    assert done.headers["etag"] == http.get(path).headers["etag"] != old
    now = {"If-Match": done.headers["etag"]}
    for fixed in ({"kind": "stream"}, {"delivery": "at_most_once"}, {"ordering": "strict"}):
        assert pointers(refused(http.patch(path, json=fixed, headers=now), 400, "invalid-request")) == [
            f"/{next(iter(fixed))}"
        ]


REFUSED = [
    {"delay_ms": -1}, {"message_ttl_ms": 0}, {"priorities": 11}, {"priorities": 0}, {"ordering": "total"},
    {"dedupe": "key"}, {"dedupe_window_ms": 1_209_600_001}, {"encrypted": "yes"}, {"dead_letter_queue": "x"},
    {"delivery": "twice"}, {"max_messages": 0}, {"max_attempts": 0}, {"overflow": "drop_oldest"},
    {"retention_bytes": 5}, {"colocate_with": "x"}, {"sequencing": "random"}, {"durability": "none"},
    {"auto_expand": {"of": "partition_messages", "limit": 0}}, {"partitions": "2"}, {"visibility_timeout_ms": -1},
    {"visibility_timeout_ms": 43200001}, {"max_message_bytes": 1048577}, {"kind": "topic"}, {"kind": None},
    {"visibility_timeout_ms": True}, {"visibility_timeout_ms": 1.5}, {"replication": {"factor": 2}},
]  # fmt: skip


@pytest.mark.parametrize("config", REFUSED, ids=json.dumps)
def test_a_setting_that_is_not_built_or_out_of_range_is_refused_by_name(http: Client, config: dict[str, Any]) -> None:
    problem = refused(http.put("/v1/queues/never", json=config), 400, "invalid-request")
    assert pointers(problem)[0].startswith(f"/{next(iter(config))}")
    refused(http.get("/v1/queues/never"), 404, "queue-not-found")


def test_delete_over_http_is_forbidden_and_names_the_command(http: Client, queue: str) -> None:
    answer = http.delete(f"/v1/queues/{queue}?confirm={queue}&discard=true")
    assert "pushq queue delete" in refused(answer, 403, "forbidden")["detail"]


def test_delete_over_http_works_where_the_setting_allows_it(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})
    with Client(base_url=server.url, headers=server.headers) as http:
        http.put("/v1/queues/gone", json={})
        refused(http.delete("/v1/queues/gone?confirm=other&discard=true"), 400, "invalid-request")
        refused(http.delete("/v1/queues/gone"), 400, "invalid-request")
        assert http.delete("/v1/queues/gone?confirm=gone&discard=true").is_success
        refused(http.get("/v1/queues/gone"), 404, "queue-not-found")


def test_lists_page_with_limit_and_cursor(http: Client) -> None:
    for n in range(3):
        http.put(f"/v1/queues/page-{n}", json={})
    first = http.get("/v1/queues?limit=1").json()
    assert len(first["items"]) == 1 and isinstance(first["next"], str)
    second = http.get("/v1/queues", params={"limit": 1, "cursor": first["next"]}).json()
    assert second["items"][0]["name"] > first["items"][0]["name"]
    for wrong in ("limit=0", "limit=x", "cursor=%20", "lmit=1"):
        refused(http.get(f"/v1/queues?{wrong}"), 400, "invalid-request")


# ----------------------------------------------------------------------------------------------------- publish

QUEUE_WORDS = {"sequencing", "dedupe"}
"""What an answer to a publish says of the queue: an SDK numbers and names its messages by it."""
BODIES = [None, True, 0, -1.5, "", "ü\u2028", [], {}, {"a": [None, {"b": 1}]}, 2**53 + 1, 10**30]


def test_any_json_value_comes_back_as_the_same_value(http: Client, queue: str) -> None:
    answer = publish(http, queue, *({"body": body} for body in BODIES))
    assert answer.status_code == 201 and set(answer.json()) == {"messages", "durability", *QUEUE_WORDS}
    assert answer.json()["durability"] == {"fsynced": True, "replicas": 1}
    assert all(set(m) == {"id", "seq", "partition", "duplicate"} for m in answer.json()["messages"])
    got = receive(http, queue, max=100)
    assert [message["body"] for message in got] == BODIES
    needed = {"id", "seq", "partition", "body", "content_type", "headers", "key", "priority", "attempt"}
    assert all(needed | {"published_at", "receipt"} <= set(message) for message in got)
    assert all(message["content_type"] == "application/json" and message["attempt"] == 1 for message in got)
    assert [m["seq"] for m in got] == sorted(m["seq"] for m in got)


def test_fields_of_a_message_come_back(http: Client, queue: str) -> None:
    sent = {"id": "mine", "key": "k", "headers": {"a": "b"}, "reply_to": "r", "correlation_id": "c", "body": 1}
    assert publish(http, queue, sent).json()["messages"][0]["id"] == "mine"
    got = receive(http, queue)[0]
    assert {name: got[name] for name in sent} == sent


def test_bytes_and_raw_bodies_come_back_as_base64(http: Client, queue: str) -> None:
    data = bytes(range(256))
    publish(http, queue, {"body_base64": base64.b64encode(data).decode(), "content_type": "image/png"})
    path = f"/v1/queues/{queue}/messages"
    assert http.post(path, content=data, headers={"Content-Type": "application/octet-stream"}).status_code == 201
    assert http.post(path, content=b"hi", headers={"Content-Type": "text/plain"}).status_code == 201
    event = {"ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}
    answer = http.post(path, json={"x": 1}, headers=event)
    assert answer.status_code == 201 and len(answer.json()["messages"]) == 1, answer.text
    got = receive(http, queue)
    assert [base64.b64decode(m["body_base64"]) for m in got[:3]] == [data, data, b"hi"]
    assert [m["content_type"] for m in got[:3]] == ["image/png", "application/octet-stream", "text/plain"]
    assert all("body" not in m for m in got[:3]) and got[3]["body"] == {"x": 1}


WRONG_MESSAGES = [
    ([], "/messages"), ([{}], "/messages/0"), ([{"body": 1}, {"bod": 1}], "/messages/1/bod"),
    ([{"body": 1, "body_base64": "aa=="}], "/messages/0"), ([{"body_base64": "%"}], "/messages/0/body_base64"),
    ([{"body": 1, "id": "x" * 257}], "/messages/0/id"), ([{"body": 1, "key": "ä" * 129}], "/messages/0/key"),
    ([{"body": 1, "headers": {"a": 1}}], "/messages/0/headers"), ([1], "/messages/0"),
    ([{"body": 1, "headers": {str(n): "" for n in range(65)}}], "/messages/0/headers"),
    ([{"body": 1, "headers": {"a": "x" * 16385}}], "/messages/0/headers"),
    ([{"body": 1, "priority": 1}], "/messages/0/priority"), ([{"body": 1, "delay_ms": -1}], "/messages/0/delay_ms"),
    ([{"body": 1, "ttl_ms": 0}], "/messages/0/ttl_ms"), ([{"body": 1}] * 1001, "/messages"),
    ([{"body": 1, "deliver_at": "2030-01-01"}], "/messages/0/deliver_at"),
    ([{"body": 1, "producer": "p"}], "/messages/0/producer_seq"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "place"), WRONG_MESSAGES, ids=[f"{n}{w[1]}" for n, w in enumerate(WRONG_MESSAGES)]
)
def test_one_wrong_message_refuses_the_whole_request(http: Client, queue: str, messages: list[Any], place: str) -> None:
    problem = refused(http.post(f"/v1/queues/{queue}/messages", json={"messages": messages}), 400, "invalid-request")
    assert pointers(problem)[0].startswith(place) and problem["errors"][0]["detail"]
    assert stats(http, queue)["published_total"] == 0


def test_a_message_above_the_limit_is_413_and_at_the_limit_is_taken(http: Client, queue: str) -> None:
    fits = "x" * (262144 - 2)
    assert publish(http, queue, {"body": fits}).status_code == 201
    problem = refused(publish(http, queue, {"body": 1}, {"body": fits + "x"}), 413, "message-too-large")
    assert pointers(problem)[0].startswith("/messages/1")
    assert stats(http, queue)["published_total"] == 1
    refused(http.put("/v1/queues/x", content=b"x" * (16 * 2**20 + 1)), 413, "message-too-large")


def test_a_repeat_under_an_idempotency_key_is_a_duplicate_and_another_payload_422(http: Client, queue: str) -> None:
    path, key = f"/v1/queues/{queue}/messages", {"Idempotency-Key": "k"}
    first = http.post(path, json={"messages": [{"body": 1}]}, headers=key).json()["messages"]
    again = http.post(path, json={"messages": [{"body": 1}]}, headers=key).json()["messages"]
    assert again == [{**first[0], "duplicate": True}]
    refused(http.post(path, json={"messages": [{"body": 2}]}, headers=key), 422, "idempotency-mismatch")


# ------------------------------------------------------------------------------------------ receive and receipts


def test_receive_takes_no_more_than_max_and_waits_no_longer_than_asked(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n} for n in range(15)))
    assert len(receive(http, queue)) == 10 and len(receive(http, queue, max=3)) == 3
    assert len(receive(http, queue, max=1000)) == 2
    began = time.monotonic()
    assert receive(http, queue, wait_ms=300) == []
    assert 0.25 < time.monotonic() - began < FAR * 0.3
    assert http.post(f"/v1/queues/{queue}/receive").status_code == 200  # every field has a default
    for wrong in (
        {"max": 0},
        {"max": 1001},
        {"wait_ms": 60001},
        {"wait_ms": -1},
        {"max": "1"},
        {"mx": 1},
        {"group": "g"},
    ):
        problem = refused(http.post(f"/v1/queues/{queue}/receive", json=wrong), 400, "invalid-request")
        assert pointers(problem) == [f"/{next(iter(wrong))}"]


def test_a_waiting_receive_gets_what_is_published_meanwhile(http: Client, queue: str) -> None:
    timer = threading.Timer(0.2, publish, (http, queue, {"body": "late"}))
    timer.start()
    began = time.monotonic()
    got = receive(http, queue, wait_ms=10000)
    timer.join()
    assert [m["body"] for m in got] == ["late"] and time.monotonic() - began < 3


def test_a_receiver_that_left_costs_no_attempt(shared_server: PushqServer, http: Client, queue: str) -> None:
    body = b'{"wait_ms": 20000}'
    with socket.create_connection(("127.0.0.1", shared_server.port)) as raw:
        raw.sendall(
            f"POST /v1/queues/{queue}/receive HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shared_server.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        time.sleep(0.2)
    time.sleep(0.1)
    publish(http, queue, {"body": 1})
    assert [m["attempt"] for m in receive(http, queue, wait_ms=1000)] == [1]


def test_receipts_settle_as_the_interface_says(http: Client, queue: str) -> None:
    other = f"{queue}-other"
    http.put(f"/v1/queues/{other}", json={})
    publish(http, queue, {"body": 1}, {"body": 2})
    one, two = (m["receipt"] for m in receive(http, queue))
    assert settle(http, other, "ack", one) == [(False, "stale-receipt")]
    assert [ok for ok, _ in settle(http, queue, "ack", "", "forged", one + "x", two, two)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert settle(http, queue, "ack", two) == [(True, None)]
    assert settle(http, queue, "nack", two)[0][0] is False
    assert settle(http, queue, "extend", one, visibility_timeout_ms=60000) == [(True, None)]
    assert settle(http, queue, "ack", one) == [(True, None)]
    for verb, more in (("ack", {}), ("nack", {}), ("extend", {"visibility_timeout_ms": 1})):
        assert settle(http, queue, verb, **more) == []
    left = stats(http, queue)
    assert (left["ready"], left["in_flight"], left["acked_total"], left["published_total"]) == (0, 0, 2, 2)


def test_an_expired_receipt_acks_while_nobody_else_has_the_message(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1}, {"body": 2})
    one, two = (m["receipt"] for m in receive(http, queue, visibility_timeout_ms=100))
    time.sleep(0.3)
    assert stats(http, queue)["ready"] == 2
    assert settle(http, queue, "ack", one) == [(True, None)]
    again = receive(http, queue, wait_ms=1000)
    assert [(m["body"], m["attempt"]) for m in again] == [(2, 2)]
    assert settle(http, queue, "ack", two) == [(False, "stale-receipt")]
    assert settle(http, queue, "ack", again[0]["receipt"]) == [(True, None)]


def test_extend_keeps_the_receipt_and_nack_may_delay(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1})
    receipt = receive(http, queue, visibility_timeout_ms=200)[0]["receipt"]
    assert settle(http, queue, "extend", receipt, visibility_timeout_ms=5000) == [(True, None)]
    time.sleep(0.3)
    assert receive(http, queue) == []
    assert settle(http, queue, "nack", receipt, delay_ms=300, reason="later") == [(True, None)]
    left = stats(http, queue)
    assert (left["ready"], left["in_flight"], left["delayed"]) == (0, 0, 1)
    assert [m["attempt"] for m in receive(http, queue, wait_ms=2000)] == [2]


@pytest.mark.parametrize(
    ("verb", "body", "place"),
    [
        ("ack", {}, "/receipts"),
        ("ack", {"receipts": [1]}, "/receipts/0"),
        ("ack", {"receipts": None}, "/receipts"),
        ("ack", {"receipts": [], "publish": [{"queue": "other", "messages": [{"body": 1}]}]}, "/receipts"),
        ("ack", {"receipts": ["x"], "publish": {}}, "/publish"),
        ("ack", {"receipts": ["x"], "publish": [{"queue": "q"}]}, "/publish/0/messages"),
        ("ack", {"receipts": [], "delay_ms": 1}, "/delay_ms"),
        ("nack", {"receipts": [], "delay_ms": -1}, "/delay_ms"),
        ("extend", {"receipts": []}, "/visibility_timeout_ms"),
        ("extend", {"receipts": [], "visibility_timeout_ms": 43200001}, "/visibility_timeout_ms"),
        ("purge", {}, "/confirm"),
        ("purge", {"confirm": "other"}, "/confirm"),
    ],
)
def test_a_malformed_settlement_is_refused_at_its_place(
    http: Client, queue: str, verb: str, body: dict[str, Any], place: str
) -> None:
    problem = refused(http.post(f"/v1/queues/{queue}/{verb}", json=body), 400, "invalid-request")
    assert pointers(problem)[0].startswith(place)


# ------------------------------------------------------------------------------------------------ peek and purge


def test_peek_shows_states_and_touches_nothing(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n, "id": f"m{n}", "key": f"k{n}"} for n in range(4)))
    held = receive(http, queue, max=1)[0]
    path = f"/v1/queues/{queue}/messages"
    ready = http.get(path).json()
    assert set(ready) == {"items", "next", "scanned"}
    assert [m["body"] for m in ready["items"]] == [1, 2, 3]
    assert all(m["state"] == "ready" and "receipt" not in m for m in ready["items"])
    flying = http.get(f"{path}?state=in_flight").json()["items"]
    assert [(m["body"], m["state"]) for m in flying] == [(0, "in_flight")]
    page = http.get(f"{path}?limit=2").json()
    assert len(page["items"]) == 2 and len(http.get(path, params={"cursor": page["next"]}).json()["items"]) == 1
    refused(http.get(f"{path}?state=lost"), 400, "invalid-request")
    assert stats(http, queue)["ready"] == 3 and settle(http, queue, "ack", held["receipt"]) == [(True, None)]


@pytest.mark.parametrize("query", ["id=m1", "key=k1", "partition=0", "from_seq=1", "contains=1", "header.N=a"])
def test_a_peek_filter_filters_or_is_refused_by_name(http: Client, queue: str, query: str) -> None:
    publish(http, queue, *({"body": n, "id": f"m{n}", "key": f"k{n}", "headers": {"N": "ab"[n]}} for n in range(2)))
    answer = http.get(f"/v1/queues/{queue}/messages?{query}")
    if answer.status_code == 200:
        assert 1 in [m["body"] for m in answer.json()["items"]] or query == "header.N=a"
    else:
        assert query.partition("=")[0] in str(refused(answer, 400, "invalid-request")["errors"])


def test_a_purge_is_a_resource(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n} for n in range(5)))
    answer = http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue})
    assert answer.status_code == 202 and f"/v1/queues/{queue}/purges/" in answer.headers["location"]
    deadline = time.monotonic() + 5
    while (job := http.get(answer.headers["location"]).json())["state"] not in ("done", "failed"):
        assert time.monotonic() < deadline, job
    assert {"id", "state", "done", "total", "rate_per_s", "error"} <= set(job) and job["state"] == "done"
    assert stats(http, queue)["ready"] == 0 and receive(http, queue) == []
    refused(http.get(f"/v1/queues/{queue}/purges/absent"), 404, "not-found")


# --------------------------------------------------------------------------------------------------------- SSE


def test_events_have_ids_headers_and_receipts(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1}, {"body": 2})
    with http.stream("GET", f"/v1/queues/{queue}/events?credit=1") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store, no-transform"
        assert answer.headers["x-accel-buffering"] == "no" and "content-encoding" not in answer.headers
        assert answer.headers["ratelimit"]
        events = Events(answer)
        cursor, first = events.message()
        assert cursor and first["body"] == 1
        assert settle(http, queue, "ack", first["receipt"]) == [(True, None)]
        assert events.message()[1]["body"] == 2


def test_a_stream_is_read_from_every_form_of_place(http: Client) -> None:
    name = f"stream-{uuid.uuid4().hex[:6]}"
    assert http.put(f"/v1/queues/{name}", json={"kind": "stream"}).status_code == 201
    seqs = [m["seq"] for m in publish(http, name, *({"body": n} for n in range(5))).json()["messages"]]
    path = f"/v1/queues/{name}/events"

    def first(query: str, **headers: str) -> tuple[str, Any]:
        with http.stream("GET", f"{path}?{query}", headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            cursor, message = Events(answer).message()
            return cursor, message["body"]

    cursor, body = first("from=earliest")
    assert body == 0
    assert first(f"from=seq:{seqs[3]}")[1] == 3
    assert first("from=time:2020-01-01T00:00:00Z")[1] == 0
    assert first(f"from=cursor:{cursor}")[1] == 1
    assert first(f"last_event_id={cursor}")[1] == 1
    assert first("", **{"Last-Event-ID": cursor})[1] == 1
    with http.stream("GET", f"{path}?from=latest") as answer:
        assert answer.status_code == 200
        publish(http, name, {"body": "new"})
        assert Events(answer).message()[1]["body"] == "new"
    for wrong in (
        "from=never",
        "from=seq:x",
        "from=time:x",
        "from=cursor:x",
        "credit=0",
        "ack=none",
        "crdit=1",
        "group=a/b",
    ):
        refused(http.get(f"{path}?{wrong}"), 400, "invalid-request")


def test_auto_acked_events_are_gone(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1})
    with http.stream("GET", f"/v1/queues/{queue}/events?ack=auto") as answer:
        assert Events(answer).message()[1]["body"] == 1
    deadline = time.monotonic() + 3
    while stats(http, queue)["acked_total"] != 1:
        assert time.monotonic() < deadline, stats(http, queue)
    assert stats(http, queue)["ready"] == 0


# -------------------------------------------------------------------------------------------- the data folder


def test_folder_and_files_are_private(shared_server: PushqServer) -> None:
    assert stat.S_IMODE(shared_server.data.stat().st_mode) == 0o700
    for path in shared_server.data.rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert len((shared_server.data / "admin.key").read_text().splitlines()) == 1
    assert shared_server.key not in shared_server.log()


def test_a_stop_says_bye_and_ends_with_code_0_within_10_s(server: PushqServer) -> None:
    with Client(base_url=server.url, headers=server.headers, timeout=15) as http:
        http.put("/v1/queues/q", json={})
        with http.stream("GET", "/v1/queues/q/events") as answer:
            began = time.monotonic()
            server.terminate()
            bye = Events(answer).next("bye")
            assert time.monotonic() - began < 5 and int(bye["retry"]) > 0
        ended = server.wait(began)
    assert ended.exit_code == 0 and ended.seconds < 10
