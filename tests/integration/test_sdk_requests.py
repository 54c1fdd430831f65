"""Request and reply through the Python client and the real server: `reply_to`, `correlation_id`, a time-out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio.to_thread
import pytest

from push.client import Admin, LeaseLost, Limits, NoReplyQueue, Pushq, RequestTimeout, connect
from push.client.model import TransportName
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

TRANSPORTS: list[TransportName] = ["ws", "sse", "poll"]
QUICK = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, close_timeout_s=2)
_numbers = count()


def opened(server: PushqServer, key: str | None = None, **options: Any) -> Pushq:
    return connect(server.url, key or server.key, **{"limits": QUICK} | options)


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


@asynccontextmanager
async def service(server: PushqServer, admin: Admin, *, takes_s: float = 0.0, **config: Any) -> AsyncIterator[str]:
    """A queue whose worker answers each request with its double."""
    queue = f"asked-{next(_numbers)}"
    await admin.create_queue(queue, config)

    async def work() -> None:
        async with opened(server) as pushq:
            async for request in pushq.subscribe(queue, group="doublers" if config.get("kind") == "stream" else None):
                await asyncio.sleep(takes_s)
                await request.reply(request.body * 2, headers={"asked": queue})
                try:
                    await request.ack()
                except LeaseLost:
                    pass  # the server forgot it over a restart: the request comes again, and its second reply is late

    worker = asyncio.create_task(work())
    try:
        yield queue
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_request_is_answered(shared_server: PushqServer, admin: Admin, transport: TransportName) -> None:
    async with service(shared_server, admin) as queue, opened(shared_server, transport=transport) as pushq:
        reply = await pushq.request(queue, 21, timeout=10)
        assert (reply.body, dict(reply.headers)) == (42, {"asked": queue})
        more = await asyncio.gather(*(pushq.request(queue, n, timeout=20) for n in range(200)))
        assert [reply.body for reply in more] == [2 * n for n in range(200)]
        assert pushq.late_replies == 0


async def test_the_queue_for_the_replies_is_made_once_and_keeps_nothing(
    shared_server: PushqServer, admin: Admin
) -> None:
    async with service(shared_server, admin) as queue, opened(shared_server, producer="asker-1") as pushq:
        for n in range(3):
            await pushq.request(queue, n, timeout=10)
        made = await admin.get_queue("reply.asker-1")
        assert (made["config"]["delivery"], made["stats"]["ready"]) == ("at_most_once", 0)
    async with service(shared_server, admin) as queue, opened(shared_server, producer="asker-1") as again:
        assert (await again.request(queue, 4, timeout=10)).body == 8


async def test_a_request_that_nobody_answers_times_out_and_is_gone_afterwards(
    shared_server: PushqServer, admin: Admin
) -> None:
    await admin.create_queue("unheard")
    async with opened(shared_server) as pushq:
        with pytest.raises(RequestTimeout):
            await pushq.request("unheard", 1, timeout=0.3)
    await asyncio.sleep(1.5)
    assert (await admin.get_queue("unheard"))["stats"]["ready"] == 0


async def test_a_reply_that_comes_too_late_is_counted(shared_server: PushqServer, admin: Admin) -> None:
    async with service(shared_server, admin, takes_s=0.6) as queue, opened(shared_server) as pushq:
        with pytest.raises(RequestTimeout):
            await pushq.request(queue, 1, timeout=0.3, ttl=60)
        async with asyncio.timeout(10):
            while not pushq.late_replies:  # noqa: ASYNC110 - what is waited for is the worker's
                await asyncio.sleep(0.02)


async def test_a_key_without_manage_needs_a_reply_queue_and_is_told_so(
    shared_server: PushqServer, admin: Admin
) -> None:
    async with service(shared_server, admin) as queue:
        await admin.create_queue("answers", {"delivery": "at_most_once"})
        made = await admin.create_key("asker", [f"publish:{queue}", "consume:answers"])
        async with opened(shared_server, made["key"]) as pushq:
            with pytest.raises(NoReplyQueue, match="manage:reply"):
                await pushq.request(queue, 1, timeout=10)
            assert (await pushq.request(queue, 1, timeout=10, reply_queue="answers")).body == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_several_clients_share_a_stream_for_their_replies(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    shared = f"replies-{transport}"
    await admin.create_queue(shared, {"kind": "stream", "retention_ms": 60_000})
    options: dict[str, Any] = {"reply_queue": shared, "transport": transport}
    async with (
        service(shared_server, admin) as queue,
        opened(shared_server, **options) as one,
        opened(shared_server, **options) as two,
    ):
        asked = [pushq.request(queue, n, timeout=20) for n in range(20) for pushq in (one, two)]
        replies = await asyncio.gather(*asked)
        assert [reply.body for reply in replies] == [2 * n for n in range(20) for _ in range(2)]
        assert one.late_replies == two.late_replies == 0


async def test_a_request_may_go_to_a_stream(shared_server: PushqServer, admin: Admin) -> None:
    """Needs consumer groups."""
    async with service(shared_server, admin, kind="stream") as queue, opened(shared_server) as pushq:
        async with asyncio.timeout(PATIENCE_S):
            while not await admin.list_groups(queue):  # noqa: ASYNC110 - a group begins at the end of its stream
                await asyncio.sleep(0.02)
        assert (await pushq.request(queue, 3, timeout=10)).body == 6


async def test_requests_go_on_after_the_server_was_restarted(server: PushqServer) -> None:
    async with Admin(server.url, server.key) as admin, service(server, admin) as queue, opened(server) as pushq:
        assert (await pushq.request(queue, 1, timeout=10)).body == 2
        await anyio.to_thread.run_sync(server.restart)
        assert (await pushq.request(queue, 2, timeout=20)).body == 4
