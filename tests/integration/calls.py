"""Calls that the tests of the HTTP API share, and what they expect of an answer."""

from __future__ import annotations

from typing import Any

import httpx2

Client = httpx2.Client


def publish(http: Client, queue: str, *messages: dict[str, Any]) -> httpx2.Response:
    return http.post(f"/v1/queues/{queue}/messages", json={"messages": list(messages)})


def receive(http: Client, queue: str, **wanted: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json=wanted)
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def refused(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (problem["code"], problem["status"]) == (code, status)
    assert problem["type"] == f"/docs/reference/errors#{code}" and problem["title"] and problem["detail"]
    return problem


def pointers(problem: dict[str, Any]) -> list[str]:
    return [error["pointer"] for error in problem["errors"]]


def make_key(admin: Client, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = admin.post("/v1/keys", json={"name": "test", "scopes": scopes} | more)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def with_key(admin: Client, token: str) -> Client:
    return Client(base_url=admin.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=15)


def codes(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def first_events(client: Client, path: str) -> tuple[int, str]:
    """Status, and what an event stream says first."""
    with client.stream("GET", path) as answer:
        if answer.status_code != 200:
            answer.read()
            return codes(answer)
        return answer.status_code, next(answer.iter_text())


def ticket_for(client: Client, **body: Any) -> str:
    answer = client.post("/v1/tickets", json=body)
    assert answer.status_code == 201, answer.text
    assert set(answer.json()) == {"ticket", "expires_at"}
    return str(answer.json()["ticket"])
