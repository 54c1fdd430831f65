"""Every operation of the API, asked by every kind of key: what its page says of the scope is what the server does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest

from gateway.api.table import OPERATIONS, Operation
from tests.integration.calls import make_key
from tests.support.server import PushqServer

QUEUE = "roles"
KINDS = ("publish", "consume", "view", "manage", "admin", "operator")
_WORDS = re.compile(rf"\b(any|{'|'.join(KINDS)})\b")


@pytest.fixture(scope="module")
def clients(shared_server: PushqServer) -> Iterator[dict[str, httpx2.Client]]:
    """A client for each kind of key."""
    with httpx2.Client(base_url=shared_server.url, headers=shared_server.headers) as first:
        assert first.put(f"/v1/queues/{QUEUE}").status_code in (200, 201)
        keys = {kind: make_key(first, kind if kind in ("admin", "operator") else f"{kind}:*") for kind in KINDS}
    made = {
        kind: httpx2.Client(base_url=shared_server.url, headers={"Authorization": f"Bearer {key['key']}"}, timeout=20)
        for kind, key in keys.items()
    }
    yield made
    for client in made.values():
        client.close()


def is_allowed(operation: Operation, kind: str) -> bool:
    """By the words of the table: one of the scopes that it names first is enough."""
    named = set(_WORDS.findall(re.split("[;,]", operation.scope)[0]))
    assert named, operation.scope
    if kind == "operator" or "any" in named or 403 not in operation.refusals:
        return True
    return kind in named or (kind == "admin" and named != {"operator"})


def status_of(client: httpx2.Client, operation: Operation) -> int:
    path = re.sub(r"\{\w+\}", "nothing", operation.path.replace("{queue}", QUEUE))
    body = {"json": {}} if operation.method in ("POST", "PUT", "PATCH") else {}
    with client.stream(operation.method, path, **body) as answer:
        return answer.status_code


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_a_key_does_what_its_scope_says_and_nothing_else(
    clients: dict[str, httpx2.Client], operation: Operation
) -> None:
    for kind, client in clients.items():
        status = status_of(client, operation)
        if operation.path == "/v1/queues/{queue}" and operation.method == "DELETE":
            assert status in (400, 403), kind  # over HTTP only where the settings allow it
        elif is_allowed(operation, kind):
            assert status not in (401, 403), kind
        elif operation.path.count("{") > operation.path.count("{queue}"):
            assert status in (403, 404), kind  # what is absent is said first
        else:
            assert status == 403, kind
