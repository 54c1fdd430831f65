"""A client that ends its side of the connection behind its request still reads its answer."""

from __future__ import annotations

import json
import socket

import pytest

from tests.support.server import PushqServer
from tests.support.ws import create_queue

BODY = json.dumps({"messages": [{"body": 1}]}).encode()


@pytest.fixture(scope="module")
def queue(shared_server: PushqServer) -> str:
    create_queue(shared_server, "half-closed")
    return "half-closed"


def request(server: PushqServer, path: str, body: bytes = BODY) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {server.key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def said(server: PushqServer, *parts: bytes) -> bytes:
    """What comes back, to its end, to a client that sends all and ends its side."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        for part in parts:
            client.sendall(part)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while found := client.recv(65536):
            answer += found
    return answer


def test_the_answer_comes_and_then_the_connection_ends(shared_server: PushqServer, queue: str) -> None:
    answer = said(shared_server, request(shared_server, f"/v1/queues/{queue}/messages"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 ") and json.loads(body)["messages"][0]["duplicate"] is False


def test_each_request_that_was_sent_ahead_is_answered(shared_server: PushqServer, queue: str) -> None:
    publish = request(shared_server, f"/v1/queues/{queue}/messages")
    assert said(shared_server, publish * 3).count(b"HTTP/1.1 201 ") == 3
    assert said(shared_server, publish * 2 + publish[:40]).count(b"HTTP/1.1 ") == 2, "half a request is none"


def test_half_a_request_gets_no_answer_and_does_nothing(shared_server: PushqServer, queue: str) -> None:
    whole = request(shared_server, f"/v1/queues/{queue}/messages")
    assert said(shared_server, whole[:-1]) == b"" and said(shared_server, whole[:50]) == b""


def test_messages_are_not_handed_to_who_may_have_gone(shared_server: PushqServer) -> None:
    """The end of its side is all that a server sees of a client that has gone."""
    create_queue(shared_server, "half-closed-empty")
    wanted = json.dumps({"wait_ms": 30_000}).encode()
    assert said(shared_server, request(shared_server, "/v1/queues/half-closed-empty/receive", wanted)) == b""
