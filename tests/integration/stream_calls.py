"""Calls to streams and their groups that several files of tests share."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.integration.calls import Client, publish

_numbers = count()


def made(http: Client, **config: Any) -> str:
    """A stream of the test's own."""
    name = f"s{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json={"kind": "stream", **config})
    assert answer.status_code == 201, answer.text
    return name


def published(http: Client, stream: str, *bodies: Any) -> list[int]:
    answer = publish(http, stream, *({"body": body} for body in bodies))
    assert answer.status_code == 201, answer.text
    return [message["seq"] for message in answer.json()["messages"]]


def put_group(http: Client, stream: str, name: str, **wanted: Any) -> dict[str, Any]:
    answer = http.put(f"/v1/queues/{stream}/groups/{name}", json=wanted)
    assert answer.status_code in (200, 201), answer.text
    group: dict[str, Any] = answer.json()
    return group


def lag(http: Client, stream: str, name: str) -> int:
    answer = http.get(f"/v1/queues/{stream}/groups/{name}")
    assert answer.status_code == 200, answer.text
    [part] = answer.json()["lag"]
    return int(part["lag"])


def bodies(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["body"] for message in messages]


def receipts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["receipt"] for message in messages]


def acked(http: Client, stream: str, *given: str) -> list[bool]:
    answer = http.post(f"/v1/queues/{stream}/ack", json={"receipts": given})
    assert answer.status_code == 200, answer.text
    return [row["ok"] for row in answer.json()["results"]]


def stats(http: Client, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/queues/{stream}").json()["stats"]
    return found
