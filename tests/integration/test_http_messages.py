"""Messages over HTTP on the real server: publish, receive, settle, peek, purge, and all that can be wrong with them."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx2
import pytest

from tests.integration.calls import Client, pointers, publish, receive, refused
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(http: Client) -> str:
    """A work queue of the test's own."""
    name = f"q{next(_numbers)}"
    assert http.put(f"/v1/queues/{name}", json={}).status_code == 201
    return name


# ---------------------------------------------------------------------------------------------------- messages

BODIES: list[Any] = [
    None,
    True,
    0,
    -1.5,
    1e300,
    "",
    "ä\u0000\U0001f600",
    [],
    {},
    {"a": [1, {"b": None}]},
    "x" * 100_000,
]


def test_every_json_value_comes_back_as_it_was(http: Client, queue: str) -> None:
    published = publish(http, queue, *({"body": body} for body in BODIES))
    assert published.status_code == 201
    answer = published.json()
    assert answer["durability"] == {"fsynced": True, "replicas": 1}
    assert [set(m) for m in answer["messages"]] == [{"id", "seq", "partition", "duplicate"}] * len(BODIES)
    assert not any(m["duplicate"] for m in answer["messages"])
    received = receive(http, queue, max=100)
    assert [m["body"] for m in received] == BODIES
    assert [(m["id"], m["seq"]) for m in received] == [(m["id"], m["seq"]) for m in answer["messages"]]


def test_a_message_keeps_all_that_its_producer_gave(http: Client, queue: str) -> None:
    given = {
        "body": 1, "id": "id-1", "key": "ключ", "headers": {"a": "ö", "b": ""}, "content_type": "application/x+json",
        "reply_to": "answers", "correlation_id": "c-1",
    }  # fmt: skip
    assert publish(http, queue, given).json()["messages"][0]["id"] == "id-1"
    (message,) = receive(http, queue)
    assert {name: message[name] for name in given} == given
    assert (message["attempt"], message["priority"], message["partition"]) == (1, 0, 0)
    assert isinstance(message["receipt"], str) and message["published_at"].endswith("Z")


def test_a_whole_number_may_be_written_with_a_fraction_of_zero(http: Client) -> None:
    name = f"q{next(_numbers)}"
    assert http.put(f"/v1/queues/{name}", json={"priorities": 8}).status_code == 201
    first = http.post(f"/v1/queues/{name}/messages", content=b'{"messages":[{"body":1.0,"priority":6.0,"ttl_ms":9e4}]}')
    assert first.status_code == 201, first.text
    [taken] = receive(http, name, max=1.0, wait_ms=0.0)
    assert (taken["body"], type(taken["body"]), taken["priority"]) == (1.0, float, 6)
    body = {"receipts": [taken["receipt"]], "publish": [{"queue": name, "messages": [{"body": 2.5, "priority": 7.0}]}]}
    settled = http.post(f"/v1/queues/{name}/ack", json=body)
    assert settled.status_code == 200, settled.text
    [second] = receive(http, name)
    assert (second["body"], second["priority"]) == (2.5, 7)
    for wrong in (b"6.5", b"1e400", b'"6.0"'):
        refusal = http.post(f"/v1/queues/{name}/messages", content=b'{"messages":[{"body":1,"priority":%b}]}' % wrong)
        assert refusal.status_code == 400, refusal.text


def test_bytes_travel_as_base64(http: Client, queue: str) -> None:
    publish(http, queue, {"body_base64": "AP8="})
    (message,) = receive(http, queue)
    assert (message["body_base64"], message["content_type"]) == ("AP8=", "application/octet-stream")
    assert "body" not in message


def test_any_other_content_type_is_one_message(http: Client, queue: str) -> None:
    body = b'{"messages": "not an envelope"}\xff'
    answer = http.post(f"/v1/queues/{queue}/messages", content=body, headers={"Content-Type": "image/x-odd; v=1"})
    assert answer.status_code == 201 and len(answer.json()["messages"]) == 1
    (message,) = receive(http, queue)
    assert (base64.b64decode(message["body_base64"]), message["content_type"]) == (body, "image/x-odd; v=1")


def test_json_under_the_type_of_a_form_is_refused_and_a_form_is_a_message(http: Client, queue: str) -> None:
    path, form = f"/v1/queues/{queue}/messages", {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b'{"messages": [{"body": 1}]}', b' [1, 2]', b'{"mess'):  # fmt: skip
        problem = refused(http.post(path, content=body, headers=form), 415, "unsupported-media-type")
        assert "application/json" in problem["detail"] and "--json" in problem["detail"]
    assert http.post(path, content=b"a=1&b=%7B%7D", headers=form).status_code == 201
    (message,) = receive(http, queue)
    assert base64.b64decode(message["body_base64"]) == b"a=1&b=%7B%7D"


def test_cloudevents_are_taken_in_three_modes(http: Client, queue: str) -> None:
    path = f"/v1/queues/{queue}/messages"
    event = {"specversion": "1.0", "id": "e1", "source": "/s", "type": "t", "data": 1}
    binary = {f"ce-{name}": str(value) for name, value in event.items() if name != "data"}
    answers = [
        http.post(path, content=b'{"a":1}', headers={**binary, "Content-Type": "application/json"}),
        http.post(path, content=json.dumps(event), headers={"Content-Type": "application/cloudevents+json"}),
        http.post(
            path, content=json.dumps([event, event]), headers={"Content-Type": "application/cloudevents-batch+json"}
        ),
    ]
    assert [(a.status_code, len(a.json()["messages"])) for a in answers] == [(201, 1), (201, 1), (201, 2)]
    received = receive(http, queue)
    assert [m["body"] for m in received] == [{"a": 1}, event, event, event]
    assert {m["id"] for m in received} == {"e1"}
    assert received[0]["headers"] == binary


def test_an_event_is_known_again_by_its_source_and_its_id(http: Client) -> None:
    path = "/v1/queues/events-by-id/messages"
    http.put("/v1/queues/events-by-id", json={"dedupe": "id"}).raise_for_status()

    def is_repeat(source: str, id: str, mode: str) -> bool:
        event = {"specversion": "1.0", "id": id, "source": source, "type": "t"}
        kind = "application/json" if mode == "binary" else f"application/cloudevents{mode}+json"
        headers = {f"ce-{name}": value for name, value in event.items()} if mode == "binary" else {}
        content = "1" if mode == "binary" else json.dumps([event] if mode == "-batch" else event)
        answer = http.post(path, content=content, headers={**headers, "Content-Type": kind})
        assert answer.status_code == 201, answer.text
        return bool(answer.json()["messages"][0]["duplicate"])

    seen = [is_repeat(source, id, "") for source in ("/a", "/b", "/a/") for id in ("1", "2")]
    assert seen == [False] * 6, "another source's event is another one"
    assert not is_repeat("/", "a1", "") and not is_repeat("/a", "/1", "")
    assert [is_repeat("/a", "1", mode) for mode in ("binary", "-batch", "")] == [True] * 3
    assert len(receive(http, "events-by-id")) == 8


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"messages": []}', "/messages"),
        (b'{"messages": [{}]}', "/messages/0/body"),
        (b'{"messages": [{"body": 1, "body_base64": ""}]}', "/messages/0/body"),
        (b'{"messages": [{"body": 1}, {"bodyy": 1}]}', "/messages/1/bodyy"),
        (b'{"messages": [{"body_base64": "?"}]}', "/messages/0/body_base64"),
        (b'{"messages": [{"body": 1, "key": 5}]}', "/messages/0/key"),
        (b'{"messages": [{"body": 1, "headers": {"a": 1}}]}', "/messages/0/headers/..."),
        (b'{"messages": [{"body": 1, "ttl_ms": 0}]}', "/messages/0/ttl_ms"),
        (b'{"messages": [{"body": 1, "ttl_ms": "5"}]}', "/messages/0/ttl_ms"),
        (b'{"messages": [{"body": 1, "deliver_at": "soon"}]}', "/messages/0/deliver_at"),
        (b'{"messages": [{"body": 1, "delay_ms": -1}]}', "/messages/0/delay_ms"),
        (b'{"messages": [{"body": 1, "priority": 1}]}', "/messages/0/priority"),
        (b'{"messages": [{"body": 1, "producer": "p", "producer_seq": 0}]}', "/messages/0/producer_seq"),
        (b'{"messages": {}}', "/messages"),
        (b'{"messages": [{"body": 1}], "more": 1}', "/more"),
        (b"{}", "/messages"),
    ],
)
def test_a_wrong_publish_is_refused_whole_at_its_place(http: Client, queue: str, body: bytes, pointer: str) -> None:
    path = f"/v1/queues/{queue}/messages"
    answer = http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert pointer in pointers(refused(answer, 400, "invalid-request"))
    assert http.get(f"/v1/queues/{queue}").json()["stats"]["published_total"] == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b"\xff", b'{"messages": [{"body": "\xff"}]}', b'{"messages": [{"body": 01}]}',
     b'{"messages": [{"body": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", b'{"messages": [{"body": 1}]} x'],
)  # fmt: skip
def test_what_is_no_json_is_refused(http: Client, queue: str, body: bytes) -> None:
    answer = http.post(f"/v1/queues/{queue}/messages", content=body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "invalid-request")


def test_a_message_above_the_queues_limit_is_too_large(http: Client) -> None:
    http.put("/v1/queues/small", json={"max_message_bytes": 10})
    assert publish(http, "small", {"body": "12345678"}).status_code == 201
    problem = refused(publish(http, "small", {"body": 1}, {"body": "123456789"}), 413, "message-too-large")
    assert pointers(problem) == ["/messages/1"]
    refused(publish(http, "small", {"body": 1, "headers": {"a": "0123456789"}}), 413, "message-too-large")
    assert len(receive(http, "small")) == 1


def test_more_messages_than_a_request_takes_are_refused(http: Client, queue: str) -> None:
    assert publish(http, queue, *[{"body": 1}] * 1000).status_code == 201
    assert pointers(refused(publish(http, queue, *[{"body": 1}] * 1001), 400, "invalid-request")) == ["/messages"]


def test_a_body_above_the_servers_limit_ends_while_it_is_read(
    shared_server: PushqServer, http: Client, queue: str
) -> None:
    def long() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * (1024 * 1024)

    headers = {"Content-Type": "application/json"}
    refused(http.post(f"/v1/queues/{queue}/messages", content=long(), headers=headers), 413, "message-too-large")
    declared = {"Content-Length": str(17 * 1024 * 1024), **headers, **shared_server.headers}
    with socket.create_connection(("127.0.0.1", shared_server.port)) as raw:
        head = "".join(f"{name}: {value}\r\n" for name, value in declared.items())
        raw.sendall(f"POST /v1/queues/{queue}/messages HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + b"x" * 100)
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


# ------------------------------------------------------------------------------------- receive, ack, nack, extend


def test_a_received_message_is_held_until_it_is_acked(http: Client, queue: str) -> None:
    publish(http, queue, {"body": "a"}, {"body": "b"})
    first, second = receive(http, queue)
    stats = http.get(f"/v1/queues/{queue}").json()["stats"]
    assert (stats["ready"], stats["in_flight"]) == (0, 2)
    assert receive(http, queue) == []
    answer = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [first["receipt"], "forged", ""]}).json()
    assert [(r["receipt"], r["ok"]) for r in answer["results"]] == [
        (first["receipt"], True),
        ("forged", False),
        ("", False),
    ]
    again = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [first["receipt"], second["receipt"]]}).json()
    assert [r["ok"] for r in again["results"]] == [True, True]
    stats = http.get(f"/v1/queues/{queue}").json()["stats"]
    assert (stats["ready"], stats["in_flight"], stats["acked_total"], stats["published_total"]) == (0, 0, 2, 2)


def test_a_nacked_message_comes_again_with_its_attempt_counted(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1})
    (message,) = receive(http, queue)
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [message["receipt"]]})
    (again,) = receive(http, queue, wait_ms=5000)
    assert (again["id"], again["attempt"]) == (message["id"], 2)
    http.post(f"/v1/queues/{queue}/nack", json={"receipts": [again["receipt"]], "delay_ms": 300})
    assert receive(http, queue) == []
    assert receive(http, queue, wait_ms=5000)[0]["attempt"] == 3


def test_a_lease_ends_and_can_be_extended(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1})
    (message,) = receive(http, queue, visibility_timeout_ms=200)
    answer = http.post(
        f"/v1/queues/{queue}/extend", json={"receipts": [message["receipt"]], "visibility_timeout_ms": 1000}
    )
    assert answer.json()["results"][0]["ok"]
    began = time.monotonic()
    (again,) = receive(http, queue, wait_ms=5000)
    assert again["attempt"] == 2 and time.monotonic() - began > 0.6


def test_no_receipts_have_no_results(http: Client, queue: str) -> None:
    for call, more in (("ack", {}), ("nack", {}), ("extend", {"visibility_timeout_ms": 1})):
        answer = http.post(f"/v1/queues/{queue}/{call}", json={"receipts": [], **more})
        assert (answer.status_code, answer.json()) == (200, {"results": []})


def test_receive_waits_for_a_message(http: Client, shared_server: PushqServer, queue: str) -> None:
    def later() -> None:
        time.sleep(0.3)
        with Client(base_url=shared_server.url, headers=shared_server.headers) as other:
            publish(other, queue, {"body": "late"})

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    (message,) = receive(http, queue, wait_ms=10_000)
    thread.join()
    assert message["body"] == "late" and time.monotonic() - began < 5


def test_receive_gives_up_in_time(http: Client, queue: str) -> None:
    began = time.monotonic()
    assert receive(http, queue, wait_ms=300) == []
    assert 0.25 < time.monotonic() - began < 3


def test_a_client_that_leaves_while_it_waits_costs_nothing(
    shared_server: PushqServer, http: Client, queue: str
) -> None:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=0.3) as hasty:
        for _ in range(3):
            with pytest.raises(httpx2.ReadTimeout):
                hasty.post(f"/v1/queues/{queue}/receive", json={"wait_ms": 30_000})
    time.sleep(0.2)
    publish(http, queue, {"body": 1})
    (message,) = receive(http, queue)
    assert message["attempt"] == 1


@pytest.mark.parametrize(
    ("call", "body", "pointer"),
    [
        ("receive", {"max": 0}, "/max"),
        ("receive", {"max": 1001}, "/max"),
        ("receive", {"wait_ms": 60_001}, "/wait_ms"),
        ("receive", {"visibility_timeout_ms": 43_200_001}, "/visibility_timeout_ms"),
        ("receive", {"group": "g"}, "/group"),
        ("receive", {"maxx": 1}, "/maxx"),
        ("ack", {}, "/receipts"),
        ("ack", {"receipts": [1]}, "/receipts/0"),
        ("ack", {"receipts": [], "publish": [{"queue": "other", "messages": [{"body": 1}]}]}, "/receipts"),
        ("ack", {"receipts": ["x"], "publish": {}}, "/publish"),
        ("ack", {"receipts": ["x"], "publish": [{"queue": "q"}]}, "/publish/0/messages"),
        ("ack", {"receipts": ["x"] * 10_001}, "/receipts"),
        ("nack", {"receipts": [], "delay_ms": -1}, "/delay_ms"),
        ("extend", {"receipts": []}, "/visibility_timeout_ms"),
        ("extend", {"receipts": [], "visibility_timeout_ms": -1}, "/visibility_timeout_ms"),
    ],
)
def test_a_wrong_call_is_refused_at_its_place(http: Client, queue: str, call: str, body: Any, pointer: str) -> None:
    answer = http.post(f"/v1/queues/{queue}/{call}", json=body)
    assert pointers(refused(answer, 400, "invalid-request")) == [pointer]


def test_a_stream_gives_every_reader_everything(http: Client) -> None:
    http.put("/v1/queues/news", json={"kind": "stream"})
    publish(http, "news", {"body": 1}, {"body": 2})
    answer = http.post("/v1/queues/news/receive", json={"from": "earliest"}).json()
    assert [m["body"] for m in answer["messages"]] == [1, 2] and answer["messages"][0]["receipt"] is None
    publish(http, "news", {"body": 3})
    more = http.post("/v1/queues/news/receive", json={"from": {"cursor": answer["cursor"]}}).json()
    assert [m["body"] for m in more["messages"]] == [3]
    (result,) = http.post("/v1/queues/news/ack", json={"receipts": ["x"]}).json()["results"]
    assert result == {"receipt": "x", "ok": False, "error": "stale-receipt"}


# ---------------------------------------------------------------------------------------------- peek and purge


def test_peek_shows_and_changes_nothing(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n, "key": f"k{n % 2}"} for n in range(6)))
    held = receive(http, queue, max=2)
    page = http.get(f"/v1/queues/{queue}/messages").json()
    assert [(m["body"], m["state"]) for m in page["items"]] == [(n, "ready") for n in range(2, 6)]
    assert set(page) == {"items", "next", "scanned"} and "receipt" not in page["items"][0]
    in_flight = http.get(f"/v1/queues/{queue}/messages?state=in_flight").json()["items"]
    assert [m["id"] for m in in_flight] == [m["id"] for m in held]
    by_key = http.get(f"/v1/queues/{queue}/messages?key=k1").json()["items"]
    assert [m["body"] for m in by_key] == [3, 5]
    by_id = http.get(f"/v1/queues/{queue}/messages", params={"id": page["items"][1]["id"]}).json()["items"]
    assert [m["body"] for m in by_id] == [3]
    from_seq = http.get(f"/v1/queues/{queue}/messages", params={"from_seq": page["items"][2]["seq"]}).json()["items"]
    assert [m["body"] for m in from_seq] == [4, 5]
    assert [m["attempt"] for m in receive(http, queue)] == [1] * 4


def test_peek_pages_through_a_queue(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n} for n in range(7)))
    found: list[int] = []
    path = f"/v1/queues/{queue}/messages?limit=3&state=ready"
    while path:
        answer = http.get(path)
        found += [m["body"] for m in answer.json()["items"]]
        path = answer.headers["link"].partition(">")[0][1:] if "link" in answer.headers else ""
    assert found == list(range(7))


@pytest.mark.parametrize(
    "query",
    [
        "state=x",
        "header.=b",
        "header=b",
        "since=x",
        "until=x",
        "partition=1",
        "from_seq=-1",
        "cursor=x",
    ],
)
def test_a_wrong_peek_is_refused(http: Client, queue: str, query: str) -> None:
    refused(http.get(f"/v1/queues/{queue}/messages?{query}"), 400, "invalid-request")


def test_a_purge_is_a_job_that_drops_everything(http: Client, queue: str) -> None:
    publish(http, queue, *({"body": n} for n in range(5)))
    receive(http, queue, max=2)
    assert pointers(refused(http.post(f"/v1/queues/{queue}/purge", json={"confirm": "x"}), 400, "invalid-request")) == [
        "/confirm"
    ]
    started = http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue})
    assert started.status_code == 202
    job = http.get(started.headers["location"]).json()
    assert set(job) == {"id", "state", "done", "total", "rate_per_s", "error"}
    assert (job["state"], job["total"]) == ("done", 5)
    assert receive(http, queue) == [] and http.get(f"/v1/queues/{queue}").json()["stats"]["ready"] == 0
    refused(http.delete(started.headers["location"]), 409, "conflict")
    refused(http.get(f"/v1/queues/{queue}/purges/nothing"), 404, "not-found")
    publish(http, queue, {"body": "after"})
    assert [m["body"] for m in receive(http, queue)] == ["after"]


# ------------------------------------------------------------------------------------- too many, and too deep


def test_a_publish_of_millions_is_refused_by_its_number(http: Client, queue: str) -> None:
    body = b'{"messages":[' + b"{}," * 5_000_000 + b"{}]}"
    for kind in ("application/json", "application/cloudevents-batch+json"):
        content = body if kind == "application/json" else body[len(b'{"messages":') : -1]
        answer = http.post(f"/v1/queues/{queue}/messages", content=content, headers={"Content-Type": kind})
        problem = refused(answer, 400, "invalid-request")
        assert pointers(problem) == ["/messages"] and "at most 1000" in problem["detail"]


def test_very_many_scopes_and_settings_are_refused_by_their_number(http: Client) -> None:
    problem = refused(http.post("/v1/tickets", json={"scopes": [""] * 100_000}), 400, "invalid-request")
    assert pointers(problem) == ["/scopes"]
    problem = refused(http.post("/v1/keys", json={"name": "k", "scopes": [""] * 100_000}), 400, "invalid-request")
    assert pointers(problem) == ["/scopes"]
    problem = refused(http.put("/v1/queues/many", json={f"s{n}": 1 for n in range(5_000)}), 400, "invalid-request")
    assert pointers(problem) == [""] and "5000 settings" in problem["detail"]
    refused(http.put("/v1/queues/many", json={f"s{n}": 1 for n in range(50_000)}), 413, "message-too-large")
    problem = refused(http.put("/v1/queues/many", json={f"s{n}": 1 for n in range(30)}), 400, "invalid-request")
    assert len(problem["errors"]) == 20 and "(10 more errors are not shown)" in problem["detail"]


@pytest.mark.parametrize("levels", [100, 400, 900, 20_000])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]")])
def test_fields_that_are_nested_very_deep_are_the_callers_mistake(
    http: Client, queue: str, opening: str, closing: str, levels: int
) -> None:
    deep = opening * levels + "1" + closing * levels
    headers = {"Content-Type": "application/json"}
    receive = f"/v1/queues/{queue}/receive"
    for content in (f'{{"max": 1.0, "from": {deep}}}', f'{{"from": {deep}}}'):
        refused(http.post(receive, content=content, headers=headers), 400, "invalid-request")
    tags = f'{{"tags": {deep}}}'
    kind = f'{{"kind": {deep}}}'
    for content in (tags, kind):
        answer = http.put("/v1/queues/deep", content=content, headers=headers)
        assert answer.status_code in (400, 413), answer.text
        tag = http.get(f"/v1/queues/{queue}").headers["etag"]
        answer = http.patch(f"/v1/queues/{queue}", content=content, headers=headers | {"If-Match": tag})
        assert answer.status_code in (400, 413), answer.text
