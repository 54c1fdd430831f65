"""Peek and search on the real server: every state, every filter, companions and streams, and no trace of it."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

_numbers = count()
WAIT_S_MAX = PATIENCE_S


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=30) as client:
        yield client


def made(http: Client, **config: Any) -> str:
    name = f"peek{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def peek(http: Client, queue: str, **query: Any) -> dict[str, Any]:
    answer = http.get(f"/v1/queues/{queue}/messages", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def bodies(http: Client, queue: str, **query: Any) -> list[Any]:
    return [item["body"] for item in peek(http, queue, **query)["items"]]


def paged(http: Client, queue: str, **query: Any) -> list[dict[str, Any]]:
    """All items, by the links from page to page."""
    answer = http.get(f"/v1/queues/{queue}/messages", params=query)
    items: list[dict[str, Any]] = answer.json()["items"]
    while "link" in answer.headers:
        answer = http.get(answer.headers["link"].partition(">")[0][1:])
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
    return items


def stats(http: Client, queue: str) -> dict[str, int]:
    found: dict[str, int] = http.get(f"/v1/queues/{queue}").json()["stats"]
    return found


def nack(http: Client, queue: str, *receipts: str, **more: Any) -> None:
    results = http.post(f"/v1/queues/{queue}/nack", json={"receipts": receipts, **more}).json()["results"]
    assert all(result["ok"] for result in results), results


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


# ------------------------------------------------------------------------------------------------------ states


def test_each_state_shows_its_own_and_together_they_are_what_the_stats_count(http: Client) -> None:
    queue = made(http, max_attempts=1)
    publish(http, queue, *({"body": n} for n in range(8)), {"body": "later", "delay_ms": 3_600_000})
    first, _second, third = receive(http, queue, max=3)
    nack(http, queue, first["receipt"])  # its only attempt: dead
    http.post(f"/v1/queues/{queue}/ack", json={"receipts": [third["receipt"]]})
    assert bodies(http, queue) == [3, 4, 5, 6, 7]
    assert bodies(http, queue, state="in_flight") == [1]
    assert bodies(http, queue, state="delayed") == ["later"]
    assert bodies(http, queue, state="dead") == [0]
    counted = stats(http, queue)
    assert [counted[state] for state in ("ready", "in_flight", "delayed", "dead")] == [5, 1, 1, 1]
    for state in ("ready", "in_flight", "delayed", "dead"):
        assert all(item["state"] == state and "receipt" not in item for item in peek(http, queue, state=state)["items"])


def test_a_delayed_message_says_when_it_is_due_and_is_ready_from_then_on(http: Client) -> None:
    queue = made(http)
    publish(http, queue, {"body": "soon", "delay_ms": 300}, {"body": "late", "delay_ms": 3_600_000})
    soon, late = peek(http, queue, state="delayed")["items"]
    assert [soon["body"], late["body"]] == ["soon", "late"]
    assert at(late["due_at"]) - at(late["published_at"]) == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=2))
    deadline = time.monotonic() + WAIT_S_MAX
    while bodies(http, queue) != ["soon"]:
        assert time.monotonic() < deadline
    assert bodies(http, queue, state="delayed") == ["late"]
    assert stats(http, queue)["ready"] == 1 and stats(http, queue)["delayed"] == 1


def test_a_message_that_was_given_back_with_a_delay_is_delayed(http: Client) -> None:
    queue = made(http)
    publish(http, queue, {"body": 1})
    (held,) = receive(http, queue)
    nack(http, queue, held["receipt"], delay_ms=60_000)
    (item,) = peek(http, queue, state="delayed")["items"]
    assert item["attempt"] == 1 and at(item["due_at"]) > datetime.now(UTC) + timedelta(seconds=50)
    assert bodies(http, queue) == []


def test_a_message_keeps_its_producers_number_wherever_it_goes(http: Client) -> None:
    queue, grave = made(http, max_attempts=1), made(http)
    numbered = {"producer": "sensor-7", "producer_seq": 41}

    def told(name: str, state: str = "ready") -> list[dict[str, Any]]:
        found = peek(http, name, state=state)["items"]
        return [{name: item[name] for name in numbered if name in item} for item in found]

    publish(http, queue, {"body": "numbered", **numbered}, {"body": "bare"})
    publish(http, queue, {"body": "later", "delay_ms": 3_600_000, **numbered})
    assert told(queue) == [numbered, {}] and told(queue, "delayed") == [numbered]
    held = receive(http, queue)
    assert told(queue, "in_flight") == [numbered, {}]
    nack(http, queue, *(m["receipt"] for m in held))
    assert told(queue, "dead") == told(f"{queue}.dead") == [numbered, {}]
    assert http.post(f"/v1/queues/{queue}/redrives", json={"to": grave}).status_code == 202
    deadline = time.monotonic() + WAIT_S_MAX
    while stats(http, grave)["ready"] < 2:
        assert time.monotonic() < deadline
    assert told(grave) == [numbered, {}]


def test_dead_letters_say_why_and_their_companion_is_a_queue_like_any_other(http: Client) -> None:
    queue = made(http, max_attempts=1)
    publish(http, queue, *({"body": n, "id": f"m{n}"} for n in range(3)))
    nack(http, queue, *(m["receipt"] for m in receive(http, queue)), reason="no stock")
    dead = peek(http, queue, state="dead")["items"]
    assert [item["id"] for item in dead] == ["m0", "m1", "m2"]
    letter = dead[0]["dead_letter"]
    assert (letter["from"], letter["reason"], letter["attempts"]) == (queue, "max_attempts", 1)
    assert letter["history"][0]["reason"] == "no stock"
    companion = peek(http, f"{queue}.dead")["items"]
    assert [(item["id"], item["state"]) for item in companion] == [(f"m{n}", "ready") for n in range(3)]
    (held,) = receive(http, f"{queue}.dead", max=1)
    assert bodies(http, f"{queue}.dead", state="in_flight") == [held["body"]]
    assert len(peek(http, queue, state="dead")["items"]) == 3, "one that a consumer looks into is still dead"
    assert bodies(http, f"{queue}.dead", state="dead", id="m1") == [1]
    assert bodies(http, f"{queue}.late") == [] and bodies(http, f"{queue}.late", state="dead") == []


def test_a_stream_shows_what_it_keeps(http: Client) -> None:
    queue = made(http, kind="stream")
    publish(http, queue, *({"body": n} for n in range(5)))
    assert bodies(http, queue) == [0, 1, 2, 3, 4]
    assert bodies(http, queue, from_seq=3) == [3, 4]
    assert bodies(http, queue, state="in_flight") == bodies(http, queue, state="delayed") == []


def test_messages_are_shown_in_the_order_of_their_delivery(http: Client) -> None:
    queue = made(http, priorities=3)
    publish(http, queue, *({"body": f"{n}.{p}", "priority": p} for n in range(3) for p in (0, 2, 1)))
    shown = ["0.2", "1.2", "2.2", "0.1", "1.1", "2.1", "0.0", "1.0", "2.0"]
    assert bodies(http, queue) == shown
    for limit in (1, 2, 4):
        assert [item["body"] for item in paged(http, queue, limit=limit)] == shown
    assert [item["priority"] for item in peek(http, queue)["items"]] == [2, 2, 2, 1, 1, 1, 0, 0, 0]


def test_a_strict_queue_shows_those_behind_a_held_key_too(http: Client) -> None:
    queue = made(http, ordering="strict")
    publish(http, queue, *({"body": n, "key": "k"} for n in range(3)))
    receive(http, queue, max=1)
    assert bodies(http, queue, state="in_flight") == [0] and bodies(http, queue) == [1, 2]


def test_a_message_that_waits_for_its_turn_is_delayed(http: Client) -> None:
    queue = made(http, sequencing="clock", sort_window_ms=1000)
    publish(http, queue, *({"body": n, "id": f"m{n}"} for n in range(3)))
    assert bodies(http, queue) == [] and bodies(http, queue, state="delayed") == [0, 1, 2]
    assert http.delete(f"/v1/queues/{queue}/messages/m1").status_code == 204
    assert bodies(http, queue, state="delayed") == [0, 2] and stats(http, queue)["delayed"] == 2
    deadline = time.monotonic() + WAIT_S_MAX
    while bodies(http, queue) != [0, 2]:
        assert time.monotonic() < deadline
    assert stats(http, queue)["ready"] == 2 and bodies(http, queue, state="delayed") == []
    assert [m["body"] for m in receive(http, queue)] == [0, 2]


# ------------------------------------------------------------------------------------------------------ filters


def test_filters_narrow_the_page_and_all_must_hold(http: Client) -> None:
    queue = made(http)
    publish(
        http,
        queue,
        {"body": {"sku": "blue-7"}, "key": "a", "headers": {"shop": "north", "x": "1"}},
        {"body": {"sku": "red-9"}, "key": "b", "headers": {"shop": "south", "x": "1"}},
        {"body": {"sku": "blue-9"}, "key": "b"},
        {"body_base64": base64.b64encode(b"\x00blue\xff").decode(), "key": "bytes"},
    )

    def keys(**query: Any) -> list[str]:
        return [item["key"] for item in peek(http, queue, **query)["items"]]

    assert keys(key="b") == ["b", "b"]
    assert keys(**{"header.shop": "north"}) == ["a"]
    assert keys(**{"header.x": "1"}) == ["a", "b"]
    assert keys(**{"header.x": "1", "header.shop": "south"}) == ["b"]
    assert keys(**{"header.shop": "nor"}) == [], "a header is compared as a whole"
    assert keys(contains="blue") == ["a", "b", "bytes"]
    assert keys(contains="blue", key="b") == ["b"]
    assert keys(contains='"sku"') == ["a", "b", "b"]
    assert keys(contains="green") == []


@pytest.mark.parametrize("text", ["Grüße", "日本", 'a "quote"', "back\\slash", "line\nbreak"])
def test_text_is_found_however_the_producer_escaped_it(http: Client, text: str) -> None:
    queue = made(http)
    path, as_json = f"/v1/queues/{queue}/messages", {"Content-Type": "application/json"}
    publish(http, queue, {"body": text})  # as it is, in UTF-8
    escaped = "".join(f"\\u{ord(char):04x}" if ord(char) > 126 else char for char in _quoted(text))
    assert http.post(path, content=f'{{"messages": [{{"body": {escaped}}}]}}', headers=as_json).status_code == 201
    assert bodies(http, queue, contains=text) == [text, text]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def test_times_are_those_of_publishing(http: Client) -> None:
    queue = made(http, max_attempts=1)
    moments = []
    for n in range(3):
        publish(http, queue, {"body": n})
        moments.append(peek(http, queue, from_seq=n)["items"][-1]["published_at"])
        time.sleep(0.01)
    assert bodies(http, queue, since=moments[1]) == [1, 2], "at or after"
    assert bodies(http, queue, until=moments[1]) == [0], "before"
    assert bodies(http, queue, since=moments[1], until=moments[2]) == [1]
    assert bodies(http, queue, since="2999-01-01T00:00:00Z") == []
    nack(http, queue, *(m["receipt"] for m in receive(http, queue)))
    assert bodies(http, queue, state="dead", since=moments[1], until=moments[2]) == [1], "and not of dying"


def test_an_id_of_the_server_or_of_a_scheduled_message_is_found_without_a_look_at_others(http: Client) -> None:
    queue = made(http)
    ids = [m["id"] for m in publish(http, queue, *({"body": n} for n in range(600))).json()["messages"]]
    publish(http, queue, {"body": "mine", "id": "mine", "delay_ms": 3_600_000})
    page = peek(http, queue, id=ids[555])
    assert [item["body"] for item in page["items"]] == [555] and page["scanned"] == 1
    page = peek(http, queue, id="mine", state="delayed")
    assert [item["body"] for item in page["items"]] == ["mine"] and page["scanned"] == 1
    assert bodies(http, queue, id="mine") == [], "it is not ready"


def test_an_id_of_the_producer_is_looked_for(http: Client) -> None:
    queue = made(http)
    publish(http, queue, *({"body": n, "id": f"m{n}"} for n in range(600)))
    page = peek(http, queue, id="m599")
    assert [item["body"] for item in page["items"]] == [599] and page["scanned"] == 600


def test_a_page_says_how_many_messages_it_looked_at(http: Client) -> None:
    queue = made(http)
    publish(http, queue, *({"body": n, "key": f"k{n}"} for n in range(50)))
    page = peek(http, queue, key="nobody's")
    assert (page["items"], page["next"], page["scanned"]) == ([], None, 50)
    assert peek(http, queue, limit=3)["scanned"] == 3


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("state=lost", "/query/state"),
        ("since=yesterday", "/query/since"),
        ("until=2026-01-01T00:00:00", "/query/until"),
        ("limit=0", "/query/limit"),
        ("partition=7", "/query/partition"),
        ("partition=x", "/query/partition"),
        ("cursor=x", "/query/cursor"),
        ("cursor=AQAAAP__________", "/query/cursor"),  # an offset of 64 bits
        ("header.=x", "/query/header."),
        ("headr.a=x", "/query/headr.a"),
        ("key=a&key=b", "/query/key"),
    ],
)
def test_a_wrong_filter_is_refused_by_name(http: Client, query: str, pointer: str) -> None:
    queue = made(http)
    assert pointers(refused(http.get(f"/v1/queues/{queue}/messages?{query}"), 400, "invalid-request")) == [pointer]


def test_a_cursor_belongs_to_the_peek_that_gave_it_out(http: Client) -> None:
    queue = made(http, max_attempts=1)
    publish(http, queue, *({"body": n} for n in range(3)))
    cursor = peek(http, queue, limit=1)["next"]
    refused(http.get(f"/v1/queues/{queue}/messages?state=dead&cursor={cursor}"), 400, "invalid-request")


def test_who_may_only_view_sees_no_body_and_cannot_ask_what_is_in_it(http: Client) -> None:
    queue = made(http)
    publish(http, queue, {"body": "secret", "headers": {"a": "b"}})
    with with_key(http, make_key(http, f"view:{queue}")["key"]) as viewer:
        (item,) = peek(viewer, queue, **{"header.a": "b"})["items"]
        assert "body" not in item and item["headers"] == {"a": "b"}
        refused(viewer.get(f"/v1/queues/{queue}/messages?contains=s"), 403, "forbidden")
        assert [i["id"] for i in peek(viewer, f"{queue}.dead", state="dead")["items"]] == []


# -------------------------------------------------------------------------------------------------- no trace


def test_peeking_changes_no_count_no_lease_and_no_attempt(http: Client) -> None:
    queue = made(http, max_attempts=2, priorities=2)
    publish(http, queue, *({"body": n, "priority": n % 2} for n in range(20)), {"body": "d", "delay_ms": 3_600_000})
    (held,) = receive(http, queue, max=1)
    before = stats(http, queue)
    for state in ("ready", "in_flight", "delayed", "dead"):
        for query in ({}, {"contains": "1"}, {"id": held["id"]}, {"key": "k"}):
            peek(http, queue, state=state, **query)
    after = stats(http, queue)
    assert after | {"oldest_age_ms": 0} == before | {"oldest_age_ms": 0}
    assert [m["attempt"] for m in receive(http, queue, max=1000)] == [1] * 19
    (result,) = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [held["receipt"]]}).json()["results"]
    assert result["ok"]


def test_states_are_the_same_after_a_restart(server: PushqServer) -> None:
    with Client(base_url=server.url, headers=server.headers, timeout=30) as http:
        queue = made(http, max_attempts=1, priorities=2)
        publish(http, queue, *({"body": n, "priority": n % 2} for n in range(6)))
        publish(http, queue, {"body": "later", "delay_ms": 3_600_000})
        first, second = receive(http, queue, max=2)
        nack(http, queue, first["receipt"])
        http.post(f"/v1/queues/{queue}/ack", json={"receipts": [second["receipt"]]})

        def seen() -> list[list[Any]]:
            return [bodies(http, queue, state=state) for state in ("ready", "in_flight", "delayed", "dead")]

        before = seen()
        assert before == [[5, 0, 2, 4], [], ["later"], [1]]
        server.kill()
        server.start()
        assert seen() == before
