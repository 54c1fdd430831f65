"""What a real server says: one line a connection, requests where they are wanted, and no secret by any door."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as ws_connect

from tests.support.server import PushqServer

SECRET = "hunter2hunter2hunter2"
KEY = f"pushq_0123456789abcdef_{SECRET}"
TALKATIVE = {"PUSHQ_LOGS__LEVEL": "debug", "PUSHQ_LOGS__ACCESS": "true"}


def lines(server: PushqServer, event: str, count: int) -> list[dict[str, Any]]:
    """The log's lines of one event, once there are so many."""
    found: list[dict[str, Any]] = []
    for _ in range(500):
        said = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
        found = [line for line in said if line["event"] == event]
        if len(found) >= count:
            break
        time.sleep(0.01)
    return found


def test_no_secret_gets_into_the_log_by_any_door(tmp_path: Path) -> None:
    with PushqServer(tmp_path / "data", env=TALKATIVE) as server:
        url, good = server.url, server.headers
        httpx2.put(f"{url}/v1/queues/q", json={}, headers=good).raise_for_status()
        for scheme in ("Bearer", "Basic", "Nonsense"):
            httpx2.get(f"{url}/v1/queues", headers={"Authorization": f"{scheme} {KEY}"})
        for path in ("/v1/queues/q/events", f"/v1/{KEY}", f"/v1/queues/{KEY}", f"/{KEY}", "/v1/queues"):
            httpx2.get(f"{url}{path}?ticket={SECRET}&token={SECRET}", headers=good if "events" not in path else {})
        messages = [{"body": SECRET, "key": SECRET, "headers": {"token": SECRET}}]
        httpx2.post(f"{url}/v1/queues/q/messages", json={"messages": messages}, headers=good).raise_for_status()
        httpx2.post(f"{url}/v1/queues/q/messages", json={"messages": [{SECRET: 1}]}, headers=good)
        httpx2.post(f"{url}/v1/queues/q/receive", json={}, headers=good).raise_for_status()
        httpx2.post(f"{url}/v1/queues/q/ack", json={"receipts": [SECRET]}, headers=good)
        made = httpx2.post(f"{url}/v1/keys", json={"name": "k", "scopes": ["admin"]}, headers=good).json()["key"]
        ticket = httpx2.post(f"{url}/v1/tickets", json={}, headers=good).json()["ticket"]
        for frame in (
            {"type": "connect", "token": KEY},
            {"type": "connect", "ticket": SECRET},
            {"type": SECRET},
            {"type": "connect", "ticket": ticket},
        ):
            with ws_connect(server.ws_url) as client, contextlib.suppress(ConnectionClosed, TimeoutError):
                client.send(json.dumps(frame))
                client.send(json.dumps({"type": "publish", "queue": "q", SECRET: 1}))
                client.send(f"{{{SECRET}")
                while True:
                    client.recv(timeout=1)
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(f"GET /{SECRET} NONSENSE/{SECRET}\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            raw.recv(1000)
        assert lines(server, "request", 10)
        server.stop()
        said = server.log()
        for secret in (SECRET, server.key, made, ticket):
            assert secret not in said


def test_each_connection_has_one_line_when_it_closes(tmp_path: Path) -> None:
    with PushqServer(tmp_path / "data") as server:
        httpx2.put(f"{server.url}/v1/queues/q", json={}, headers=server.headers).raise_for_status()
        with ws_connect(server.ws_url) as client:
            client.send(json.dumps({"type": "connect", "token": server.key}))
            client.recv(timeout=5)
        with httpx2.stream("GET", f"{server.url}/v1/queues/q/events", headers=server.headers) as stream:
            next(stream.iter_raw())
        closed = lines(server, "connection closed", 2)
        assert sorted(line["transport"] for line in closed) == ["sse", "ws"]
        (ws,) = [line for line in closed if line["transport"] == "ws"]
        assert (ws["code"], ws["tenant"], ws["address"], ws["level"]) == (1000, "default", "127.0.0.1", "info")
        assert 0 <= ws["seconds"] < 10 and ws["principal"] in server.key
        assert not lines(server, "request", 0), "the access log is off unless it is wanted"


@pytest.mark.parametrize(("level", "wanted"), [("info", 1), ("warning", 0)])
def test_level_says_what_is_left_out(tmp_path: Path, level: str, wanted: int) -> None:
    with PushqServer(tmp_path / "data", env={"PUSHQ_LOGS__LEVEL": level}) as server:
        server.stop()
        assert len(lines(server, "stopped", wanted)) == wanted


def test_text_is_no_json(tmp_path: Path) -> None:
    with PushqServer(tmp_path / "data", env={"PUSHQ_LOGS__FORMAT": "text"}) as server:
        server.stop()
        assert "stopped" in server.log() and '"event"' not in server.log()
