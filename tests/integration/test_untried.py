"""What was delivered and nobody began with is no attempt: not when its consumer leaves, and not when it crashes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from push.client import Admin, Pushq, Subscription, connect
from push.client.model import TransportName
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer
from tests.support.ws import Client

pytestmark = pytest.mark.anyio

TRANSPORTS: list[TransportName] = ["ws", "sse", "poll"]
MESSAGES = 20
POISON = 5

LOOP = f"""
import asyncio, os, sys
from push.client import connect

async def main():
    async with connect(sys.argv[1], sys.argv[2]) as pushq:
        async for message in pushq.subscribe(sys.argv[3], credit=10):
            if message.body == {POISON}:
                os._exit(9)
            await message.ack()

asyncio.run(main())
"""
"""The README's loop, in a worker that dies on one message."""

SIDE_BY_SIDE = """
import asyncio, os, sys
from push.client import connect

async def work(message):
    await asyncio.sleep(3600)

async def main():
    async with connect(sys.argv[1], sys.argv[2]) as pushq:
        async with pushq.subscribe(sys.argv[3], credit=10) as messages:
            held = [await messages.get() for _ in range(3)]
            tasks = [asyncio.create_task(work(message)) for message in held]
            await held[0].extend(60_000)  # its answer says that the server has heard what was said before
            print("at work", flush=True)
            await asyncio.gather(*tasks)

asyncio.run(main())
"""
"""A worker that has three messages in work, until somebody kills it."""


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    """One that does not wait long for a session that was cut."""
    with PushqServer(tmp_path_factory.mktemp("untried") / "data", env={"PUSHQ_RESUME_MS": "500"}) as server:
        yield server


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


@pytest.fixture
async def pushq(shared_server: PushqServer) -> AsyncIterator[Pushq]:
    async with connect(shared_server.url, shared_server.key) as pushq:
        yield pushq


@pytest.fixture
async def queue(admin: Admin, request: pytest.FixtureRequest) -> str:
    """A queue of this test's own, whose messages have one attempt each."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")[:100]
    await admin.create_queue(name, {"max_attempts": 1})
    return name


async def worker(server: PushqServer, code: str, queue: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, server.url, server.key, queue, stdout=asyncio.subprocess.PIPE
    )


async def bodies(messages: Subscription, count: int) -> list[int]:
    async with asyncio.timeout(PATIENCE_S):
        return sorted([(await messages.get()).body for _ in range(count)])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_loop_that_is_left_takes_no_attempt_from_what_it_was_not_given(
    shared_server: PushqServer, pushq: Pushq, queue: str, transport: TransportName
) -> None:
    await pushq.publish_many(queue, range(MESSAGES))
    async with connect(shared_server.url, shared_server.key, transport=transport) as leaving:
        async for message in leaving.subscribe(queue, credit=10):
            await message.ack()
            break
    # Over SSE nobody knows what was on its way when the stream ended: the first of that counts as begun.
    most = 1 if transport == "sse" else 0
    async with pushq.subscribe(queue, credit=MESSAGES) as rest:
        came = await bodies(rest, MESSAGES - 1 - most)
    assert set(came) <= set(range(1, MESSAGES))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_that_is_released_was_no_attempt(
    shared_server: PushqServer, queue: str, transport: TransportName
) -> None:
    async with connect(shared_server.url, shared_server.key, transport=transport) as pushq:
        await pushq.publish(queue, "job")
        async with pushq.subscribe(queue) as messages, asyncio.timeout(PATIENCE_S):
            first = await messages.get()
            await first.release()
            again = await messages.get()
            await again.ack()
    assert (first.id, first.attempt) == (again.id, again.attempt)


async def test_a_message_that_kills_its_worker_takes_none_of_its_neighbours_along(
    shared_server: PushqServer, pushq: Pushq, queue: str
) -> None:
    await pushq.publish_many(queue, range(MESSAGES))
    assert await (await worker(shared_server, LOOP, queue)).wait() == 9
    async with pushq.subscribe(f"{queue}.dead") as dead, pushq.subscribe(queue, credit=MESSAGES) as rest:
        assert await bodies(dead, 1) == [POISON]
        assert await bodies(rest, MESSAGES - POISON - 1) == list(range(POISON + 1, MESSAGES))


async def test_of_a_worker_that_was_killed_what_it_had_in_work_counts(
    shared_server: PushqServer, pushq: Pushq, queue: str
) -> None:
    await pushq.publish_many(queue, range(MESSAGES))
    process = await worker(shared_server, SIDE_BY_SIDE, queue)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"at work\n"
    process.kill()
    await process.wait()
    async with pushq.subscribe(f"{queue}.dead") as dead, pushq.subscribe(queue, credit=MESSAGES) as rest:
        assert await bodies(dead, 3) == [0, 1, 2]
        assert await bodies(rest, MESSAGES - 3) == list(range(3, MESSAGES))


async def test_what_a_consumer_does_not_read_goes_to_one_that_does(tmp_path: Path) -> None:
    server = PushqServer(tmp_path / "data", env={"PUSHQ_LIMITS__UNREAD_S": "1"})
    with server, httpx2.Client(base_url=server.url, headers=server.headers) as http:
        http.put("/v1/queues/jobs", json={"max_attempts": 1}).raise_for_status()
        async with Client(server) as idle, connect(server.url, server.key) as pushq:
            await idle.ask(type="subscribe", queue="jobs", credit=10)
            await pushq.publish_many("jobs", range(10))
            async with pushq.subscribe("jobs", credit=10) as messages:
                # It neither reads nor answers a ping, and keeps what it may be at work on.
                assert await bodies(messages, 9) == list(range(1, 10))
                await idle.send(type="pong")
                await pushq.publish_many("jobs", range(10, 30))
                async with asyncio.timeout(PATIENCE_S):
                    while max(message["body"] for message in (await idle.next("deliver"))["messages"]) < 10:
                        pass
            metrics = http.get("/metrics").text
    assert "pushq_consumers_withheld_total 1.0" in metrics
