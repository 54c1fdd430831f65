"""Handlers side by side through the Python client and the real server: what becomes of messages, and of a worker that
is asked to end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio.to_thread
import pytest

from push.client import Admin, HandlerFailed, Limits, Message, Outgoing, Runner, SessionEvent, connect
from push.client.model import TransportName
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

TRANSPORTS: list[TransportName] = ["ws", "sse", "poll"]
QUICK = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, retry_base_s=0.02, retry_cap_s=0.1)
MESSAGES = 20
AT_WORK = 2
_numbers = count()

WORKER = f"""
import asyncio, sys
from push.client import connect

url, key, queue, transport, drain_s = sys.argv[1:]

async def main():
    go_on = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, go_on.set)

    async def handle(message):
        print("begun", message.body, flush=True)
        await go_on.wait()

    async with connect(url, key, transport=transport) as pushq:
        await pushq.run(queue, handle, concurrency={AT_WORK}, prefetch=8, drain_s=float(drain_s))
    print("drained", flush=True)

asyncio.run(main())
"""
"""A worker whose handlers end when a line comes in."""


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


async def made(admin: Admin, **config: Any) -> str:
    """A queue of this test's own."""
    name = f"runner-{next(_numbers)}"
    await admin.create_queue(name, config)
    return name


async def worker(server: PushqServer, queue: str, transport: str = "ws", drain_s: float = 600) -> Any:
    """A worker with its handlers at work, and what it holds beside."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, server.url, server.key, queue, transport, str(drain_s)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        begun = [await process.stdout.readline() for _ in range(AT_WORK)]
    assert sorted(begun) == [b"begun 0\n", b"begun 1\n"]
    return process


async def ended(process: Any) -> bytes:
    """What it said since, once it ended well."""
    async with asyncio.timeout(PATIENCE_S):
        said: bytes = (await process.communicate())[0]
    assert process.returncode == 0
    return said


async def rest_of(server: PushqServer, queue: str, number: int) -> list[tuple[int, int]]:
    """The next messages, each with its attempt."""
    async with (
        asyncio.timeout(PATIENCE_S),
        connect(server.url, server.key) as pushq,
        pushq.subscribe(queue, credit=MESSAGES) as messages,
    ):
        came = [await messages.get() for _ in range(number)]
        await pushq.ack(came)
    return sorted((message.body, message.attempt) for message in came)


async def is_settled(admin: Admin, queue: str) -> None:
    """Wait until nobody has anything of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stats = (await admin.get_queue(queue))["stats"]
            if stats["ready"] == stats["in_flight"] == stats["delayed"] == 0:
                return
            await asyncio.sleep(0.02)


# What becomes of messages


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_returns_is_acked_and_what_raises_comes_again_until_it_is_dead(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    queue, tries, most, now = await made(admin, max_attempts=3), defaultdict[int, int](int), 0, 0

    async def handle(message: Message) -> None:
        nonlocal now, most
        now, tries[message.body] = now + 1, tries[message.body] + 1
        most = max(most, now)
        try:
            await asyncio.sleep(0.01)
            if message.body == 3 or (message.body == 5 and message.attempt == 1):
                raise ValueError(f"no {message.body}")
        finally:
            now -= 1

    events: list[SessionEvent] = []
    async with (
        connect(
            shared_server.url, shared_server.key, transport=transport, limits=QUICK, on_event=events.append
        ) as pushq,
        pushq.runner(queue, handle, concurrency=4) as runner,
        pushq.subscribe(f"{queue}.dead") as dead,
    ):
        await pushq.publish_many(queue, range(MESSAGES))
        async with asyncio.timeout(PATIENCE_S):
            letter = await dead.get()
            await letter.ack()
        await is_settled(admin, queue)
    assert {body: times for body, times in tries.items() if times > 1} == {3: 3, 5: 2}
    assert (letter.body, sorted(tries)) == (3, list(range(MESSAGES))) and 1 < most <= 4
    assert letter.dead_letter is not None
    assert [entry["reason"] for entry in letter.dead_letter.history] == ["ValueError: no 3"] * 3
    assert (runner.done, runner.failed) == (MESSAGES - 1, 4)
    assert len([event for event in events if isinstance(event, HandlerFailed)]) == 4


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_keys_of_a_strict_queue_keep_their_order_though_handlers_fail(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    queue = await made(admin, ordering="strict", retry_backoff_ms=20)
    done, now, together = defaultdict[str, list[int]](list), set[str](), list[int]()

    async def handle(message: Message) -> None:
        key = message.key or ""
        if key in now:
            together.append(message.body)
        now.add(key)
        try:
            await asyncio.sleep(0.002)
            if message.body % 4 == 1 and message.attempt == 1:
                raise ValueError("not yet")
            done[key].append(message.body)
        finally:
            now.discard(key)

    async with connect(shared_server.url, shared_server.key, transport=transport, limits=QUICK) as pushq:
        orders = [Outgoing(body=n, key=f"key-{n % 3}") for n in range(30)]
        await pushq.publish_many(queue, orders)
        async with pushq.runner(queue, handle, concurrency=6, prefetch=6) as runner:
            await is_settled(admin, queue)
            subscription = runner._subscription
            assert subscription is not None
            assert (subscription.state.ordering, subscription.state.retry_backoff_ms) == ("strict", 20)
    assert done == {f"key-{n}": list(range(n, 30, 3)) for n in range(3)} and not together


@pytest.mark.parametrize("mode", ["offsets", "leases"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_group_is_worked_off_once_though_handlers_fail_and_the_runner_is_another(
    shared_server: PushqServer, admin: Admin, transport: TransportName, mode: Any
) -> None:
    stream, done = await made(admin, kind="stream"), list[int]()
    await admin.put_group(stream, "g", position="earliest", mode=mode)
    runner: Runner

    async def handle(message: Message) -> None:
        if message.body % 5 == 1 and message.attempt == 1:
            raise ValueError("not yet")
        done.append(message.body)
        if len(done) == MESSAGES // 2:
            runner.stop()

    async with connect(shared_server.url, shared_server.key, transport=transport, limits=QUICK) as pushq:
        await pushq.publish_many(stream, range(MESSAGES))
        async with asyncio.timeout(PATIENCE_S):
            runner = pushq.runner(stream, handle, group="g", concurrency=3, prefetch=3)
            await runner.run()
            assert len(done) < MESSAGES
            async with pushq.runner(stream, handle, group="g", concurrency=3, prefetch=3):
                while await admin.group_lag(stream, "g"):  # noqa: ASYNC110 - what is waited for is the server's
                    await asyncio.sleep(0.02)
    assert sorted(done) == list(range(MESSAGES))
    assert mode == "leases" or done == sorted(done)


async def test_handlers_go_on_when_the_server_was_killed(server: PushqServer) -> None:
    handled: set[int] = set()
    is_half = asyncio.Event()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.005)
        handled.add(message.body)
        if len(handled) == 50:
            is_half.set()

    async with Admin(server.url, server.key) as admin, connect(server.url, server.key, limits=QUICK) as pushq:
        await admin.create_queue("jobs")
        await pushq.publish_many("jobs", range(100))
        async with asyncio.timeout(PATIENCE_S), pushq.runner("jobs", handle, concurrency=4, prefetch=4):
            await is_half.wait()
            await anyio.to_thread.run_sync(server.kill)
            await anyio.to_thread.run_sync(server.start)
            await is_settled(admin, "jobs")
    assert handled == set(range(100))


# A worker that is asked to end


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_at_sigterm_what_is_at_work_is_done_and_what_waits_goes_back_untried(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    """With one attempt each, whatever was tried and not done would be dead."""
    queue = await made(admin, max_attempts=1)
    async with connect(shared_server.url, shared_server.key) as pushq:
        await pushq.publish_many(queue, range(MESSAGES))
    process = await worker(shared_server, queue, transport)
    process.send_signal(signal.SIGTERM)
    process.stdin.write(b"go on\n")
    assert await ended(process) == b"drained\n"
    # Over SSE nobody knows what was on its way when the stream ended: the first of that counts as begun.
    most = 1 if transport == "sse" else 0
    came = await rest_of(shared_server, queue, MESSAGES - AT_WORK - most)
    assert {attempt for _, attempt in came} == {1}
    assert {body for body, _ in came} <= set(range(AT_WORK, MESSAGES))
    stats = (await admin.get_queue(queue))["stats"]
    assert stats["dead"] <= most and stats["acked_total"] >= MESSAGES - most


async def test_what_waits_goes_to_others_while_the_worker_drains(shared_server: PushqServer, admin: Admin) -> None:
    queue = await made(admin, max_attempts=1)
    async with connect(shared_server.url, shared_server.key) as pushq:
        await pushq.publish_many(queue, range(AT_WORK + 8))
        process = await worker(shared_server, queue)
        async with asyncio.timeout(PATIENCE_S), pushq.subscribe(queue, credit=MESSAGES) as messages:
            process.send_signal(signal.SIGTERM)
            first = await messages.get()
            assert process.returncode is None
            await first.ack()
            process.stdin.write(b"go on\n")
            assert await ended(process) == b"drained\n"
            others = [await messages.get() for _ in range(7)]
            await pushq.ack(others)
    assert {first.body, *(message.body for message in others)} == set(range(AT_WORK, AT_WORK + 8))


@pytest.mark.parametrize("how", ["second signal", "no time"])
async def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again_at_once(
    shared_server: PushqServer, admin: Admin, how: str
) -> None:
    queue = await made(admin)
    async with connect(shared_server.url, shared_server.key) as pushq:
        await pushq.publish_many(queue, range(MESSAGES))
    process = await worker(shared_server, queue, drain_s=600 if how == "second signal" else 0.05)
    process.send_signal(signal.SIGTERM)
    if how == "second signal":
        process.send_signal(signal.SIGINT)
    assert await ended(process) == b"drained\n"
    came = await rest_of(shared_server, queue, MESSAGES)
    assert came == [(body, 2 if body < AT_WORK else 1) for body in range(MESSAGES)]
