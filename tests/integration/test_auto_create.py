"""A publish that makes its queue, beside frames of its session that wait for limits which are counted elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer
from tests.support.server import PushqServer
from tests.support.ws import Client, create_queue

RULES = [{"name": "messages", "quota": 1_000_000, "window_s": 60, "unit": "messages", "per": ["tenant", "queue"]}]


@pytest.mark.anyio
async def test_frames_that_wait_for_limits_are_answered_though_a_queue_is_made_meanwhile(tmp_path: Path) -> None:
    with RedisServer() as redis:
        env = {
            "PUSHQ_THROTTLING__STORE": "redis",
            "PUSHQ_REDIS__URL": redis.url,
            "PUSHQ_THROTTLING__RULES": json.dumps(RULES),
            "PUSHQ_QUEUES__AUTO_CREATE": '[{"pattern": "auto.*"}]',
        }
        with PushqServer(tmp_path / "data", env=env) as server:
            create_queue(server, "q")
            async with Client(server) as client:
                await client.publish("q", "limits are asked for")
                redis.freeze()
                await client.send(type="publish", id=1, queue="auto.one", messages=[{"body": "first"}])
                frames = [
                    {"type": "publish", "id": number, "queue": "q", "messages": [{"body": number}]}
                    for number in range(2, 32)
                ]
                await client.socket.send(json.dumps(frames))  # at once: behind one that waits nothing more is read
                waiting = set(range(1, 32))
                while waiting:
                    answer = await client.next("ok")
                    waiting.discard(answer["id"])
                redis.thaw()
                await client.subscribe("q", credit=100)
                assert [m["body"] for m in await client.messages(31)] == ["limits are asked for", *range(2, 32)]
                await client.subscribe("auto.one", credit=1)
                assert [m["body"] for m in await client.messages(1)] == ["first"]
