"""Consumer groups of a stream and dead letters' way back, through the Python client and the real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from push.client import Admin, Limits, Message, Pushq, connect
from push.client.model import TransportName
from tests.support.server import SOON_BACK, PushqServer

pytestmark = pytest.mark.anyio

SERVER_ENV = SOON_BACK
TRANSPORTS: list[TransportName] = ["ws", "sse", "poll"]
QUICK = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, close_timeout_s=2)
_numbers = count()


def opened(server: PushqServer, **options: Any) -> Pushq:
    return connect(server.url, server.key, **{"limits": QUICK} | options)


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


async def made(admin: Admin, **config: Any) -> str:
    name = f"groups-{next(_numbers)}"
    await admin.create_queue(name, config)
    return name


async def take(pushq: Pushq, queue: str, number: int, *, acks: bool = True, **options: Any) -> list[Message]:
    messages: list[Message] = []
    async with asyncio.timeout(20), pushq.subscribe(queue, **options) as subscription:
        while len(messages) < number:
            messages.append(await subscription.get())
            if acks:
                await messages[-1].ack()
    return messages


# Groups


@pytest.mark.parametrize("mode", ["offsets", "leases"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_each_group_gets_everything_and_goes_on_where_it_stopped(
    shared_server: PushqServer, admin: Admin, transport: TransportName, mode: Any
) -> None:
    stream = await made(admin, kind="stream")
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(stream, range(60))
        for group in ("bills", "mails"):
            await admin.put_group(stream, group, position="earliest", mode=mode)
            first = await take(pushq, stream, 25, group=group, credit=10)
            rest = await take(pushq, stream, 35, group=group, credit=10)
            assert sorted(message.body for message in first + rest) == list(range(60))
            assert all(message.receipt for message in first)
        assert await admin.group_lag(stream, "bills") == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_with_offsets_an_ack_commits_all_that_came_before(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    stream = await made(admin, kind="stream")
    await admin.put_group(stream, "g", position="earliest", mode="offsets")
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(stream, range(100))
        seen: list[int] = []
        async with asyncio.timeout(20), pushq.subscribe(stream, group="g", credit=10) as messages:
            while len(seen) < 100:
                message = await messages.get()
                seen.append(message.body)
                if len(seen) % 10 == 0:
                    await message.ack()
        assert seen == list(range(100)) and await admin.group_lag(stream, "g") == 0


async def test_a_group_may_be_moved_back_and_reads_again(shared_server: PushqServer, admin: Admin) -> None:
    stream = await made(admin, kind="stream")
    async with opened(shared_server) as pushq:
        await pushq.publish_many(stream, range(10))
        await admin.put_group(stream, "g", position="earliest")
        assert [m.body for m in await take(pushq, stream, 10, group="g")] == list(range(10))
        moved = await admin.put_group(stream, "g", position={"time": datetime.now(UTC) - timedelta(hours=1)})
        assert moved["name"] == "g"
        assert [m.body for m in await take(pushq, stream, 10, group="g")] == list(range(10))
        assert [group["name"] for group in await admin.list_groups(stream)] == ["g"]


async def test_an_unknown_group_begins_where_the_subscription_says(shared_server: PushqServer, admin: Admin) -> None:
    stream = await made(admin, kind="stream")
    async with opened(shared_server) as pushq:
        await pushq.publish_many(stream, range(5))
        assert [m.body for m in await take(pushq, stream, 5, group="new", from_="earliest")] == list(range(5))


async def test_what_a_group_did_not_ack_comes_again(shared_server: PushqServer, admin: Admin) -> None:
    stream = await made(admin, kind="stream")
    await admin.put_group(stream, "g", position="earliest")
    async with opened(shared_server) as pushq:
        await pushq.publish_many(stream, range(5))
        await take(pushq, stream, 5, group="g", acks=False)
        assert [m.body for m in await take(pushq, stream, 5, group="g")] == list(range(5))


# Dead letters and their way back


async def died(pushq: Pushq, queue: str, number: int) -> None:
    """Messages whose one attempt failed."""
    await pushq.publish_many(queue, range(number))
    async with asyncio.timeout(20), pushq.subscribe(queue) as messages:
        for _ in range(number):
            await (await messages.get()).nack(reason="no stock")


async def test_dead_letters_are_counted_moved_and_watched(shared_server: PushqServer, admin: Admin) -> None:
    queue = await made(admin, max_attempts=1)
    async with opened(shared_server) as pushq:
        await died(pushq, queue, 20)
        assert await admin.count_redrive(queue, reason="max_attempts") == 20
        assert await admin.count_redrive(queue, reason="expired") == 0
        assert await admin.count_redrive(queue, older_than=datetime.now(UTC) - timedelta(hours=1)) == 0
        job = await admin.start_redrive(queue)
        states = [each async for each in admin.watch_redrive(queue, job["id"], every_s=0.02)]
        assert (states[-1]["state"], states[-1]["done"]) == ("done", 20)
        again = await take(pushq, queue, 20)
    assert sorted(message.body for message in again) == list(range(20))
    assert {message.attempt for message in again} == {1}


async def test_some_dead_letters_go_elsewhere_and_the_others_stay(shared_server: PushqServer, admin: Admin) -> None:
    queue, elsewhere = await made(admin, max_attempts=1), await made(admin)
    async with opened(shared_server) as pushq:
        await died(pushq, queue, 3)
        ids = [item["id"] async for item in admin.each_message(f"{queue}.dead", limit=2)]
        assert len(ids) == 3, "page after page"
        await admin.start_redrive(queue, to=elsewhere, ids=ids[:1])
        [moved] = await take(pushq, elsewhere, 1)
    assert moved.id == ids[0] and (await admin.get_queue(queue))["stats"]["dead"] == 2


async def test_a_slow_redrive_may_be_cancelled(shared_server: PushqServer, admin: Admin) -> None:
    queue = await made(admin, max_attempts=1)
    async with opened(shared_server) as pushq:
        await died(pushq, queue, 20)
        job = await admin.start_redrive(queue, rate_per_s=1)
        await admin.cancel_redrive(queue, job["id"])
        assert (await admin.get_redrive(queue, job["id"]))["state"] == "cancelled"
        assert (await admin.get_queue(queue))["stats"]["dead"] >= 15


# Looking without touching


async def test_messages_are_found_by_what_they_carry(shared_server: PushqServer, admin: Admin) -> None:
    queue = await made(admin)
    async with opened(shared_server) as pushq:
        await pushq.publish(queue, {"sku": "blue-7"}, key="a", headers={"shop": "north"})
        await pushq.publish(queue, {"sku": "red-9"}, key="b", headers={"shop": "south"})
        await pushq.publish(queue, {"sku": "later"}, delay=3600)
    wanted: list[dict[str, Any]] = [
        {"key": "a"},
        {"headers": {"shop": "north"}},
        {"contains": "blue-7"},
        {"contains": "blue", "since": datetime.now(UTC) - timedelta(minutes=1)},
    ]
    for filters in wanted:
        found = [item["body"]["sku"] async for item in admin.each_message(queue, **filters)]
        assert found == ["blue-7"], filters
    assert [item["body"]["sku"] async for item in admin.each_message(queue, state="delayed")] == ["later"]
    page = await admin.peek(queue, until=datetime.now(UTC) - timedelta(hours=1))
    assert page["items"] == [] and page["scanned"] >= 0
