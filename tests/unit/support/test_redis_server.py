"""The Redis of the tests: real, alone, and gone afterwards."""

from __future__ import annotations

import socket

import pytest
import redis

from tests.support.redis_server import RedisServer


def test_redis_answers_and_is_gone_after_the_block() -> None:
    with RedisServer(password="open-sesame") as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        client.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1).close()


def test_frozen_redis_accepts_and_never_answers() -> None:
    with RedisServer() as server:
        server.freeze()
        client = redis.Redis.from_url(server.url, socket_timeout=0.2, retry=None)
        with pytest.raises(redis.TimeoutError):
            client.ping()
        client.close()
        server.thaw()
        assert redis.Redis.from_url(server.url, single_connection_client=True).ping()
