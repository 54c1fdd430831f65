"""Calls that the tests of queues with several partitions share."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from tests.integration.calls import Client, publish, receive
from tests.support.patience import PATIENCE_S, until

WAIT_S_MAX = PATIENCE_S
PUBLISH_MAX = 500
_numbers = count()

Row = dict[str, Any]


def made(http: Client, **config: Any) -> str:
    """A new queue's name."""
    name = f"parts{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


def shown(http: Client, queue: str) -> Row:
    answer = http.get(f"/v1/queues/{queue}")
    assert answer.status_code == 200, answer.text
    found: Row = answer.json()
    return found


def stats(http: Client, queue: str) -> dict[str, int]:
    found: dict[str, int] = shown(http, queue)["stats"]
    return found


def partitions(http: Client, queue: str) -> Row:
    found: Row = shown(http, queue)["partitions"]
    return found


def change(http: Client, queue: str, **changes: Any) -> Row:
    """A PATCH that must be taken."""
    etag = http.get(f"/v1/queues/{queue}").headers["etag"]
    answer = http.patch(f"/v1/queues/{queue}", json=changes, headers={"If-Match": etag})
    assert answer.status_code == 200, answer.text
    found: Row = answer.json()
    return found


def is_resized(http: Client, queue: str, number: int) -> bool:
    found = partitions(http, queue)
    return bool(found["open"] == number and not found["slots_moving"])


def resize(http: Client, queue: str, number: int) -> None:
    """Asks for so many partitions, and waits until all slots have arrived. Old ones may still drain."""
    change(http, queue, partitions=number)
    until(lambda: is_resized(http, queue, number), f"{number} partitions")


def stored(http: Client, queue: str, *messages: Row) -> list[Row]:
    """Publishes, in several calls if they are many; the rows of the answers."""
    rows: list[Row] = []
    for first in range(0, len(messages), PUBLISH_MAX):
        answer = publish(http, queue, *messages[first : first + PUBLISH_MAX])
        assert answer.status_code == 201, answer.text
        rows += answer.json()["messages"]
    return rows


def keyed(number: int, keys: int = 40, **more: Any) -> list[Row]:
    """Messages of many keys in turn; a body names its key, and counts within it."""
    return [{"body": [f"k{n % keys}", n // keys], "key": f"k{n % keys}", **more} for n in range(number)]


def all_received(http: Client, queue: str, number: int, **wanted: Any) -> list[Row]:
    """Receives, without acks, until so many have come."""
    found: list[Row] = []
    deadline = time.monotonic() + WAIT_S_MAX
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number} messages came"
        found += receive(http, queue, **{"max": min(1000, number - len(found)), "wait_ms": 500} | wanted)
    return found


def settle(http: Client, queue: str, messages: list[Row]) -> list[bool]:
    """Acks; whether each was."""
    answer = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [message["receipt"] for message in messages]})
    assert answer.status_code == 200, answer.text
    return [row["ok"] for row in answer.json()["results"]]


def drained(http: Client, queue: str, number: int) -> list[Row]:
    """So many messages, each acked before more are asked for."""
    found: list[Row] = []
    deadline = time.monotonic() + WAIT_S_MAX
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number} messages came"
        page = receive(http, queue, max=min(100, number - len(found)), wait_ms=500)
        assert all(settle(http, queue, page))
        found += page
    return found


def paged(http: Client, queue: str, **query: Any) -> list[Row]:
    """All that a peek shows, by the links from page to page."""
    answer = http.get(f"/v1/queues/{queue}/messages", params=query)
    assert answer.status_code == 200, answer.text
    items: list[Row] = answer.json()["items"]
    while "link" in answer.headers:
        answer = http.get(answer.headers["link"].partition(">")[0][1:])
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
    return items


def in_order_by_key(messages: list[Row]) -> bool:
    """Whether the messages of each key, which `keyed` made, count from 0 without a gap or a repeat."""
    by_key: dict[str, list[int]] = {}
    for message in messages:
        key, number = message["body"]
        by_key.setdefault(key, []).append(number)
    return all(numbers == list(range(len(numbers))) for numbers in by_key.values())
