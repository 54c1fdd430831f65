"""Publishes under idempotency keys while the server is killed and Redis is lost: each key is stored once."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from redis import Redis

from tests.support.redis_server import RedisServer
from tests.support.server import PushqServer

CLIENTS = 4
CALLS_PER_CLIENT = 30
KILLS = 2
SENT_TWICE = 3
"""Every so manieth call is sent again although it was answered."""


def insist(http: httpx2.Client, queue: str, number: int) -> list[int]:
    """Sends one call until it is answered; the places of its messages."""
    messages = [{"body": [number, n], **({"key": f"{number}-{n}"} if n else {})} for n in range(3)]
    headers = {"Idempotency-Key": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{queue} {number}"))}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            answer = http.post(f"/v1/queues/{queue}/messages", json={"messages": messages}, headers=headers)
        except httpx2.HTTPError:
            time.sleep(0.05)
            continue
        if answer.status_code == 201:
            return [row["seq"] for row in answer.json()["messages"]]
        assert answer.status_code in (409, 503), answer.text
        time.sleep(0.02)
    raise AssertionError(f"call {number} was not answered")


def work(server: PushqServer, queue: str, client: int) -> None:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=5) as http:
        for number in range(client, CLIENTS * CALLS_PER_CLIENT, CLIENTS):
            seqs = insist(http, queue, number)
            if number % SENT_TWICE == 0:
                assert insist(http, queue, number) == seqs


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_key_is_stored_once_whatever_is_killed(tmp_path: Path, partitions: int) -> None:
    with RedisServer() as redis, PushqServer(tmp_path / "data", env={"PUSHQ_REDIS__URL": redis.url}) as server:
        queue = f"once-{partitions}"
        httpx2.put(f"{server.url}/v1/queues/{queue}", json={"partitions": partitions}, headers=server.headers)
        with ThreadPoolExecutor(CLIENTS) as pool:
            working = [pool.submit(work, server, queue, client) for client in range(CLIENTS)]
            for kill in range(KILLS):
                time.sleep(0.25)
                server.kill()
                server.start()
                if kill == 0:
                    with Redis(port=redis.port) as client:
                        client.flushall()
                elif kill == 1:
                    redis.kill()
            for each in working:
                each.result()
        stats = httpx2.get(f"{server.url}/v1/queues/{queue}", headers=server.headers).json()["stats"]
        assert stats["published_total"] == 3 * CLIENTS * CALLS_PER_CLIENT
