"""Requests that are refused while their body is still coming: the answer reaches whoever writes before it reads."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.conftest import StartServer
from tests.support.patience import PATIENCE_S, until
from tests.support.prerequisites import require
from tests.support.server import PushqServer
from tests.support.tls import Authority, settings

BODY_BYTES = 20 * 1024 * 1024
"""More than `limits.request_bytes_max`, and far more than both sockets' buffers."""
PART = bytes(256 * 1024)
CUT = "pushq_answered_bodies_cut_total"


@contextmanager
def line(server: PushqServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        if server.tls is None:
            yield raw
        else:
            with server.tls.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
                yield secured


def write_all(connection: socket.socket, method: str, path: str, headers: dict[str, str], *, is_chunked: bool) -> None:
    """The whole request, without a look at what comes back."""
    length = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(BODY_BYTES)}
    lines = [f"{name}: {value}" for name, value in ({"Host": "x"} | headers | length).items()]
    connection.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode())
    part = b"%x\r\n%b\r\n" % (len(PART), PART) if is_chunked else PART
    for _ in range(BODY_BYTES // len(PART)):
        connection.sendall(part)
    if is_chunked:
        connection.sendall(b"0\r\n\r\n")


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    with closing(http.client.HTTPResponse(connection)) as said:
        said.begin()
        return said.status, said.read()


def metric(server: PushqServer, name: str) -> float:
    page = httpx2.get(f"{server.url}/metrics", headers=server.headers).text
    return next(float(each.rpartition(" ")[2]) for each in page.splitlines() if each.startswith(name))


def refusals(server: PushqServer) -> dict[str, tuple[str, str, dict[str, str], int]]:
    """Method, path, headers and status of what is refused without a need of the body."""
    http_ = httpx2.Client(base_url=server.url, headers=server.headers)
    http_.put("/v1/queues/q").raise_for_status()
    key = http_.post("/v1/keys", json={"name": "narrow", "scopes": ["consume:other"]}).raise_for_status().json()["key"]
    http_.close()
    mine, narrow = server.headers, {"Authorization": f"Bearer {key}"}
    json_type = {"Content-Type": "application/json"}
    publish = "/v1/queues/q/messages"
    return {
        "401": ("POST", publish, json_type, 401),
        "403": ("POST", publish, json_type | narrow, 403),
        "404": ("POST", "/v1/nothing", json_type | mine, 404),
        "405": ("PUT", publish, json_type | mine, 405),
        "413": ("POST", publish, json_type | mine, 413),
        "415": ("POST", publish, json_type | mine | {"Content-Encoding": "gzip"}, 415),
        "last": ("POST", publish, json_type | mine | {"Connection": "close"}, 413),
    }


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("case", ["401", "403", "404", "405", "413", "415", "last"])
def test_who_writes_all_before_reading_gets_the_problem(
    shared_server: PushqServer, case: str, is_chunked: bool
) -> None:
    method, path, headers, status = refusals(shared_server)[case]
    cut = metric(shared_server, CUT)
    with line(shared_server) as connection:
        write_all(connection, method, path, headers, is_chunked=is_chunked)
        said, body = answer(connection)
        assert (said, json.loads(body)["status"]) == (status, status)
        if case == "last":
            assert connection.recv(1) == b""
        else:
            # The connection is as good as before.
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer(connection)[0] == 200
    assert metric(shared_server, CUT) == cut


def test_a_client_of_the_standard_library_goes_on_with_its_connection(shared_server: PushqServer) -> None:
    headers = shared_server.headers | {"Content-Type": "application/json"}
    client = http.client.HTTPConnection("127.0.0.1", shared_server.port, timeout=PATIENCE_S)
    client.request("PUT", "/v1/queues/kept", headers=shared_server.headers)
    client.getresponse().read()
    used = client.sock
    for body in (bytes(BODY_BYTES), iter([PART] * (BODY_BYTES // len(PART)))):
        client.request("POST", "/v1/queues/kept/messages", body=body, headers=headers)
        refused = client.getresponse()
        assert (refused.status, json.loads(refused.read())["code"]) == (413, "message-too-large")
    client.request("POST", "/v1/queues/kept/messages", body='{"messages":[{"body":1}]}', headers=headers)
    stored = client.getresponse()
    stored.read()
    assert stored.status == 201 and client.sock is used
    client.close()


def test_who_asks_too_fast_gets_the_problem(start_server: StartServer) -> None:
    rule = '[{"name":"principal","quota":1,"window_s":3600,"per":"principal"}]'
    server = start_server(env={"PUSHQ_THROTTLING__RULES": rule})
    seen = []
    for _ in range(2):
        with line(server) as connection:
            write_all(connection, "POST", "/v1/nothing", server.headers, is_chunked=False)
            seen.append(answer(connection)[0])
    assert seen == [404, 429]


def test_who_meets_a_server_without_memory_gets_the_problem(server: PushqServer) -> None:
    at_rest = server.rss_anon_kib() * 1024
    server.stop()
    short = PushqServer(server.data, env={"PUSHQ_OVERLOAD__MEMORY_MAX_BYTES": str(max(33_554_432, int(at_rest / 0.9)))})

    def takes_nothing() -> bool:
        try:
            return httpx2.get(f"{short.url}/v1/queues", headers=short.headers).status_code == 503
        except httpx2.TransportError:
            return False  # it has not begun to listen

    short.launch()
    try:
        until(takes_nothing, "it takes new work")
        with line(short) as connection:
            write_all(connection, "PUT", "/v1/queues/q", short.headers, is_chunked=False)
            status, body = answer(connection)
            assert (status, json.loads(body)["code"]) == (503, "overloaded")
    finally:
        short.kill()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_it_arrives_over_tls_too(tmp_path: Path, is_chunked: bool) -> None:
    authority = Authority(tmp_path)
    speaks_tls = PushqServer(tmp_path / "data", env=settings(authority.issue()), tls=authority.context())
    with speaks_tls as server, line(server) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        write_all(connection, "PUT", "/v1/queues/q", server.headers, is_chunked=is_chunked)
        assert answer(connection)[0] == 413
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer(connection)[0] == 200


@pytest.mark.parametrize("size", [BODY_BYTES, 17 * 1024 * 1024 * 1024])
def test_who_waits_for_100_continue_is_refused_without_being_asked_for_the_body(
    shared_server: PushqServer, size: int
) -> None:
    headers = shared_server.headers | {"Content-Length": str(size), "Expect": "100-continue"}
    httpx2.put(f"{shared_server.url}/v1/queues/q", headers=shared_server.headers)
    for path in ("/v1/queues/q/messages", "/v1/nothing"):
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with line(shared_server) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
            said = b""
            while part := connection.recv(65_536):
                said += part
            assert said.startswith(b"HTTP/1.1 413" if path.endswith("messages") else b"HTTP/1.1 404")
            assert b"connection: close" in said.lower() and said.count(b"HTTP/1.1") == 1


def test_who_waits_for_100_continue_and_sends_little_enough_is_asked_for_it(shared_server: PushqServer) -> None:
    httpx2.put(f"{shared_server.url}/v1/queues/q", headers=shared_server.headers)
    body = b'{"messages":[{"body":1}]}'
    headers = shared_server.headers | {"Content-Length": str(len(body)), "Expect": "100-continue"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with line(shared_server) as connection:
        for _ in range(2):
            connection.sendall(f"POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
            assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert answer(connection)[0] == 201


@pytest.mark.parametrize("expect", ["Expect:", "Expect: 100-continue"])
def test_curl_shows_the_problem(shared_server: PushqServer, tmp_path: Path, expect: str) -> None:
    file = tmp_path / "body"
    file.write_bytes(bytes(BODY_BYTES))
    key = shared_server.headers["Authorization"]
    command = [require("curl"), "-sS", "-H", f"Authorization: {key}", "-H", expect, "--json", f"@{file}"]
    for path, code in (("queues/q/messages", "message-too-large"), ("nothing", "not-found")):
        httpx2.put(f"{shared_server.url}/v1/queues/q", headers=shared_server.headers)
        ran = subprocess.run(
            [*command, f"{shared_server.url}/v1/{path}"], capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["code"] == code


# ------------------------------------------------------------------------------------------------------------- bounds


def test_a_body_without_end_is_cut_after_so_many_bytes(start_server: StartServer) -> None:
    bytes_max = 4 * 1024 * 1024
    server = start_server(env={"PUSHQ_LIMITS__LEFTOVER_BYTES_MAX": str(bytes_max)})
    head = "POST /v1/nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with line(server) as connection:
        connection.sendall(head.encode())
        assert answer(connection)[0] == 401
        sent, enough = 0, 40 * bytes_max
        try:
            while sent < enough:
                connection.sendall(b"%x\r\n%b\r\n" % (len(PART), PART))
                sent += len(PART)
        except OSError:
            pass
        assert bytes_max - len(PART) <= sent < enough
    assert metric(server, CUT) == 1


def test_a_body_that_comes_drop_by_drop_is_cut_after_so_many_seconds(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_LIMITS__LEFTOVER_SECONDS_MAX": "1"})
    with line(server) as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert answer(connection)[0] == 401
        deadline = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline:
                connection.sendall(b"x")
                time.sleep(0.02)
        except OSError:
            pass
        assert time.monotonic() < deadline
    assert metric(server, CUT) == 1


def test_a_stop_waits_for_no_body_that_is_answered(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_LIMITS__LEFTOVER_SECONDS_MAX": "3600"})
    with line(server) as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert answer(connection)[0] == 401
        assert server.stop().exit_code == 0
        assert "timeout graceful shutdown" not in server.log()


def test_what_is_thrown_away_costs_no_memory_and_no_room(shared_server: PushqServer) -> None:
    httpx2.put(f"{shared_server.url}/v1/queues/q", headers=shared_server.headers)
    before = shared_server.rss_anon_kib()
    head = f"POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_BYTES}\r\n"
    with ExitStack() as stack:
        lines = [stack.enter_context(line(shared_server)) for _ in range(20)]
        for connection in lines:
            connection.sendall(f"{head}Authorization: Bearer {shared_server.key}\r\n\r\n".encode())
        for _ in range(BODY_BYTES // len(PART) - 1):
            for connection in lines:
                connection.sendall(PART)
        assert shared_server.rss_anon_kib() - before < 32 * 1024
        assert metric(shared_server, "pushq_unconfirmed_bytes") == 0
        for connection in lines:
            connection.sendall(PART)
            assert answer(connection)[0] == 413
