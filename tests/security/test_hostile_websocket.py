"""WebSockets from somebody who means no good: floods, frames without end, and receipts that nobody gave out.

Frames that break RFC 6455, frames too large and clients that do not read: tests/integration/test_websocket_protocol.py.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from push.limits import FRAGMENTS_PER_FRAME_MAX
from tests.support.hostile import CONTINUATION, PING, PONG, TEXT, frame, statuses, until_closed, upgraded
from tests.support.server import PushqServer

OTHERS_SECONDS_MAX = 2.0
"""What a request of somebody else may take meanwhile, on a machine with other work."""


def hello(server: PushqServer) -> bytes:
    return frame(TEXT, json.dumps({"type": "connect", "token": server.key}).encode())


def worst_of_others(server: PushqServer, done: threading.Event) -> float:
    """The slowest answer that somebody else gets until `done`."""
    worst = 0.0
    with httpx2.Client(base_url=server.url) as http:
        while not done.is_set():
            began = time.monotonic()
            assert http.get("/livez").status_code == 200
            worst = max(worst, time.monotonic() - began)
    return worst


def flood(connection: socket.socket, data: bytes, times: int, done: threading.Event) -> None:
    connection.settimeout(20)
    try:
        for _ in range(times):
            connection.sendall(data)
    except OSError:
        pass  # the server has seen enough
    finally:
        done.set()


# ------------------------------------------------------------------------------------------------------------ floods


@pytest.mark.parametrize(
    "piece",
    [frame(PING), frame(TEXT, b'{"type":"ping"}'), frame(TEXT, b'{"type":"pong"}')],
    ids=["pings", "ping frames", "pong frames"],
)
def test_a_flood_of_tiny_frames_holds_nobody_else_up(shared_server: PushqServer, piece: bytes) -> None:
    before = shared_server.rss_anon_kib()
    with upgraded(shared_server) as (connection, _):
        connection.sendall(hello(shared_server))
        done = threading.Event()
        # What is answered is never read: in the end the server does not read either.
        flooding = threading.Thread(target=flood, args=(connection, piece * 1000, 30, done))
        flooding.start()
        threading.Timer(3.0, done.set).start()
        worst = worst_of_others(shared_server, done)
        connection.shutdown(socket.SHUT_RDWR)
        flooding.join()
    assert worst < OTHERS_SECONDS_MAX
    assert shared_server.rss_anon_kib() - before < 32 * 1024


@pytest.mark.parametrize("is_connected", [False, True], ids=["before connect", "connected"])
@pytest.mark.parametrize(
    "piece",
    [frame(PING), frame(PONG), frame(PONG, b"x" * 125), frame(TEXT, b'{"type":"credit","sub":7,"n":1}')],
    ids=["pings", "pongs", "long pongs", "refused requests"],
)
def test_a_flood_that_asks_for_nothing_ends_its_own_socket(
    shared_server: PushqServer, piece: bytes, *, is_connected: bool
) -> None:
    if piece[0] & 0xF == TEXT and not is_connected:
        expected = b"\x11\x95"  # 4501: the first frame is `connect`
    else:
        expected = b"\x0f\xa8"  # 4008
    with upgraded(shared_server) as (connection, _):
        if is_connected:
            connection.sendall(hello(shared_server))
        done = threading.Event()
        flooding = threading.Thread(target=flood, args=(connection, piece * 10_000, 50, threading.Event()))
        worst: list[float] = []
        others = threading.Thread(target=lambda: worst.append(worst_of_others(shared_server, done)))
        others.start()
        flooding.start()
        said = until_closed(connection)
        done.set()
        others.join()
        flooding.join()
    assert expected in said
    assert worst[0] < OTHERS_SECONDS_MAX


def test_fragments_without_end_are_told_and_end_the_socket(shared_server: PushqServer) -> None:
    with upgraded(shared_server) as (connection, _):
        connection.sendall(hello(shared_server) + frame(TEXT, is_last=False))
        connection.sendall(frame(CONTINUATION, is_last=False) * FRAGMENTS_PER_FRAME_MAX)
        said = until_closed(connection)
    assert b"fragments" in said and b"\x11\x94" in said  # 4500


def test_compression_is_never_agreed_to(shared_server: PushqServer) -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    with upgraded(shared_server, offer) as (connection, head):
        assert head.startswith(b"HTTP/1.1 101") and b"sec-websocket-extensions" not in head.lower()
        connection.sendall(b"\xc1\x80" + bytes(4))  # a frame that says it is compressed
        assert b"\x88" in until_closed(connection)


NO_HANDSHAKES = [
    "Sec-WebSocket-Key: short",
    "Sec-WebSocket-Version: 8",
    "Upgrade: h2c",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Cookie: " + "a" * 9_000,
    "X-A: \x7f",
]


@pytest.mark.parametrize("line", NO_HANDSHAKES, ids=lambda line: line[:20])
def test_a_handshake_that_is_none_is_answered_and_becomes_no_socket(shared_server: PushqServer, line: str) -> None:
    name = line.partition(":")[0]
    lines = [
        "GET /v1/ws HTTP/1.1",
        f"Host: 127.0.0.1:{shared_server.port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    head = "\r\n".join([*(one for one in lines if not one.startswith(name)), line, "", ""])
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(65_536)
        assert statuses(answer)[0] in (400, 401, 404, 426)
        if name != "Upgrade":  # that one is a plain request, and may have another one behind it
            while connection.recv(65_536):
                pass  # the server closes: a timeout would fail here


def test_refused_handshakes_leave_nothing_open_and_are_counted(start_server: Callable[..., PushqServer]) -> None:
    server = start_server()
    head = (
        f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    with ExitStack() as stack:
        for number in range(60):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            connection.sendall(f"{head}{('Content-Length: 5', 'Cookie: ' + 'a' * 9_000)[number % 2]}\r\n\r\n".encode())
            assert statuses(until_closed(connection)) == [400]
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < files + 10
        metrics = httpx2.get(f"{server.url}/metrics", headers=server.headers).text
        assert 'pushq_heads_refused_total{reason="upgrade"} 60.0' in metrics


def test_frames_right_behind_the_head_are_not_lost(shared_server: PushqServer) -> None:
    with upgraded(shared_server, behind=hello(shared_server)) as (connection, head):
        assert head.startswith(b"HTTP/1.1 101")
        assert b'"connected"' in connection.recv(65_536)


PACE = {"PUSHQ_LIMITS__ACCEPTS_PER_S": "1", "PUSHQ_LIMITS__ACCEPTS_BURST": "20"}


def opens(server: PushqServer, *extra: str) -> bool:
    with upgraded(server, *extra) as (_, head):
        assert head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 503"))
        return head.startswith(b"HTTP/1.1 101")


def test_those_without_a_credential_take_no_place_from_those_with_one(start_server: Callable[..., PushqServer]) -> None:
    server = start_server(env=PACE)
    with httpx2.Client(base_url=server.url) as http:
        for _ in range(100):
            assert http.get("/v1/queues/q/events").status_code in (401, 429)
            assert http.get("/v1/queues/q/events", headers={"Authorization": "Bearer no"}).status_code in (401, 429)
        assert opens(server), "what becomes no socket took the place of one"
        assert [opens(server) for _ in range(40)].count(False) > 10
        assert [opens(server, "Authorization: Bearer no") for _ in range(10)].count(False) > 0
        assert [opens(server, f"Authorization: Bearer {server.key}") for _ in range(10)] == [True] * 10
        assert http.put("/v1/queues/q", headers=server.headers).status_code == 201
        with http.stream("GET", "/v1/queues/q/events", headers=server.headers) as stream:
            assert stream.status_code == 200
        metrics = http.get("/metrics", headers=server.headers).text
        assert 'pushq_overload_refused_total{reason="strangers",stage="socket"}' in metrics
        assert 'pushq_overload_refused_total{reason="pace",stage="socket"} 0.0' in metrics


# ---------------------------------------------------------------------------------------------------------- receipts


def forged(genuine: str, count: int) -> list[str]:
    token = genuine.partition(".")[0]
    raw = bytearray(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    made = []
    for number in range(count):
        raw[23:31] = number.to_bytes(8, "big")
        raw[-12:] = secrets.token_bytes(12)
        made.append(urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode() + ".00")
    return made


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_thousands_of_forged_receipts_settle_nothing_and_hold_nobody_up(shared_server: PushqServer, call: str) -> None:
    queue = f"forged-{call}"
    with httpx2.Client(base_url=shared_server.url, headers=shared_server.headers, timeout=30) as http:
        http.put(f"/v1/queues/{queue}")
        http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": 1}]})
        (message,) = http.post(f"/v1/queues/{queue}/receive", json={}).json()["messages"]
        body: dict[str, Any] = {"receipts": forged(message["receipt"], 10_000)}
        if call == "extend":
            body["visibility_timeout_ms"] = 60_000
        done = threading.Event()
        worst: list[float] = []
        others = threading.Thread(target=lambda: worst.append(worst_of_others(shared_server, done)))
        others.start()
        answer = http.post(f"/v1/queues/{queue}/{call}", json=body)
        done.set()
        others.join()
        assert {result["ok"] for result in answer.json()["results"]} == {False}
        assert worst[0] < OTHERS_SECONDS_MAX
        settled = http.post(f"/v1/queues/{queue}/ack", json={"receipts": [message["receipt"]]}).json()
        assert settled["results"][0]["ok"]


def test_a_receipt_that_was_moved_to_another_queue_settles_nothing(shared_server: PushqServer) -> None:
    with httpx2.Client(base_url=shared_server.url, headers=shared_server.headers) as http:
        for name in ("mine", "theirs"):
            http.put(f"/v1/queues/{name}")
            http.post(f"/v1/queues/{name}/messages", json={"messages": [{"body": name}]})
        (theirs,) = http.post("/v1/queues/theirs/receive", json={}).json()["messages"]
        moved = http.post("/v1/queues/mine/ack", json={"receipts": [theirs["receipt"]]}).json()
        assert not moved["results"][0]["ok"]
        assert http.get("/v1/queues/mine").json()["stats"]["ready"] == 1
        assert http.post("/v1/queues/theirs/ack", json={"receipts": [theirs["receipt"]]}).json()["results"][0]["ok"]
