"""Which requests every process answers, and which are for the first one."""

from __future__ import annotations

import pytest

from gateway.api.table import OPERATIONS
from gateway.processes.forward import is_for_desk

EVERYWHERE = {
    ("GET", "/v1/queues"),
    ("GET", "/v1/queues/{queue}"),
    ("POST", "/v1/queues/{queue}/messages"),
    ("GET", "/v1/queues/{queue}/messages"),
    ("DELETE", "/v1/queues/{queue}/messages/{message}"),
    ("GET", "/v1/queues/{queue}/offsets"),
    ("GET", "/v1/queues/{queue}/partitions/{partition}/messages"),
    ("POST", "/v1/queues/{queue}/receive"),
    ("POST", "/v1/queues/{queue}/ack"),
    ("POST", "/v1/queues/{queue}/nack"),
    ("POST", "/v1/queues/{queue}/extend"),
    ("GET", "/v1/queues/{queue}/events"),
    ("POST", "/v1/tickets"),
}


def test_messages_are_carried_by_every_process_and_the_rest_is_for_one() -> None:
    here = {(one.method, one.path) for one in OPERATIONS if not is_for_desk(one.method, one.path)}
    assert here == EVERYWHERE


@pytest.mark.parametrize("path", ["/metrics", "/console", "/console/queues", "/v1/nothing"])
def test_what_is_about_the_whole_server_is_for_one(path: str) -> None:
    assert is_for_desk("GET", path)


@pytest.mark.parametrize("path", ["/", "/readyz", "/livez", "/lbz", "/docs", "/consoles", "/static/pushq.js"])
def test_health_and_documents_are_everywhere(path: str) -> None:
    assert not is_for_desk("GET", path)
