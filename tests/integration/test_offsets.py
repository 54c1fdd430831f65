"""Offsets of partitions and reads of a range, on the real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    env = {"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"}
    with PushqServer(tmp_path_factory.mktemp("offsets") / "data", env=env) as started:
        yield started


@pytest.fixture
def http(server: PushqServer) -> Iterator[Client]:
    with Client(base_url=server.url, headers=server.headers, timeout=30) as client:
        yield client


def made(http: Client, **config: Any) -> str:
    name = f"offsets{next(_numbers)}"
    assert http.put(f"/v1/queues/{name}", json=config).status_code == 201
    return name


def offsets(http: Client, queue: str) -> dict[str, Any]:
    answer = http.get(f"/v1/queues/{queue}/offsets")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ranged(http: Client, queue: str, partition: int = 0, **query: Any) -> dict[str, Any]:
    answer = http.get(f"/v1/queues/{queue}/partitions/{partition}/messages", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def test_a_range_is_read_page_by_page_and_ends_before_until(http: Client) -> None:
    stream = made(http, kind="stream")
    for part in range(3):
        publish(http, stream, *[{"body": part * 400 + n} for n in range(400)])
    (row,) = offsets(http, stream)["partitions"]
    at, found = row["first"], []
    while at < row["next"]:
        page = ranged(http, stream, **{"from": at, "limit": 250})
        found += page["messages"]
        assert len(page["messages"]) <= 250
        assert page["next"] > at
        at = page["next"]
    assert [message["body"] for message in found] == list(range(1200))
    seqs = [message["seq"] for message in found]
    part = ranged(http, stream, **{"from": seqs[10], "until": seqs[20]})
    assert [message["seq"] for message in part["messages"]] == seqs[10:20]
    assert part["next"] == seqs[20]


def test_a_range_says_who_numbered_its_messages_where_somebody_did(http: Client) -> None:
    stream, numbered = made(http, kind="stream"), {"producer": "p", "producer_seq": 1}
    publish(http, stream, {"body": 1, **numbered}, {"body": 2})
    found = ranged(http, stream)["messages"]
    assert [{name: m[name] for name in numbered if name in m} for m in found] == [numbered, {}]


def test_every_partition_has_offsets_of_its_own(http: Client) -> None:
    stream = made(http, kind="stream", partitions=3)
    publish(http, stream, *[{"body": n, "key": f"k{n % 17}"} for n in range(100)])
    rows = offsets(http, stream)["partitions"]
    assert [row["partition"] for row in rows] == [0, 1, 2]
    pages = [ranged(http, stream, row["partition"], until=row["next"]) for row in rows]
    assert sorted(message["body"] for page in pages for message in page["messages"]) == list(range(100))


def test_a_stream_made_anew_has_another_uid_and_refuses_the_old_one(http: Client) -> None:
    stream = made(http, kind="stream")
    before = offsets(http, stream)
    gone = http.delete(f"/v1/queues/{stream}", params={"confirm": stream, "discard": "true"})
    assert gone.status_code == 200, gone.text
    assert http.put(f"/v1/queues/{stream}", json={"kind": "stream"}).status_code == 201
    assert offsets(http, stream)["uid"] != before["uid"]
    answer = http.get(f"/v1/queues/{stream}/partitions/0/messages", params={"uid": before["uid"]})
    refused(answer, 409, "conflict")
    assert "recreated" in answer.json()["detail"]


def test_dead_letters_are_read_by_offset_also_while_somebody_holds_them(http: Client) -> None:
    queue = made(http, max_attempts=1)
    publish(http, queue, *[{"body": n, "id": f"m{n}"} for n in range(5)])
    receipts = [message["receipt"] for message in receive(http, queue, max=5)]
    assert http.post(f"/v1/queues/{queue}/nack", json={"receipts": receipts, "delay_ms": 0}).status_code == 200
    deadline = time.monotonic() + 20
    while len(found := ranged(http, f"{queue}.dead")["messages"]) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [message["id"] for message in found] == [f"m{n}" for n in range(5)]
    held = receive(http, f"{queue}.dead", max=2)
    assert len(held) == 2
    again = ranged(http, f"{queue}.dead", **{"from": found[1]["seq"]})
    assert [message["id"] for message in again["messages"]] == ["m1", "m2", "m3", "m4"]
    assert offsets(http, f"{queue}.dead")["kind"] == "companion"


def test_what_cannot_be_asked_is_refused_with_its_name(http: Client) -> None:
    stream, work = made(http, kind="stream"), made(http)
    for path, query, pointer in [
        (f"{stream}/partitions/7/messages", {}, "/path/partition"),
        (f"{stream}/partitions/x/messages", {}, "/path/partition"),
        (f"{stream}/partitions/0/messages", {"limit": 5001}, "/query/limit"),
        (f"{stream}/partitions/0/messages", {"from": -1}, "/query/from"),
        (f"{work}/partitions/0/messages", {}, "/path/queue"),
    ]:
        answer = http.get(f"/v1/queues/{path}", params=query)
        assert pointers(refused(answer, 400, "invalid-request")) == [pointer]
    with with_key(http, make_key(http, f"view:{stream}")["key"]) as viewer:
        assert viewer.get(f"/v1/queues/{stream}/offsets").status_code == 200
        refused(viewer.get(f"/v1/queues/{stream}/partitions/0/messages"), 403, "forbidden")
