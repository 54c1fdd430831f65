"""Who comes in to a real server under load, and who goes on."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.conftest import StartServer
from tests.support.patience import FAR, PATIENCE_S
from tests.support.server import PushqServer
from tests.support.ws import Client

NARROW = {"PUSHQ_LIMITS__ACCEPTS_PER_S": "1", "PUSHQ_LIMITS__ACCEPTS_BURST": "3"}


def opened(server: PushqServer) -> ClientConnection:
    socket = connect(server.ws_url, legacy=True)
    socket.send(json.dumps({"type": "connect", "token": server.key}))
    assert json.loads(socket.recv(5))["type"] == "connected"
    return socket


def client(server: PushqServer) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, headers=server.headers, timeout=10)


def test_sockets_and_streams_above_the_pace_get_503(start_server: StartServer) -> None:
    server = start_server(env=NARROW)
    with client(server) as http:
        http.put("/v1/queues/q")
        ticket = http.post("/v1/tickets", json={}).json()["ticket"]
        sockets = [opened(server) for _ in range(3)]
        with pytest.raises(InvalidStatus) as refused:
            connect(server.ws_url, legacy=True)
        assert refused.value.response.status_code == 503
        assert 1 <= int(refused.value.response.headers["Retry-After"]) <= 30
        # A ticket says who it is only when it is spent: its stream is on the same account.
        stream = httpx2.get(f"{server.url}/v1/queues/q/events", params={"ticket": ticket})
        assert (stream.status_code, stream.json()["code"]) == (503, "overloaded")
        assert 1 <= int(stream.headers["retry-after"]) <= 30
        assert "50000" in stream.headers["ratelimit-policy"] and stream.headers["ratelimit"]
        # Whoever shows nothing comes to no stream, and is told so.
        stranger = httpx2.get(f"{server.url}/v1/queues/q/events")
        assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthenticated")
        # Whoever is in, and plain calls, go on.
        assert http.post("/v1/queues/q/messages", json={"messages": [{"body": 1}]}).status_code == 201
        sockets[0].send('{"type":"ping","id":1}')
        assert json.loads(sockets[0].recv(5)) == {"type": "pong", "id": 1}
        assert 'pushq_overload_refused_total{reason="strangers",stage="socket"} 2.0' in http.get("/metrics").text
        for socket in sockets:
            socket.close()


def test_the_pace_lets_those_in_who_come_later(start_server: StartServer) -> None:
    server = start_server(env=NARROW)
    sockets = [opened(server) for _ in range(3)]
    refused = 0
    deadline = time.monotonic() + PATIENCE_S
    while len(sockets) == 3:
        assert time.monotonic() < deadline, f"not let in: {refused} refused"
        try:
            sockets.append(opened(server))
        except InvalidStatus:
            refused += 1
            time.sleep(0.1)
    assert refused
    for socket in sockets:
        socket.close()


def test_a_process_without_memory_takes_acks_and_nothing_new(start_server: StartServer) -> None:
    """Its limit is set so low that what it has at rest is too much."""
    server = start_server()
    with client(server) as http:
        http.put("/v1/queues/q")
        http.post("/v1/queues/q/messages", json={"messages": [{"body": 1}]})
        (message,) = http.post("/v1/queues/q/receive", json={}).json()["messages"]
    at_rest = server.rss_anon_kib() * 1024
    server.stop()
    short = PushqServer(server.data, env={"PUSHQ_OVERLOAD__MEMORY_MAX_BYTES": str(max(33_554_432, int(at_rest / 0.9)))})
    short.launch()
    try:
        with client(short) as http:
            wait_until_full(http)
            publish = http.post("/v1/queues/q/messages", json={"messages": [{"body": 2}]})
            assert (publish.status_code, publish.json()["code"]) == (503, "overloaded")
            assert publish.headers["retry-after"] and "of the memory limit" in publish.json()["detail"]
            assert http.get("/v1/queues").status_code == 503
            with pytest.raises(InvalidStatus):
                connect(short.ws_url, legacy=True)
            ack = http.post("/v1/queues/q/ack", json={"receipts": [message["receipt"]]})
            assert ack.json()["results"][0]["ok"]
            assert http.get("/lbz").status_code == http.get("/livez").status_code == 200
            assert "pushq_overload_level 3.0" in http.get("/metrics").text
        assert '"reached": "no_publishes"' in short.log()
    finally:
        short.kill()


def wait_until_full(http: httpx2.Client) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            answer = http.get("/readyz")
            if answer.status_code == 503 and answer.json()["code"] == "overloaded":
                return
        except httpx2.TransportError:
            pass  # it has not begun to listen
        time.sleep(0.1)
    raise AssertionError("the level did not rise")


@pytest.mark.anyio
async def test_a_drain_closes_evenly_and_asks_everybody_back_at_another_moment(start_server: StartServer) -> None:
    """At 50 a second 100 sockets can come back in 2 s: they are closed over as long, and told times in as long."""
    server = start_server(env={"PUSHQ_LIMITS__ACCEPTS_PER_S": "50", "PUSHQ_LIMITS__ACCEPTS_BURST": "1000"})
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(server)) for _ in range(100)]
        began = time.monotonic()
        server.terminate()

        async def farewell(client: Client) -> tuple[float, int]:
            bye = await client.next("bye")
            return time.monotonic() - began, bye["retry_ms"]

        told = await asyncio.gather(*map(farewell, clients))
    seconds, retries = sorted(at for at, _ in told), sorted(retry_ms for _, retry_ms in told)
    assert seconds[0] < 1.0 < seconds[-1] < FAR * 2.0
    assert 20 <= sum(at < (seconds[0] + seconds[-1]) / 2 for at in seconds) <= 80
    assert 200 <= retries[0] < 600 and 1_800 < retries[-1] <= 2_200
    assert (await asyncio.to_thread(server.wait)).exit_code == 0
