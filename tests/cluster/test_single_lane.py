"""Queues of independent hosts that lie in one lane each: streams, an order by producers, acks that publish, a limit.

Of each kind there is one in every lane. The host of one lane is killed while all of them are used, and the host that
adopts it goes on where that one was.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import gateway, leader_of, leads, patient
from tests.cluster.test_independent_hosts import HOSTS, LANES
from tests.support.backends import ROLE, Backends
from tests.support.consumers import Socket, call
from tests.support.patience import eventually, until
from tests.support.prerequisites import require
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

KILLED = 1
BEFORE, MESSAGES = 10, 30
"""So many of a queue are through when the host is killed, of so many in all."""
SERVICE_S_MAX = 90.0
LIMIT = 5
WINDOW_MS = 120_000
"""For so long a message waits for an earlier one, also while nobody owns its lane."""
VISIBILITY_MS = 30_000
"""Leases outlive their host, and are far from their end when another one adopts the lane."""


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[Backends, PushqServer]]:
    cluster = Backends(tmp_path, ROLE, names="abc", env=HOSTS)
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        owners = [await anyio.to_thread.run_sync(leader_of, cluster, lane) for lane in range(LANES)]
        assert len({one.name for one in owners}) == LANES
        server = await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0"))
        try:
            yield cluster, server
        finally:
            server.kill()
    finally:
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))


class Progress:
    """How far each of the uses of a queue is. `done` ends when all are at their end."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, work: Awaitable[None]) -> None:
        self.counts[name] = 0
        self.tasks.append(asyncio.ensure_future(work))

    def step(self, name: str) -> None:
        self.counts[name] += 1

    async def all_at(self, count: int) -> None:
        await eventually(
            lambda: all(one >= count for one in self.counts.values()), within_s=SERVICE_S_MAX, beside=self.tasks
        )

    async def done(self) -> None:
        async with asyncio.timeout(SERVICE_S_MAX):
            await asyncio.gather(*self.tasks)


async def publish(http: httpx2.AsyncClient, queue: str, key: str, message: dict[str, Any]) -> None:
    """Under one idempotency key until it is confirmed."""

    async def is_confirmed() -> bool:
        answer = await http.post(
            f"/v1/queues/{queue}/messages", json={"messages": [message]}, headers={"idempotency-key": key}
        )
        return answer.status_code == 201

    await eventually(is_confirmed, f"{key} is confirmed", within_s=SERVICE_S_MAX)


async def read_stream(progress: Progress, server: PushqServer, http: httpx2.AsyncClient, queue: str) -> None:
    async with Socket.open(server) as socket:
        told = await socket.ask(type="subscribe", queue=queue, credit=100, **{"from": "earliest"})
        assert told["type"] == "ok", told
        seqs = []
        for number in range(MESSAGES):
            await publish(http, queue, f"{queue}-{number}", {"body": number})
            message = (await socket.frame("message", SERVICE_S_MAX))["message"]
            assert message["body"] == number
            seqs.append(message["seq"])
            progress.step(queue)
        assert seqs == sorted(set(seqs))


async def sort(progress: Progress, server: PushqServer, http: httpx2.AsyncClient, queue: str) -> None:
    """Each two messages of a producer are published in the wrong order."""
    unsure: set[int] = set()
    async with Socket.open(server) as socket:
        told = await socket.ask(type="subscribe", queue=queue, credit=1)
        assert told["type"] == "ok", told
        for number in range(0, MESSAGES, 2):
            for seq in (number + 2, number + 1):
                await publish(http, queue, f"{queue}-{seq}", {"body": seq, "producer": "p", "producer_seq": seq})
            for seq in (number + 1, number + 2):
                while (message := (await socket.frame("message", SERVICE_S_MAX))["message"])["body"] in unsure:
                    unsure.discard(message["body"])
                    await socket.ask(type="ack", queue=queue, receipts=[message["receipt"]], within_s=SERVICE_S_MAX)
                assert message["body"] == seq
                verdict = await socket.ask(
                    type="ack", queue=queue, receipts=[message["receipt"]], within_s=SERVICE_S_MAX
                )
                if not verdict["results"][0]["ok"]:  # it was done, and the host died before it had said so; or was not
                    unsure.add(seq)
                progress.step(queue)


async def work(progress: Progress, http: httpx2.AsyncClient, jobs: str, results: str) -> None:
    """Takes jobs, and acks each in one step with the publish of its result."""
    for number in range(MESSAGES):
        await publish(http, jobs, f"{jobs}-{number}", {"body": number, "id": f"job-{number}"})
        while progress.counts[jobs] <= number:
            received = await http.post(f"/v1/queues/{jobs}/receive", json={"max": 1, "wait_ms": 1_000})
            for message in received.json().get("messages", []) if received.is_success else ():
                result = {"body": message["body"], "id": message["id"]}
                ack = {"receipts": [message["receipt"]], "publish": [{"queue": results, "messages": [result]}]}
                answer = await http.post(f"/v1/queues/{jobs}/ack", json=ack)
                if answer.is_success and answer.json()["results"][0]["ok"]:
                    progress.step(jobs)
            shown = await http.get(f"/v1/queues/{jobs}")
            if shown.is_success and shown.json()["stats"]["acked_total"] > number:
                progress.counts[jobs] = number + 1  # an answer was lost


async def bodies(http: httpx2.AsyncClient, queue: str) -> list[int]:
    found: list[int] = []
    while True:
        received = await call(http, "POST", f"{queue}/receive", {"max": 100, "wait_ms": 1_000})
        if not received["messages"]:
            return found
        found += [one["body"] for one in received["messages"]]


async def test_queues_of_one_lane_go_on_at_the_host_that_adopts_it(world: tuple[Backends, PushqServer]) -> None:
    cluster, server = world
    progress = Progress()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(patient(server))
        replicated = {"lease_mode": "replicated", "visibility_timeout_ms": VISIBILITY_MS}
        for lane in range(LANES):
            await call(http, "PUT", f"events{lane}", {"kind": "stream"})
        for lane in range(LANES):
            await call(
                http, "PUT", f"sorted{lane}", {"sequencing": "producer", "sort_window_ms": WINDOW_MS, **replicated}
            )
        for lane in range(LANES):
            await call(http, "PUT", f"results{lane}", {"dedupe": "id", "max_messages": MESSAGES})
            await call(http, "PUT", f"jobs{lane}", {"colocate_with": f"results{lane}", **replicated})
        for lane in range(LANES):
            await call(http, "PUT", f"bounded{lane}", {"max_messages": LIMIT})
            progress.begin(f"events{lane}", read_stream(progress, server, http, f"events{lane}"))
            progress.begin(f"sorted{lane}", sort(progress, server, http, f"sorted{lane}"))
            progress.begin(f"jobs{lane}", work(progress, http, f"jobs{lane}", f"results{lane}"))
            for number in range(LIMIT - 1):
                await publish(http, f"bounded{lane}", f"bounded{lane}-{number}", {"body": number})
        await progress.all_at(BEFORE)
        victim = await anyio.to_thread.run_sync(leader_of, cluster, KILLED)
        await anyio.to_thread.run_sync(victim.end, signal.SIGKILL)
        await anyio.to_thread.run_sync(
            until, lambda: any(leads(one, KILLED) for one in cluster.all if one.is_running), "the lane is adopted"
        )
        await progress.done()
        for lane in range(LANES):
            assert sorted(await bodies(http, f"results{lane}")) == list(range(MESSAGES))
            await publish(http, f"bounded{lane}", "last", {"body": LIMIT})
            refused = await http.post(f"/v1/queues/bounded{lane}/messages", json={"messages": [{"body": "more"}]})
            assert refused.json()["code"] == "queue-full", refused.text
