"""Idempotency keys with a real Redis: replies are shared through it, and nothing rests on it."""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from gateway.limits import REPLIES_SECONDS_MAX
from tests.integration.calls import Client, refused
from tests.integration.test_idempotency import accepted, made, published_total, repeated, sent
from tests.support.redis_server import RedisServer
from tests.support.server import PushqServer
from tests.support.slow_disk import STALL_SECONDS, slow_disk

CALLS = "pushq_dependency_calls_total"
_keys = (f"key-{number}" for number in count())


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(tmp_path: Path, redis: RedisServer) -> Iterator[PushqServer]:
    with PushqServer(tmp_path / "data", env={"PUSHQ_REDIS__URL": redis.url}) as server:
        yield server


@pytest.fixture
def http(server: PushqServer) -> Iterator[Client]:
    with Client(base_url=server.url, headers=server.headers, timeout=15) as client:
        yield client


def restarted(server: PushqServer) -> None:
    """The memory of replies is gone; Redis has its own."""
    server.kill()
    server.start()


def stored(redis: RedisServer) -> dict[bytes, Any]:
    """The replies in Redis once the last one has arrived there."""
    with Redis(port=redis.port) as client:
        deadline = time.monotonic() + 5
        while True:
            found = {name: msgspec.msgpack.decode(client.get(name)) for name in client.keys("pushq:reply:*")}
            if found and all(reply[1] is not None for reply in found.values()):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.01)


def dependency(server: PushqServer, name: str) -> dict[str, float]:
    """Outcome (or nothing) → value, of one series of the guard of Redis."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.labels.get("outcome", ""): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels.get("dependency") == "redis_replies"
    }


def test_while_the_partition_takes_long_the_reply_that_lies_in_redis_is_given(
    server: PushqServer, redis: RedisServer, http: Client
) -> None:
    queue, key = made(http), next(_keys)
    first = accepted(sent(http, queue, key, "a", "b"))
    ((name, reply),) = stored(redis).items()
    assert reply[1] == [[0, first[0][1], 2]]
    restarted(server)
    # That the answer is from Redis shows by a place that no partition would tell.
    reply[1] = [[0, 4711, 2]]
    with Redis(port=redis.port) as client:
        client.set(name, msgspec.msgpack.encode(reply))
    with slow_disk(server):
        began = time.monotonic()
        assert [seq for _, seq, _ in repeated(sent(http, queue, key, "a", "b"))] == [4711, 4712]
        assert time.monotonic() - began < STALL_SECONDS / 2
        refused(sent(http, queue, key, "c"), 422, "idempotency-mismatch")
    assert published_total(http, queue) == 2


def test_what_redis_has_of_another_payload_is_not_believed(
    server: PushqServer, redis: RedisServer, http: Client
) -> None:
    queue, key = made(http), next(_keys)
    accepted(sent(http, queue, key, "a"))
    ((name, reply),) = stored(redis).items()
    restarted(server)
    with Redis(port=redis.port) as client:
        client.set(name, msgspec.msgpack.encode([b"p" * 16, *reply[1:]]))
    with slow_disk(server):
        assert repeated(sent(http, queue, key, "a"))


@pytest.mark.parametrize("loss", ["flushed", "killed", "killed and back", "broken"])
def test_without_redis_no_duplicate_is_accepted(
    server: PushqServer, redis: RedisServer, http: Client, loss: str
) -> None:
    queue, key = made(http), next(_keys)
    first = accepted(sent(http, queue, key, "a"))
    names = list(stored(redis))
    restarted(server)
    with Redis(port=redis.port) as client:
        if loss == "flushed":
            client.flushall()
        elif loss == "broken":
            client.set(names[0], b"\xc1 this is no reply")
    if loss.startswith("killed"):
        redis.kill()
    if loss == "killed and back":
        redis.start()
    refused(sent(http, queue, key, "b"), 422, "idempotency-mismatch")
    assert repeated(sent(http, queue, key, "a")) == first
    accepted(sent(http, queue, next(_keys), "a"))
    assert published_total(http, queue) == 2


def test_a_redis_that_stalls_costs_nobody_anything(server: PushqServer, redis: RedisServer, http: Client) -> None:
    queue = made(http)
    accepted(sent(http, queue, next(_keys), "a"))
    redis.freeze()
    try:
        took, deadline = [], time.monotonic() + 20
        while not (dependency(server, "pushq_dependency_state")[""] and dependency(server, CALLS).get("open")):
            assert time.monotonic() < deadline, "the circuit of a Redis that stalls does not open"
            began = time.monotonic()
            accepted(sent(http, queue, next(_keys), "a"))
            took.append(time.monotonic() - began)
        assert statistics.median(took) < REPLIES_SECONDS_MAX / 2
    finally:
        redis.thaw()


def test_the_server_stops_cleanly_with_a_redis_that_is_gone(
    server: PushqServer, redis: RedisServer, http: Client
) -> None:
    accepted(sent(http, made(http), next(_keys), "a"))
    redis.kill()
    assert server.stop().exit_code == 0
