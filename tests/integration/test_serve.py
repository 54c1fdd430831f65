"""The process of `pushq serve`: how it starts, why it does not, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tests.conftest import StartServer
from tests.support.server import PushqServer, ServerFailed

Client = httpx2.Client
DRAINED_SESSIONS = 200
AT_A_PACE = {"PUSHQ_LIMITS__ACCEPTS_PER_S": "100"}
"""So many can come back in 2 s, and so long a drain takes."""


def client(server: PushqServer) -> Client:
    return Client(base_url=server.url, headers=server.headers, timeout=15)


@contextmanager
def session(server: PushqServer) -> Iterator[ClientConnection]:
    with connect(server.ws_url) as ws:
        ws.send(json.dumps({"type": "connect", "token": server.key}))
        assert json.loads(ws.recv(5))["type"] == "connected"
        yield ws


@contextmanager
def many_sessions(server: PushqServer) -> Iterator[None]:
    """So many that their farewells take a while: time to look at a server that drains."""
    hello = json.dumps({"type": "connect", "token": server.key}).encode()
    frame = Frame(Opcode.TEXT, hello).serialize(mask=True)
    with ExitStack() as stack:
        for _ in range(DRAINED_SESSIONS):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            raw.sendall(upgrade_request(server, "/v1/ws"))
            assert raw.recv(4096).startswith(b"HTTP/1.1 101")
            raw.sendall(frame)
            assert b'"connected"' in raw.recv(4096)
        yield


def until_closed(ws: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """The frames that still come, and the close code."""
    frames: list[dict[str, Any]] = []
    while True:
        try:
            said = json.loads(ws.recv(10))
        except ConnectionClosed as closed:
            return frames, closed.rcvd.code if closed.rcvd is not None else 1006
        frames += said if isinstance(said, list) else [said]


# -------------------------------------------------------------------------------------------------------- start


def test_start_says_where_everything_is(start_server: StartServer) -> None:
    server = start_server()
    log = server.log()
    for line in (f"{server.url}/v1", f"{server.url}/docs", str(server.data / "admin.key"), "ready in "):
        assert line in log
    assert "/demo" not in log


def test_dev_says_where_the_demo_is_and_that_it_is_not_for_production(start_server: StartServer) -> None:
    server = start_server(dev=True)
    assert f"{server.url}/demo" in server.log() and "Not for production" in server.log()
    with client(server) as http:
        page = http.get("/demo")
        assert page.status_code == 200
        assert http.get("/demo/").headers["location"] == "/demo"
        own = {"Origin": server.url}
        token = http.post("/demo/token", headers=own).json()["token"]
        with Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}) as demo:
            assert demo.put("/v1/queues/demo.x").status_code == 201
            assert demo.put("/v1/queues/other").status_code == 403
        assert http.post("/demo/token", headers={"Origin": "http://evil.example"}).status_code == 403


def test_who_signs_out_under_dev_may_sign_in_as_somebody_else(start_server: StartServer) -> None:
    server = start_server(dev=True)
    with Client(base_url=server.url, follow_redirects=True, timeout=15) as http:
        assert "Overview" in http.get("/console").text
        out = http.post("/console/logout", headers={"Origin": server.url})
        assert out.url.path == "/console/login" and "API key or JWT" in out.text
        assert "Overview" in http.get("/console").text, "whoever opens the console anew is signed in"


def test_without_dev_there_is_no_demo(start_server: StartServer) -> None:
    with client(start_server()) as http:
        assert http.get("/demo").status_code == 404
        assert http.post("/demo/token").status_code == 404


def refused_start(tmp_path: Path, *flags: str, data: Path | None = None, **options: Any) -> str:
    server = PushqServer(data or tmp_path / "refused", *flags, **options)
    with pytest.raises(ServerFailed, match="exit code 3"):
        server.start()
    log = server.log()
    assert "Traceback" not in log
    return log


def test_a_folder_in_use_is_refused_with_who_has_it(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    log = refused_start(tmp_path, data=server.data)
    assert f"in use by process {server.pid}" in log
    assert server.is_ready()


def test_a_taken_port_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen on {address}" in refused_start(tmp_path, "--listen", address)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("flags", "env", "says"),
    [
        (["--gateways", "2", "--dev"], {}, "--dev works with a single gateway process only; remove"),
        (["--dev", "--listen", "0.0.0.0:0"], {}, "--dev"),
        ([], {"PUSHQ_RESUME_MSS": "5"}, "did you mean 'resume_ms'?"),
        ([], {"PUSHQ_HTTP__TRUSTED_PROXIES": "10.0.0.1"}, "set http.proxy_protocol = true"),
        (["--config", "/nowhere/pushq.toml"], {}, "/nowhere/pushq.toml"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, flags: list[str], env: dict[str, str], says: str) -> None:
    assert says in refused_start(tmp_path, *flags, env=env)


def test_a_data_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file"
    assert f"cannot open the data folder {file}: File exists" in refused_start(tmp_path, data=file)


def test_a_deep_data_folder_still_has_its_socket(start_server: StartServer, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.parent.mkdir()
    server = start_server(data=deep)
    assert stat.S_ISSOCK((deep / "admin.sock").stat().st_mode)
    assert server.is_ready()


def test_a_socket_left_by_a_crash_is_replaced(start_server: StartServer) -> None:
    server = start_server()
    server.kill()
    assert (server.data / "admin.sock").exists()
    server.start()
    transport = httpx2.HTTPTransport(uds=str(server.data / "admin.sock"))
    with Client(base_url="http://local", transport=transport) as local:
        assert local.get("/livez").status_code == 200
        assert local.get("/v1/queues").status_code == 401


def test_open_files_are_raised_to_the_hard_limit(start_server: StartServer) -> None:
    server = start_server()
    (line,) = [x for x in Path(f"/proc/{server.pid}/limits").read_text().splitlines() if x.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert soft == hard


# ---------------------------------------------------------------------------------------------------------- end


def test_an_idle_server_ends_at_once_with_code_0(start_server: StartServer) -> None:
    server = start_server()
    stopped = server.stop()
    assert stopped.exit_code == 0 and stopped.seconds < 3
    assert not (server.data / "admin.sock").exists()


def test_what_was_published_is_there_after_a_restart(start_server: StartServer) -> None:
    server = start_server()
    with client(server) as http:
        http.put("/v1/queues/q")
        http.post("/v1/queues/q/messages", json={"messages": [{"body": n} for n in range(10)]})
    server.restart()
    with client(server) as http:
        assert [m["body"] for m in http.post("/v1/queues/q/receive", json={}).json()["messages"]] == list(range(10))


def test_sigterm_says_bye_to_sockets_and_streams(start_server: StartServer) -> None:
    server = start_server()
    with client(server) as http, ExitStack() as stack:
        http.put("/v1/queues/q")
        sockets = [stack.enter_context(session(server)) for _ in range(20)]
        with http.stream("GET", "/v1/queues/q/events") as events:
            lines = events.iter_lines()
            next(lines)
            began = time.monotonic()
            server.terminate()
            for ws in sockets:
                frames, code = until_closed(ws)
                assert (frames[-1]["type"], code) == ("bye", 4000)
                assert frames[-1]["retry_ms"] > 0
            text = "\n".join(lines)
            assert "event: bye" in text and "retry: " in text
    assert time.monotonic() - began < 5
    stopped = server.wait(began)
    assert stopped.exit_code == 0 and stopped.seconds < 10


def test_a_waiting_receive_ends_with_the_drain(start_server: StartServer) -> None:
    server = start_server()
    answers: list[httpx2.Response] = []
    with client(server) as http:
        http.put("/v1/queues/q")

        def wait() -> None:
            with client(server) as other:
                answers.append(other.post("/v1/queues/q/receive", json={"wait_ms": 60_000}, timeout=70))

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        stopped = server.stop()
        waiting.join(10)
    assert stopped.exit_code == 0 and stopped.seconds < 10
    assert answers and answers[0].status_code in (200, 503)


def test_while_it_drains_a_server_says_so_and_takes_acks_but_nothing_new(start_server: StartServer) -> None:
    server = start_server(env=AT_A_PACE)
    with client(server) as http:
        http.put("/v1/queues/q")
        http.post("/v1/queues/q/messages", json={"messages": [{"body": 1}]})
        (message,) = http.post("/v1/queues/q/receive", json={}).json()["messages"]
        with many_sessions(server):
            server.terminate()
            while http.get("/readyz").status_code == 200:
                time.sleep(0.005)
            assert (http.get("/readyz").status_code, http.get("/lbz").status_code) == (503, 404)
            assert http.get("/livez").status_code == 200
            refused = http.post("/v1/queues/q/messages", json={"messages": [{"body": 2}]})
            assert (refused.status_code, refused.json()["code"]) == (503, "draining") and refused.headers["retry-after"]
            assert http.post("/v1/queues/q/receive", json={"wait_ms": 5000}).json()["code"] == "draining"
            assert http.post("/v1/queues/q/ack", json={"receipts": [message["receipt"]]}).json()["results"][0]["ok"]
    assert server.wait().exit_code == 0


def test_a_second_signal_leaves_at_once(start_server: StartServer) -> None:
    server = start_server(env=AT_A_PACE)
    with client(server) as http:
        http.put("/v1/queues/q")
        http.post("/v1/queues/q/messages", json={"messages": [{"body": 1}]})
        with many_sessions(server):
            server.terminate()
            while http.get("/readyz").status_code == 200:
                time.sleep(0.005)
            began = time.monotonic()
            os.kill(server.pid, signal.SIGTERM)
            stopped = server.wait(began)
    assert stopped.seconds < 1 and stopped.exit_code == 128 + signal.SIGTERM
    server.start()
    with client(server) as http:
        assert http.get("/v1/queues/q").json()["stats"]["ready"] == 1


def test_ctrl_c_drains_as_sigterm_does(start_server: StartServer) -> None:
    server = start_server()
    with session(server) as ws:
        os.kill(server.pid, signal.SIGINT)
        assert until_closed(ws)[1] == 4000
    assert server.wait().exit_code == 0


def test_logs_are_json_one_event_a_line(start_server: StartServer) -> None:
    server = start_server()
    server.stop()
    events = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    assert [event["event"] for event in events if event["event"] in ("draining", "stopped")] == ["draining", "stopped"]
    assert all({"ts", "level", "event"} <= set(event) for event in events)


# ------------------------------------------------------------------------------------------------------- sockets


def test_a_socket_elsewhere_is_refused_before_the_upgrade(shared_server: PushqServer) -> None:
    answer = _upgrade(shared_server, "/v1/other")
    assert answer.startswith(b"HTTP/1.1 404") and b"application/problem+json" in answer


def test_a_foreign_page_is_refused_before_the_upgrade(shared_server: PushqServer) -> None:
    assert _upgrade(shared_server, "/v1/ws", origin="http://evil.example").startswith(b"HTTP/1.1 403")
    assert _upgrade(shared_server, "/v1/ws", origin=shared_server.url).startswith(b"HTTP/1.1 101")


def _upgrade(server: PushqServer, path: str, *, origin: str | None = None) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(upgrade_request(server, path, origin=origin))
        return connection.recv(65_536)


def upgrade_request(server: PushqServer, path: str, *, origin: str | None = None) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *([f"Origin: {origin}"] if origin else []),
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()
