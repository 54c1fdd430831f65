"""HTTP from somebody who means no good: requests within requests, strange paths, bombs, and patience."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import socket
import time
import zlib
from contextlib import ExitStack

import httpx2
import pytest

from gateway.listener import server as listeners
from gateway.listener.proxy_gate import Entrance
from tests.conftest import StartServer
from tests.support.hostile import ANSWER_SECONDS_MAX, exchange, statuses
from tests.support.server import PushqServer
from tests.support.told_client import listening

BOMB_BYTES = 64 * 1024 * 1024
POURED_BYTES_MAX = 2 * 1024 * 1024
OTHERS_SECONDS_MAX = 2.0
"""What a request of somebody else may take meanwhile, on a machine with other work."""


def smuggled(server: PushqServer, name: str) -> bytes:
    """A whole request that would leave a trace."""
    head = (
        f"PUT /v1/queues/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\nContent-Length: 0\r\n\r\n"
    )
    return head.encode()


# ------------------------------------------------------------------------------------- requests within requests


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("both", ["Content-Length: 5", "Transfer-Encoding: chunked"]),
        ("both-turned", ["Transfer-Encoding: chunked", "Content-Length: 5"]),
        ("two-lengths", ["Content-Length: 5", "Content-Length: 0"]),
        ("two-lengths-in-one", ["Content-Length: 0, 5"]),
        ("signed-length", ["Content-Length: +0"]),
        ("negative-length", ["Content-Length: -1"]),
        ("hex-length", ["Content-Length: 0x0"]),
        ("long-length", ["Content-Length: 99999999999999999999999"]),
        ("unknown-coding", ["Transfer-Encoding: xchunked"]),
        ("coding-after-chunked", ["Transfer-Encoding: chunked, identity"]),
        ("space-before-colon", ["Content-Length : 0"]),
        ("folded", ["Content-Length:", " 0"]),
        ("no-colon", ["Content-Length"]),
        ("nul", ["Content-Length: 0\0"]),
        ("bare-return", ["X-A: b\rContent-Length: 0"]),
    ],
)
def test_a_request_whose_length_is_in_doubt_hides_no_other_one(
    shared_server: PushqServer, name: str, lines: list[str]
) -> None:
    head = "\r\n".join(["POST /v1/queues/absent/receive HTTP/1.1", "Host: x", *lines, "", ""]).encode()
    answer = exchange(shared_server, head + b"0\r\n\r\n" + smuggled(shared_server, f"smuggled-{name}"))
    assert statuses(answer)[:1] in ([400], [])
    assert len(statuses(answer)) <= 1
    there = httpx2.get(f"{shared_server.url}/v1/queues/smuggled-{name}", headers=shared_server.headers)
    assert there.status_code == 404


@pytest.mark.parametrize(
    "chunk", [b"-1\r\n", b"0x5\r\nhello\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"5\nhello\n", b"5 ;\0\r\n"]
)
def test_a_chunk_that_is_none_ends_the_connection(shared_server: PushqServer, chunk: bytes) -> None:
    head = (
        f"POST /v1/queues/absent/receive HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shared_server.key}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    name = f"chunk-{chunk.hex()}"
    answer = exchange(shared_server, head.encode() + chunk + smuggled(shared_server, name))
    assert 201 not in statuses(answer)
    there = httpx2.get(f"{shared_server.url}/v1/queues/{name}", headers=shared_server.headers)
    assert there.status_code == 404


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_a_trailer_becomes_no_header(shared_server: PushqServer, name: str) -> None:
    request = (
        "PUT /v1/queues/trailed HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        f"2\r\n{{}}\r\n0\r\n{name}: Bearer {shared_server.key}\r\n\r\n"
    )
    assert statuses(exchange(shared_server, request.encode())) == [401]
    there = httpx2.get(f"{shared_server.url}/v1/queues/trailed", headers=shared_server.headers)
    assert there.status_code == 404


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [("1.1", [], 400), ("1.1", ["a", "b"], 400), ("1.1", ["a", "a"], 400), ("1.0", ["a", "a"], 400), ("1.0", [], 200)],
)
def test_a_request_has_one_host(shared_server: PushqServer, version: str, hosts: list[str], status: int) -> None:
    lines = [f"GET /livez HTTP/{version}", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
    assert statuses(exchange(shared_server, "\r\n".join(lines).encode())) == [status]


# ---------------------------------------------------------------------------------------------------- strange paths


@pytest.mark.parametrize(
    "target",
    [
        "/v1/queues/..%2f..%2fetc%2fpasswd",
        "/v1/queues/%2e%2e/%2e%2e/tenants",
        "/v1/queues/a%00b",
        "/v1/queues/a%0d%0aX-Injected:%20yes",
        "/v1/queues/%c0%ae%c0%ae%c0%af",
        "/v1/queues/%ff%fe",
        "/v1/queues/a%5cb",
        "/v1/queues/a%20b",
        "/v1/queues/%252e%252e",
        "/v1/queues/" + "a" * 5000,
        "/v1//queues",
        "/v1/queues/./x",
        "/static/..%2f..%2fadmin.key",
        "/static/%2e%2e/%2e%2e/admin.key",
        "/docs/..%2f..%2fadmin.key",
        "/docs/%2e%2e/%2e%2e/pyproject.toml",
        "//elsewhere.example/%2f..",
    ],
)
def test_a_path_out_of_its_bounds_finds_nothing_and_writes_no_header(shared_server: PushqServer, target: str) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shared_server.key}\r\nConnection: close\r\n\r\n"
    answer = exchange(shared_server, head.encode())
    (status,) = statuses(answer)
    assert status in (400, 404), answer
    lines, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-injected" not in lines.lower() and b"\r\n\r\n" not in body
    assert json.loads(body)["status"] == status
    assert shared_server.key.encode() not in answer


def test_an_absolute_target_is_its_path_and_nothing_is_fetched(shared_server: PushqServer) -> None:
    head = "GET http://elsewhere.example/v1/queues HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert statuses(exchange(shared_server, head.encode())) == [401]


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "get", "PROPFIND"])
def test_a_method_that_nobody_needs_is_refused(shared_server: PushqServer, method: str) -> None:
    target = "x:443" if method == "CONNECT" else "/v1/queues"
    key = f"Authorization: Bearer {shared_server.key}"
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", key, "Connection: close", "", ""])
    answer = exchange(shared_server, head.encode())
    assert statuses(answer)[0] in (400, 404, 405) and shared_server.key.encode() not in answer


def test_what_a_caller_says_in_a_header_is_not_repeated_as_a_header(shared_server: PushqServer) -> None:
    page = {"Origin": shared_server.url, "Access-Control-Request-Method": "GET"}
    wanted = {"Access-Control-Request-Headers": "x-a, set-cookie: a=b"}
    answer = httpx2.options(f"{shared_server.url}/v1/queues", headers=page | wanted)
    assert answer.status_code == 204
    assert "set-cookie" not in answer.headers
    foreign = httpx2.options(f"{shared_server.url}/v1/queues", headers=page | {"Origin": "https://evil.example"})
    assert foreign.status_code == 401 and "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/q/events", "/v1/queues/q/receive"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://127.0.0.1.evil.example", "file://"])
def test_a_foreign_page_reads_no_answer_over_any_transport(shared_server: PushqServer, path: str, origin: str) -> None:
    method = "POST" if path.endswith("receive") else "GET"
    answer = httpx2.request(method, f"{shared_server.url}{path}", headers=shared_server.headers | {"Origin": origin})
    assert "access-control-allow-origin" not in answer.headers


# ------------------------------------------------------------------------------------------------------------ bombs


@functools.cache
def packed(coding: str) -> bytes:
    pack = zlib.compress if coding == "deflate" else gzip.compress
    return pack(bytes(BOMB_BYTES), 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip", "GZIP"])
def test_a_compressed_body_is_refused_and_never_unpacked(shared_server: PushqServer, coding: str) -> None:
    bomb = packed("deflate" if coding == "deflate" else "gzip")
    before = shared_server.rss_anon_kib()
    answer = httpx2.post(
        f"{shared_server.url}/v1/queues/bombs/messages",
        content=bomb,
        headers=shared_server.headers | {"Content-Type": "application/json", "Content-Encoding": coding},
    )
    assert answer.status_code in (404, 415)
    assert (shared_server.rss_anon_kib() - before) * 1024 < BOMB_BYTES // 4


DEEP = 200_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"config":' * DEEP,
        b'{"max":' + b"9" * 100_000 + b"}",
        b'{"max":1e400}',
        b'{"max":-1e-400}',
        b'{"max":1' + b"0" * 5000 + b"}",
        b'{"max":NaN}',
        b'{"max":"' + b"\\u0000" * 10_000 + b'"}',
        b'{"max":1' + b" " * 1_000_000,
        b"\xef\xbb\xbf{}",
        b'{"max":"\xed\xa0\x80"}',
    ],
    ids=lambda body: repr(body[:12]),
)
def test_json_that_is_made_to_hurt_is_refused_at_once(shared_server: PushqServer, body: bytes) -> None:
    httpx2.put(f"{shared_server.url}/v1/queues/hurt", headers=shared_server.headers)
    for path in ("queues/hurt/receive", "queues/hurt/messages", "keys"):
        answer = httpx2.post(
            f"{shared_server.url}/v1/{path}",
            content=body,
            headers=shared_server.headers | {"Content-Type": "application/json"},
            timeout=5,
        )
        assert answer.status_code == 400, answer.text
    assert shared_server.is_ready()


def test_of_a_field_that_is_given_twice_the_same_one_is_checked_and_used(shared_server: PushqServer) -> None:
    headers = shared_server.headers | {"Content-Type": "application/json"}
    made = httpx2.put(
        f"{shared_server.url}/v1/queues/twice", content=b'{"max_attempts":0,"max_attempts":7}', headers=headers
    )
    assert (made.status_code, made.json()["config"]["max_attempts"]) == (201, 7)
    refused = httpx2.put(
        f"{shared_server.url}/v1/queues/twice-more", content=b'{"max_attempts":7,"max_attempts":0}', headers=headers
    )
    assert refused.status_code == 400


# ----------------------------------------------------------------------------------------------------- requests ahead


def test_requests_sent_ahead_without_reading_take_little_memory_and_hold_nobody_up(shared_server: PushqServer) -> None:
    before = shared_server.rss_anon_kib()
    ahead = b"GET /livez HTTP/1.1\r\nHost:\r\n\r\n" * 10_000
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=1) as connection:
        worst, sent = 0.0, 0
        try:
            for _ in range(50):
                connection.sendall(ahead)
                sent += 1
                began = time.monotonic()
                assert httpx2.get(f"{shared_server.url}/livez", timeout=20).status_code == 200
                worst = max(worst, time.monotonic() - began)
        except TimeoutError:
            pass  # the server does not read on, as it should
        assert sent < 50
        assert shared_server.rss_anon_kib() - before < 32 * 1024
        assert worst < OTHERS_SECONDS_MAX


# -------------------------------------------------------------------------------------------- bodies that are refused


def test_many_who_pour_bodies_that_are_refused_hold_nobody_up_and_are_cut(start_server: StartServer) -> None:
    """None of them reads, has a credential, or would ever end."""
    server = start_server(env={"PUSHQ_LIMITS__LEFTOVER_BYTES_MAX": str(POURED_BYTES_MAX)})
    before = server.rss_anon_kib()
    part = b"10000\r\n" + bytes(65_536) + b"\r\n"
    with ExitStack() as stack:
        pouring = {
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS_MAX))
            for _ in range(100)
        }
        for connection in pouring:
            connection.sendall(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        worst = 0.0
        for _ in range(20 * POURED_BYTES_MAX // len(part)):
            for connection in list(pouring):
                try:
                    connection.sendall(part)
                except OSError:
                    pouring.discard(connection)
            began = time.monotonic()
            assert httpx2.get(f"{server.url}/livez", timeout=20).status_code == 200
            worst = max(worst, time.monotonic() - began)
            if not pouring:
                break
        assert not pouring, "they are still read"
    assert worst < OTHERS_SECONDS_MAX
    assert server.rss_anon_kib() - before < 64 * 1024
    metrics = httpx2.get(f"{server.url}/metrics", headers=server.headers).text
    assert "pushq_answered_bodies_cut_total 100.0" in metrics


# ---------------------------------------------------------------------------------------------------------- patience


@pytest.mark.anyio
@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"GET /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\n",
        b"POST / HTTP/1.1\r\nX-A",
    ],
    ids=["nothing", "half a head", "half a handshake", "half a line"],
)
async def test_a_head_that_comes_drop_by_drop_ends_by_its_deadline(
    monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(listeners, "REQUEST_HEAD_SECONDS_MAX", 0.3)
    async with listening(Entrance()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(beginning)

        async def drip() -> None:
            while beginning:
                writer.write(b"a")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(5):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
        dripping.cancel()
        writer.close()


@pytest.mark.anyio
async def test_a_second_request_has_the_same_deadline_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "REQUEST_HEAD_SECONDS_MAX", 0.3)
    async with listening(Entrance()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HTTP/1.1\r\n")
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()


@pytest.mark.anyio
async def test_connections_that_ask_for_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "REQUEST_HEAD_SECONDS_MAX", 1.0)
    async with listening(Entrance()) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        async with httpx2.AsyncClient() as http, asyncio.timeout(10):
            assert (await http.get(f"http://127.0.0.1:{port}/x")).status_code == 200
            assert [await reader.read() for reader, _ in idle] == [b""] * len(idle)
        for _, writer in idle:
            writer.close()
