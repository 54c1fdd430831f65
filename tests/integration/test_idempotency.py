"""Idempotency keys on the real server: a repeat stores nothing, whatever was lost or killed since the first request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.calls import Client, make_key, pointers, receive, refused, with_key
from tests.support.server import PushqServer
from tests.support.ws import Client as Socket

_numbers = count()


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(http: Client) -> str:
    return made(http)


def made(http: Client, **config: Any) -> str:
    name = f"once{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def sent(http: Client, queue: str, key: str, *messages: Any) -> httpx2.Response:
    """Messages are bodies, or whole messages as dicts with a `body`."""
    whole = [isinstance(m, dict) and not m.keys().isdisjoint(("body", "body_base64")) for m in messages]
    body = {"messages": [m if is_whole else {"body": m} for m, is_whole in zip(messages, whole, strict=True)]}
    return http.post(f"/v1/queues/{queue}/messages", json=body, headers={"Idempotency-Key": key})


def accepted(answer: httpx2.Response) -> list[tuple[str, int, int]]:
    """(id, seq, partition) of messages that are new."""
    assert answer.status_code == 201, answer.text
    assert "idempotency-replayed" not in answer.headers
    rows = answer.json()["messages"]
    assert not any(row["duplicate"] for row in rows), rows
    return [(row["id"], row["seq"], row["partition"]) for row in rows]


def repeated(answer: httpx2.Response) -> list[tuple[str, int, int]]:
    """(id, seq, partition) of messages that were there before."""
    assert answer.status_code == 201, answer.text
    assert answer.headers["idempotency-replayed"] == "true"
    rows = answer.json()["messages"]
    assert all(row["duplicate"] for row in rows), rows
    return [(row["id"], row["seq"], row["partition"]) for row in rows]


def published_total(http: Client, queue: str) -> int:
    total: int = http.get(f"/v1/queues/{queue}").json()["stats"]["published_total"]
    return total


# ------------------------------------------------------------------------------------------------- the promise


def test_a_repeat_has_the_first_answer_and_stores_nothing(http: Client, queue: str) -> None:
    first = accepted(sent(http, queue, '"8e03978e"', "a", {"b": 1}, None))
    assert repeated(sent(http, queue, '"8e03978e"', "a", {"b": 1}, None)) == first
    assert published_total(http, queue) == 3
    assert [(m["id"], m["body"]) for m in receive(http, queue)] == [
        (first[0][0], "a"),
        (first[1][0], {"b": 1}),
        (first[2][0], None),
    ]


def test_quotes_are_the_header_s_and_not_the_key_s(http: Client, queue: str) -> None:
    first = accepted(sent(http, queue, '"a\\"b"', 1))
    assert repeated(sent(http, queue, '"a\\"b"', 1)) == first
    bare = accepted(sent(http, queue, "plain key", 1))
    assert repeated(sent(http, queue, '"plain key"', 1)) == bare


def test_another_payload_under_the_same_key_is_refused_and_stores_nothing(http: Client, queue: str) -> None:
    accepted(sent(http, queue, "k", "a"))
    for other in (["b"], ["a", "b"], [{"body": "a", "headers": {"x": "1"}}], [{"body": "a", "key": "z"}]):
        refused(sent(http, queue, "k", *other), 422, "idempotency-mismatch")
    assert published_total(http, queue) == 1


def test_a_body_is_the_same_however_its_bytes_were_sent(http: Client, queue: str) -> None:
    headers = {"Idempotency-Key": "raw", "Content-Type": "application/octet-stream"}
    path = f"/v1/queues/{queue}/messages"
    first = accepted(http.post(path, content=b"\x00\x01", headers=headers))
    assert repeated(http.post(path, content=b"\x00\x01", headers=headers)) == first
    refused(http.post(path, content=b"\x00\x02", headers=headers), 422, "idempotency-mismatch")


def test_the_same_key_of_another_principal_or_queue_is_another_key(http: Client, queue: str) -> None:
    accepted(sent(http, queue, "k", 1))
    accepted(sent(http, made(http), "k", 1))
    with with_key(http, make_key(http, f"publish:{queue}")["key"]) as other:
        accepted(sent(other, queue, "k", 1))


def test_messages_keep_ids_of_their_own(http: Client) -> None:
    queue = made(http, dedupe="id")
    first = accepted(sent(http, queue, "k", {"body": 1, "id": "mine"}, 2))
    assert first[0][0] == "mine"
    assert repeated(sent(http, queue, "k", {"body": 1, "id": "mine"}, 2)) == first
    again = sent(http, queue, "another", {"body": 1, "id": "mine"}, 3).json()["messages"]
    assert [row["duplicate"] for row in again] == [True, False]


def test_a_message_that_found_no_room_may_come_with_the_repeat(http: Client) -> None:
    queue = made(http, max_messages=1)
    first = sent(http, queue, "k", "a", "b")
    assert first.status_code == 201 and [row.get("error") is None for row in first.json()["messages"]] == [True, False]
    held = receive(http, queue)
    http.post(f"/v1/queues/{queue}/ack", json={"receipts": [m["receipt"] for m in held]})
    rows = sent(http, queue, "k", "a", "b").json()["messages"]
    assert [row["duplicate"] for row in rows] == [True, False] and "error" not in rows[1]
    assert [m["body"] for m in receive(http, queue)] == ["b"]


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        ({"dedupe": "content"}, ["a", "b"]),
        ({"delivery": "exactly_once"}, ["a", "b"]),
        ({"delivery": "exactly_once"}, [{"body": 1, "producer": "p", "producer_seq": 1}]),
        ({"kind": "stream"}, ["a", "b"]),
        ({"delivery": "at_most_once"}, ["a"]),
        ({"priorities": 3}, [{"body": n, "priority": n % 3} for n in range(6)]),
        ({}, [{"body": 1, "delay_ms": 60_000}, {"body": 2}]),
        ({"ordering": "strict"}, [{"body": n, "key": f"k{n % 2}"} for n in range(4)]),
        ({"sequencing": "producer"}, [{"body": n, "producer": "p", "producer_seq": n + 1} for n in range(3)]),
        ({"partitions": 4}, ["a", "b", "c"]),
        ({"partitions": 4}, [{"body": n, "key": f"k{n}"} for n in range(8)]),
        ({"partitions": 4, "ordering": "strict"}, [{"body": n, "key": f"k{n}"} for n in range(8)]),
        ({"partitions": 3, "kind": "stream"}, [{"body": n, "key": f"k{n}"} for n in range(8)]),
    ],
)
def test_it_holds_in_every_kind_of_queue(http: Client, config: dict[str, Any], messages: list[Any]) -> None:
    queue = made(http, **config)
    first = accepted(sent(http, queue, "k", *messages))
    assert repeated(sent(http, queue, "k", *messages)) == first
    others = [{**m, "body": "else"} if isinstance(m, dict) else "else" for m in messages]
    refused(sent(http, queue, "k", *others), 422, "idempotency-mismatch")
    assert published_total(http, queue) == len(messages)


def test_of_many_at_once_one_is_stored(http: Client, shared_server: PushqServer, queue: str) -> None:
    def once(number: int) -> httpx2.Response:
        with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
            return sent(client, queue, "k", "a")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(once, range(24)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    stored = [answer for answer in answers if answer.status_code == 201]
    assert sum(not answer.json()["messages"][0]["duplicate"] for answer in stored) == 1
    for answer in answers:
        if answer.status_code == 409:
            assert refused(answer, 409, "request-in-progress")["retry_after_ms"] > 0
    assert published_total(http, queue) == 1


def sent_once_settled(http: Client, queue: str, key: str, *messages: Any) -> httpx2.Response:
    """The answer when no slot of the call's is on the move any more."""
    answer = sent(http, queue, key, *messages)
    for _ in range(200):
        if answer.status_code != 503:
            break
        time.sleep(0.05)
        answer = sent(http, queue, key, *messages)
    return answer


def test_a_queue_that_grows_and_shrinks_knows_its_keys(http: Client) -> None:
    queue = made(http)
    messages = [{"body": n, "key": f"k{n}"} for n in range(8)]
    first = accepted(sent(http, queue, "k", *messages))
    for partitions in (4, 2):
        etag = http.get(f"/v1/queues/{queue}").headers["etag"]
        changed = http.patch(f"/v1/queues/{queue}", json={"partitions": partitions}, headers={"If-Match": etag})
        assert changed.status_code == 200, changed.text
        assert repeated(sent_once_settled(http, queue, "k", *messages)) == first
        key = f"with {partitions}"
        more = accepted(sent_once_settled(http, queue, key, *messages))
        assert repeated(sent(http, queue, key, *messages)) == more
        refused(sent(http, queue, "k", 1), 422, "idempotency-mismatch")


def test_a_purge_does_not_bring_a_message_back(http: Client, queue: str) -> None:
    first = accepted(sent(http, queue, "k", 1))
    assert http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue}).status_code == 202
    assert repeated(sent(http, queue, "k", 1)) == first
    assert receive(http, queue) == []


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_a_frame_may_have_a_key_and_shares_it_with_http(
    http: Client, shared_server: PushqServer, queue: str, encoding: str
) -> None:
    frame = {"type": "publish", "queue": queue, "messages": [{"body_base64": "AAE="}], "idempotency_key": "k"}
    async with Socket(shared_server, encoding=encoding) as socket:
        first = (await socket.ask(**frame))["messages"]
        again = (await socket.ask(**frame))["messages"]
        other = await socket.ask(**{**frame, "messages": [{"body_base64": "AAI="}]})
        wrong = await socket.ask(**{**frame, "idempotency_key": "é"})
    assert [row["duplicate"] for row in (*first, *again)] == [False, True]
    assert {**first[0], "duplicate": True} == again[0]
    assert other["problem"]["code"] == "idempotency-mismatch"
    assert wrong["problem"]["errors"][0]["pointer"] == "/idempotency_key"
    over_http = repeated(sent(http, queue, "k", {"body_base64": "AAE="}))
    assert over_http == [(first[0]["id"], first[0]["seq"], first[0]["partition"])]


@pytest.mark.anyio
@pytest.mark.parametrize(("encoding", "body", "over_http"), [("json", 1, 1), ("msgpack", b"\x00\x01", "AAE=")])
async def test_bodies_alone_are_the_same_payload_whichever_way_they_come(
    http: Client, shared_server: PushqServer, queue: str, encoding: str, body: Any, over_http: Any
) -> None:
    frame = {"type": "publish", "queue": queue, "messages": [{"body": body}] * 70, "idempotency_key": "k"}
    async with Socket(shared_server, encoding=encoding) as socket:
        first = (await socket.ask(**frame))["messages"]
        wrong = await socket.ask(**{**frame, "idempotency_key": ""})
    assert wrong["problem"]["errors"][0]["pointer"] == "/idempotency_key"
    plain = {"body": over_http} if encoding == "json" else {"body_base64": over_http}
    wanted = [(row["id"], row["seq"], row["partition"]) for row in first]
    assert len({id_ for id_, _, _ in wanted}) == 70  # more than a block holds
    assert repeated(sent(http, queue, "k", *[plain] * 70)) == wanted
    assert repeated(sent(http, queue, "k", *[{**plain, "priority": 0}] * 70)) == wanted
    assert [m["id"] for m in receive(http, queue, max=100)] == [id_ for id_, _, _ in wanted]


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("key", ["", '"', '"a', '"a"b', '"\\x"', "x" * 256, "tab\there", "é"])
def test_a_key_that_is_none_is_refused_and_named(http: Client, queue: str, key: str) -> None:
    headers = [("Idempotency-Key", key.encode("latin-1"))]
    answer = http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": 1}]}, headers=headers)
    problem = refused(answer, 400, "invalid-request")
    assert "Idempotency-Key" in problem["detail"]
    assert pointers(problem) == ["/headers/idempotency-key"]
    assert published_total(http, queue) == 0


def test_two_keys_are_refused(http: Client, queue: str) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": 1}]}, headers=headers)
    assert "more than once" in refused(answer, 400, "invalid-request")["detail"]


def test_what_is_no_publish_takes_no_key(http: Client, queue: str) -> None:
    for path, body in ((f"/v1/queues/{queue}/ack", {"receipts": []}), (f"/v1/queues/{queue}/receive", {})):
        answer = http.post(path, json=body, headers={"Idempotency-Key": "k"})
        assert "Idempotency-Key" in refused(answer, 400, "invalid-request")["detail"]


def test_a_request_with_a_wrong_message_does_not_use_the_key_up(http: Client, queue: str) -> None:
    refused(sent(http, queue, "k", {"body": 1, "priority": 9}), 400, "invalid-request")
    accepted(sent(http, queue, "k", 1))


# --------------------------------------------------------------------------------------------------- what is lost


def test_consumed_and_killed_the_server_still_knows_the_key(tmp_path: Path) -> None:
    keyed = [{"body": n, "key": f"k{n}"} for n in range(8)]
    kinds: list[tuple[dict[str, Any], list[Any]]] = [
        ({}, ["a"]),
        ({"partitions": 4}, keyed),
        ({"dedupe": "content"}, [1]),
    ]
    with PushqServer(tmp_path / "data") as server:
        with Client(base_url=server.url, headers=server.headers, timeout=15) as http:
            queues = [made(http, **config) for config, _ in kinds]
            firsts = [accepted(sent(http, queue, "k", *m)) for queue, (_, m) in zip(queues, kinds, strict=True)]
            for queue in queues:
                while held := receive(http, queue, max=100):
                    http.post(f"/v1/queues/{queue}/ack", json={"receipts": [m["receipt"] for m in held]})
                assert http.get(f"/v1/queues/{queue}").json()["stats"]["bytes"] == 0
        server.kill()
        server.start()
        with Client(base_url=server.url, headers=server.headers, timeout=15) as http:
            for queue, (_, messages), first in zip(queues, kinds, firsts, strict=True):
                refused(sent(http, queue, "k", "something else"), 422, "idempotency-mismatch")
                assert repeated(sent(http, queue, "k", *messages)) == first
                assert receive(http, queue) == []
