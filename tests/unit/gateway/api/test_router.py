"""Paths find their operation, and nothing else does."""

from __future__ import annotations

import pytest

from gateway.api.router import Router

ROUTER: Router[str] = Router(
    [
        ("GET", "/v1/queues", "list"),
        ("GET", "/v1/queues/{queue}", "get"),
        ("PUT", "/v1/queues/{queue}", "put"),
        ("POST", "/v1/queues/{queue}/messages", "publish"),
        ("GET", "/v1/queues/{queue}/purges/{purge}", "purge"),
    ]
)


@pytest.mark.parametrize(
    ("path", "methods", "params"),
    [
        ("/v1/queues", {"GET": "list"}, []),
        ("/v1/queues/orders", {"GET": "get", "PUT": "put"}, ["orders"]),
        ("/v1/queues/messages", {"GET": "get", "PUT": "put"}, ["messages"]),
        ("/v1/queues/orders/messages", {"POST": "publish"}, ["orders"]),
        ("/v1/queues/a b/purges/7", {"GET": "purge"}, ["a b", "7"]),
    ],
)
def test_a_path_finds_its_methods_and_its_variable_steps(path: str, methods: dict[str, str], params: list[str]) -> None:
    match = ROUTER.find(path)
    assert match is not None
    assert (dict(match.methods), match.params) == (methods, params)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v1/",
        "/v1/queues/",
        "/v1/queues/a/",
        "/v1/queues/a/other",
        "/v1/queues//messages",
        "v1/queues",
        "/v1/queues/a/purges",
    ],
)
def test_other_paths_find_nothing(path: str) -> None:
    assert ROUTER.find(path) is None
