"""Clients that are odd and legal, and sentences of the interface that no other test has."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.integration.calls import Client, make_key, publish, receive, refused, with_key
from tests.support.server import PushqServer

_numbers = count()
DEFAULTS: dict[str, Any] = {
    "kind": "work",
    "partitions": 1,
    "delivery": "at_least_once",
    "ordering": "best_effort",
    "sequencing": "arrival",
    "sort_window_ms": 1000,
    "late_messages": "late_queue",
    "visibility_timeout_ms": 30_000,
    "max_attempts": 10,
    "retry_backoff_ms": 0,
    "retry_backoff_ms_max": None,
    "message_ttl_ms": None,
    "delay_ms": 0,
    "retention_ms": None,
    "retention_bytes": None,
    "max_messages": None,
    "max_bytes": None,
    "overflow": "reject",
    "max_message_bytes": 262_144,
    "priorities": 1,
    "dedupe": "none",
    "dedupe_window_ms": 300_000,
    "durability": "fsync",
    "replication": {"factor": 1, "mode": "sync", "min_in_sync": 1, "model": "leader_follower"},
    "lease_mode": "memory",
    "encrypted": True,
    "fair_by": "key",
    "key_run_max": 32,
    "sort_held_messages_max": 100_000,
    "auto_expand": None,
    "colocate_with": None,
    "tags": {},
}


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(http: Client) -> str:
    name = f"odd{next(_numbers)}"
    assert http.put(f"/v1/queues/{name}", json={}).status_code == 201
    return name


def spoken(server: PushqServer, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """The status and the body of what the server answers to these bytes before it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as client:
        client.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    first, _, rest = answer.partition(b"\r\n")
    return int(first.split()[1]), rest.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/queues?limit=1 HTTP/1.0",
        "GET /v1/queues?limit=1& HTTP/1.1\nHOST: x\nCONNECTION: close",
        "GET http://127.0.0.1/v1/queues?limit=1 HTTP/1.1\nhost: x\nconnection: close",
    ],
)
def test_old_and_terse_clients_are_answered(shared_server: PushqServer, queue: str, line: str) -> None:
    status, body = spoken(shared_server, f"{line}\naUTHORIZATION: bearer {shared_server.key}")
    assert status == 200 and len(json.loads(body)["items"]) == 1


def test_a_body_may_come_in_chunks_of_a_byte(shared_server: PushqServer, http: Client, queue: str) -> None:
    head = f"POST /v1/queues/{queue}/messages HTTP/1.1\nHost: x\nConnection: close\nContent-Type: application/json"
    head += f"\nAuthorization: Bearer {shared_server.key}\nTransfer-Encoding: chunked"
    body = b'{"messages":[{"body":"\xc3\xbc"}]}'
    chunks = b"".join(b"1;odd=x\r\n%c\r\n" % byte for byte in body)
    assert spoken(shared_server, head, chunks + b"0\r\n\r\n")[0] == 201
    assert [message["body"] for message in receive(http, queue)] == ["ü"]


def test_a_name_is_the_same_however_its_letters_are_written(http: Client, queue: str) -> None:
    written = "".join(f"%{ord(letter):02x}" for letter in queue)
    assert http.get(f"/v1/queues/{written}").json()["name"] == queue


@pytest.mark.parametrize("accept", ["", "*/*;q=0.1", "text/html", "application/xml"])
def test_json_is_answered_whatever_is_accepted(http: Client, queue: str, accept: str) -> None:
    answer = http.get(f"/v1/queues/{queue}", headers={"Accept": accept})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize(
    "kind", ["application/json;charset=UTF-8", "Application/JSON", 'application/json; charset="utf-8"']
)
def test_json_may_be_named_with_its_charset_and_in_any_case(http: Client, queue: str, kind: str) -> None:
    sent = {"content": b'{"messages":[{"body":{"a":1}}]}', "headers": {"Content-Type": kind}}
    assert http.post(f"/v1/queues/{queue}/messages", **sent).status_code == 201
    assert receive(http, queue)[0]["body"] == {"a": 1}


def test_if_match_may_be_a_list_or_a_star(http: Client, queue: str) -> None:
    tag = http.get(f"/v1/queues/{queue}").headers["etag"]
    for number, match in enumerate((f'"other", {tag}', "*")):
        change = {"max_attempts": 3 + number}
        answer = http.patch(f"/v1/queues/{queue}", json=change, headers={"If-Match": match})
        assert answer.status_code == 200, (match, answer.text)


def test_a_publish_does_not_change_the_etag(http: Client, queue: str) -> None:
    tag = http.get(f"/v1/queues/{queue}").headers["etag"]
    publish(http, queue, {"body": 1})
    change = {"json": {"max_attempts": 4}, "headers": {"If-Match": tag}}
    assert http.patch(f"/v1/queues/{queue}", **change).status_code == 200


def test_every_setting_has_the_default_of_the_interface(http: Client, queue: str) -> None:
    config = http.get(f"/v1/queues/{queue}").json()["config"]
    assert config == DEFAULTS | {"dead_letter_queue": f"{queue}.dead"}
    assert http.put(f"/v1/queues/{queue}", json=config).status_code == 200
    week = http.put(f"/v1/queues/{queue}s", json={"kind": "stream"}).json()["config"]
    assert (week["retention_ms"], week["retention_bytes"]) == (7 * 86_400_000, None)
    once = http.put(f"/v1/queues/{queue}o", json={"delivery": "exactly_once"}).json()["config"]
    assert (once["dedupe"], once["lease_mode"]) == ("id", "replicated")
    assert http.put(f"/v1/queues/{queue}k", json={"ordering": "strict"}).json()["config"]["lease_mode"] == "replicated"


def test_null_is_as_good_as_nothing_where_a_field_may_be_left_out(http: Client, queue: str) -> None:
    names = ["content_type", "id", "key", "priority", "headers", "delay_ms", "deliver_at", "ttl_ms", "reply_to"]
    names += ["correlation_id", "producer", "producer_seq", "timestamp"]
    publish(http, queue, {"body": None} | dict.fromkeys(names))
    optional = dict.fromkeys(("max", "wait_ms", "visibility_timeout_ms", "group"))
    (message,) = http.post(f"/v1/queues/{queue}/receive", json=optional).json()["messages"]
    assert message["body"] is None
    settled = {"receipts": [message["receipt"]], "delay_ms": None, "reason": None}
    assert http.post(f"/v1/queues/{queue}/nack", json=settled).json()["results"][0]["ok"]
    # What was received may be published as it is.
    (again,) = receive(http, queue)
    fields = ("body", "content_type", "id", "key", "priority", "headers")
    publish(http, queue, {name: again[name] for name in fields})
    dead = http.post(f"/v1/queues/{queue}.dead/redrives", json={"to": None, "filter": None, "dry_run": None})
    assert dead.status_code == 202, dead.text


def test_null_is_as_good_as_nothing_in_a_subscription(shared_server: PushqServer, queue: str) -> None:
    optional = dict.fromkeys(("credit", "ack", "group", "from", "visibility_timeout_ms"))
    with connect(f"ws://127.0.0.1:{shared_server.port}/v1/ws") as socket:
        frames = [{"type": "connect", "token": shared_server.key}]
        frames += [{"type": "subscribe", "id": 1, "queue": queue, **optional}]
        socket.send(json.dumps(frames))
        assert json.loads(socket.recv(timeout=15))["type"] == "connected"
        assert json.loads(socket.recv(timeout=15))["type"] == "ok"


def test_null_is_the_default_of_settings_that_have_one(http: Client, queue: str) -> None:
    named = dict.fromkeys(("partitions", "priorities", "delay_ms", "retry_backoff_ms", "tags", "replication"))
    made = http.put(f"/v1/queues/{queue}n", json=named)
    assert made.status_code == 201, made.text
    assert made.json()["config"] == http.put(f"/v1/queues/{queue}m", json={}).json()["config"] | {
        "dead_letter_queue": f"{queue}n.dead"
    }
    changed = http.patch(f"/v1/queues/{queue}n", json={"partitions": None}, headers={"If-Match": "*"})
    assert changed.status_code == 400, "as it is, or one?"


def test_scopes_of_a_queue_cover_its_dead_letters_and_a_redrive_publishes(
    shared_server: PushqServer, http: Client, queue: str
) -> None:
    change = {"json": {"max_attempts": 1}, "headers": {"If-Match": "*"}}
    assert http.patch(f"/v1/queues/{queue}", **change).status_code == 200
    publish(http, queue, {"body": "x"})
    (message,) = receive(http, queue)
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [message["receipt"]]})
    reader = with_key(http, make_key(http, f"consume:{queue}")["key"])
    manager = with_key(http, make_key(http, f"manage:{queue}")["key"])
    both = with_key(http, make_key(http, f"manage:{queue}", f"publish:{queue}")["key"])
    with reader, manager, both:
        peeked = reader.get(f"/v1/queues/{queue}.dead/messages").json()["items"]
        assert [item["body"] for item in peeked] == ["x"]
        refused(manager.post(f"/v1/queues/{queue}.dead/redrives", json={}), 403, "forbidden")
        assert both.post(f"/v1/queues/{queue}.dead/redrives", json={"dry_run": True}).json() == {"total": 1}
        assert both.post(f"/v1/queues/{queue}.dead/redrives").status_code == 202


def test_a_browser_that_comes_back_may_name_the_last_event_of_a_work_queue(http: Client, queue: str) -> None:
    """EventSource sends the header by itself."""
    seen, last = [], {}
    for body in (1, 2):
        publish(http, queue, {"body": body})
        with http.stream("GET", f"/v1/queues/{queue}/events?ack=auto&credit=1", headers=last) as answer:
            assert answer.status_code == 200
            fields = dict(line.partition(": ")[::2] for line, _ in zip(answer.iter_lines(), range(5), strict=False))
        seen.append(json.loads(fields["data"])["body"])
        last = {"Last-Event-ID": fields["id"]}
    assert seen == [1, 2]


def test_errors_of_a_list_come_as_single_objects(shared_server: PushqServer, queue: str) -> None:
    with connect(shared_server.ws_url) as socket:
        socket.send(json.dumps({"type": "connect", "id": 0, "token": shared_server.key}))
        assert json.loads(socket.recv(timeout=15))["type"] == "connected"
        bad = {"type": "publish", "queue": "no-such-queue", "messages": [{"body": 1}]}
        good = {"type": "publish", "queue": queue, "messages": [{"body": 1}]}
        asked = [bad | {"id": 1}, good | {"id": 2}, bad | {"id": 3}]
        socket.send(json.dumps(asked))
        answers: dict[int, str] = {}
        while len(answers) < len(asked):
            frame = json.loads(socket.recv(timeout=15))
            for answer in frame if isinstance(frame, list) else [frame]:
                assert answer["type"] == "ok" or not isinstance(frame, list)
                answers[answer["id"]] = answer["type"]
    assert answers == {1: "error", 2: "ok", 3: "error"}
