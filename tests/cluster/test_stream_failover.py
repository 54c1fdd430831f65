"""Readers of a stream in mode `async` whose leader dies with what they had read: they are told, and miss nothing of
what the next leader has in its place.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from backend_store.core.log.cursor import decode_cursor
from backend_store.core.replication.limits import FETCH_WAIT_MS
from tests.cluster.test_cluster import gateway, leader_of
from tests.support.backends import ROLE, Backends
from tests.support.consumers import TRANSPORTS, PollConsumer, Pushed, consuming, http_client
from tests.support.patience import eventually
from tests.support.prerequisites import require

pytestmark = pytest.mark.anyio
EARLY, ALONE, AFTER = 3, 10, 5


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


async def test_live_readers_of_what_a_leader_took_with_it_are_told_and_miss_nothing(tmp_path: Path) -> None:
    cluster = Backends(tmp_path, ROLE, env={"PUSHQ_CLUSTER__REPLICATION": "async"})
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        server = await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0"))
        try:
            await _read_through(cluster, server)
        finally:
            server.kill()
    finally:
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))


async def _read_through(cluster: Backends, server: Any) -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_client(server))

        async def made() -> bool:
            return (await http.put("/v1/queues/s", json={"kind": "stream"})).status_code in (200, 201)

        async def publish(body: str) -> None:
            async def is_confirmed() -> bool:
                answer = await http.post(
                    "/v1/queues/s/messages", json={"messages": [{"body": body}]}, headers={"idempotency-key": body}
                )
                return answer.status_code == 201

            await eventually(is_confirmed, f"{body} is confirmed")

        async def stored(wanted: Any) -> list[str]:
            answer = await http.post("/v1/queues/s/receive", json={"from": wanted, "max": 1000})
            return [one["body"] for one in answer.raise_for_status().json()["messages"]]

        await eventually(made, "the stream is made")
        for number in range(EARLY):
            await publish(f"early-{number}")
        await anyio.to_thread.run_sync(cluster.all_in_sync)
        leader = leader_of(cluster, 0)
        consumers = [
            await stack.enter_async_context(consuming(server, transport, "s", **{"from": "earliest"}))
            for transport in TRANSPORTS
        ]
        for consumer in consumers:
            assert len(await consumer.take(EARLY)) == EARLY
        others = [one for one in cluster.all if one is not leader]
        for one in others:
            one.send(signal.SIGSTOP)
        await asyncio.sleep(2 * FETCH_WAIT_MS / 1000)  # what they had asked for is answered without a message
        alone = [f"alone-{number}" for number in range(ALONE)]
        for body in alone:
            await publish(body)
        for consumer in consumers:
            assert [one["body"] for one in await consumer.take(ALONE)] == alone
        leader.end(signal.SIGKILL)
        for one in others:
            one.send(signal.SIGCONT)
        after = [f"after-{number}" for number in range(AFTER)]
        for body in after:
            await publish(body)
        left = await stored("earliest")
        assert left[:EARLY] == [f"early-{number}" for number in range(EARLY)] and left[-AFTER:] == after
        assert len(left) < EARLY + ALONE + AFTER, "nothing was lost"
        for consumer in consumers:
            if isinstance(consumer, Pushed):
                there = [one["body"] for one in await consumer.take(AFTER)]
                told = [frame for frame in _frames(consumer) if frame["type"] == "reset"]
                assert len(told) == 1
                offset = int(decode_cursor(told[0]["cursor"]).positions[0].offset)
                assert there == after and await stored({"seq": offset}) == after
            else:
                assert isinstance(consumer, PollConsumer)
                assert [one["body"] for one in await consumer.take(AFTER)] == after


def _frames(consumer: Pushed) -> list[dict[str, Any]]:
    found = []
    while not consumer.inbox.empty():
        found.append(consumer.inbox.get_nowait())
    return found
