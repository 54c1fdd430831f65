"""Sockets that nobody reads do not slow down the one that somebody does."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from contextlib import ExitStack

import httpx2
import pytest

from tests.conftest import StartServer
from tests.support.crowd import UPGRADE, text
from tests.support.patience import FAR
from tests.support.server import PushqServer
from tests.support.ws import Client, create_queue

UNREAD = (250, 1_000)
SAMPLES = 60
BLOCKING_MESSAGES = 12
BODY = "x" * 60_000
NOISE_SECONDS = 0.05
SLACK = 1.0 if "OVERLOAD_SECONDS" in os.environ else FAR


def unread_sockets(server: PushqServer, stack: ExitStack, count: int) -> None:
    """Subscribes so many sockets to the stream `slow`, and reads none of them again."""
    subscribe = text({"type": "subscribe", "queue": "slow", "id": 1})
    hello = text({"type": "connect", "token": server.key})
    for _ in range(count):
        raw = stack.enter_context(socket.socket())
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Small packets, as over a real network: else the system alone would take a megabyte for each of them.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
        raw.settimeout(10)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(UPGRADE)
        assert raw.recv(4096).startswith(b"HTTP/1.1 101")
        raw.sendall(hello + subscribe)
        said = b""
        while b'"ok"' not in said:
            said += raw.recv(4096)


async def latencies(server: PushqServer) -> list[float]:
    """From a publish to its delivery, one after the other."""
    found = []
    async with Client(server) as client:
        await client.ask(type="subscribe", queue="fast", credit=10)
        for number in range(SAMPLES):
            began = time.monotonic()
            await client.send(type="publish", queue="fast", messages=[{"body": number}])
            delivered = await client.next("deliver")
            found.append(time.monotonic() - began)
            (message,) = delivered["messages"]
            assert message["body"] == number
            await client.send(type="ack", queue="fast", receipts=[message["receipt"]])
            await asyncio.sleep(0.005)
    return sorted(found)


@pytest.mark.anyio
@pytest.mark.parametrize("unread", UNREAD)
async def test_unread_sockets_do_not_slow_down_a_fast_one(start_server: StartServer, unread: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = start_server()
    create_queue(server, "slow", kind="stream")
    create_queue(server, "fast")
    before = await latencies(server)
    with ExitStack() as stack, httpx2.Client(base_url=server.url, headers=server.headers, timeout=10) as http:
        unread_sockets(server, stack, unread)
        for _ in range(BLOCKING_MESSAGES):
            http.post("/v1/queues/slow/messages", json={"messages": [{"body": BODY}]}).raise_for_status()
        beside = await latencies(server)
        delivered = http.get("/metrics").text
    p95 = SAMPLES * 95 // 100
    print(f"p95 alone {before[p95] * 1000:.1f} ms, beside {unread} unread sockets {beside[p95] * 1000:.1f} ms")
    assert beside[p95] < SLACK * (2 * before[p95] + NOISE_SECONDS)
    sent = next(line for line in delivered.splitlines() if line.startswith("pushq_messages_delivered_total"))
    assert float(sent.split()[1]) < unread * BLOCKING_MESSAGES, "they were never blocked: this shows nothing"
