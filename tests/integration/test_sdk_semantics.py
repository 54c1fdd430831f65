"""What queues promise beyond carrying messages, through the Python client and the real server.

Each part names the settings of the server that it stands on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import anyio.to_thread
import pytest

from push.client import (
    Admin,
    ApiError,
    Full,
    LeaseLost,
    Limits,
    Message,
    Outgoing,
    Published,
    PublishManyFailed,
    Pushq,
    PushqError,
    connect,
)
from push.client.model import Encoding, TransportName
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

TRANSPORTS: list[TransportName] = ["ws", "sse", "poll"]
QUICK = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, close_timeout_s=2)
_numbers = count()


def opened(server: PushqServer, **options: Any) -> Pushq:
    return connect(server.url, server.key, **{"limits": QUICK} | options)


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


@pytest.fixture
async def pushq(shared_server: PushqServer) -> AsyncIterator[Pushq]:
    async with opened(shared_server) as pushq:
        yield pushq


async def made(admin: Admin, **config: Any) -> str:
    """A queue of this test's own."""
    name = f"sdk-{next(_numbers)}"
    await admin.create_queue(name, config)
    return name


async def take(pushq: Pushq, queue: str, number: int, *, seconds: float = 10, **options: Any) -> list[Message]:
    """The next messages of a queue, each acked; one ack need not wait for the one before."""
    messages: list[Message] = []
    async with (
        asyncio.timeout(seconds),
        pushq.subscribe(queue, **options) as subscription,
        asyncio.TaskGroup() as acks,
    ):
        while len(messages) < number:
            messages.append(await subscription.get())
            acks.create_task(messages[-1].ack())
    return messages


async def bodies(pushq: Pushq, queue: str, number: int, **options: Any) -> list[Any]:
    return [message.body for message in await take(pushq, queue, number, **options)]


# Times: delay_ms, deliver_at, ttl_ms


@pytest.mark.parametrize("how", ["delay", "timedelta", "deliver_at"])
async def test_a_delayed_message_comes_when_it_is_due(pushq: Pushq, admin: Admin, how: str) -> None:
    queue, began = await made(admin), time.monotonic()
    due = datetime.now(UTC) + timedelta(seconds=0.6)
    options: dict[str, Any] = {
        "delay": {"delay": 0.6},
        "timedelta": {"delay": timedelta(milliseconds=600)},
        "deliver_at": {"deliver_at": due},
    }[how]
    await pushq.publish(queue, "later", **options)
    await pushq.publish(queue, "now")
    assert await bodies(pushq, queue, 2) == ["now", "later"]
    assert time.monotonic() - began >= 0.55


async def test_a_message_says_when_it_expires_and_is_gone_afterwards(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin)
    await pushq.publish(queue, "short", ttl=0.3)
    await asyncio.sleep(1.5)
    await pushq.publish(queue, "long", ttl=timedelta(hours=1))
    [message] = await take(pushq, queue, 1)
    assert message.body == "long" and message.expires_at is not None
    left = message.expires_at - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(hours=1)


async def test_a_scheduled_message_may_be_taken_back(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin)
    await pushq.publish(queue, "never", id="mine", delay=3600)
    assert [item["id"] async for item in admin.each_message(queue, state="delayed")] == ["mine"]
    await admin.cancel_message(queue, "mine")
    assert (await admin.get_queue(queue))["stats"]["delayed"] == 0


# priorities


async def test_a_higher_priority_comes_first(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, priorities=3)
    for priority in (0, 2, 1):
        await pushq.publish(queue, priority, priority=priority)
    messages = await take(pushq, queue, 3, credit=1)
    assert [(message.body, message.priority) for message in messages] == [(2, 2), (1, 1), (0, 0)]
    with pytest.raises(ApiError, match="priority"):
        await pushq.publish(queue, "too high", priority=3)


# sequencing: producer


async def test_messages_of_one_producer_come_in_the_order_of_publishing_though_the_server_is_killed(
    server: PushqServer,
) -> None:
    async with Admin(server.url, server.key) as admin, opened(server) as pushq:
        queue = await made(admin, sequencing="producer", sort_window_ms=20_000)
        publishing = asyncio.create_task(pushq.publish_many(queue, list(range(10_000))))
        for _ in range(2):
            await asyncio.sleep(0.15)
            server.kill()
            await anyio.to_thread.run_sync(server.start)
        await asyncio.wait_for(publishing, 60)
        stats = (await admin.get_queue(queue))["stats"]
        assert (stats["ready"], stats["published_total"]) == (10_000, 10_000), "a repeat is known by its number"
        assert await bodies(pushq, queue, 10_000, credit=1000, seconds=60) == list(range(10_000))


async def test_a_refused_message_holds_up_nobody(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, sequencing="producer", sort_window_ms=20_000)
    with pytest.raises(PublishManyFailed):
        await pushq.publish_many(queue, ["a", Outgoing(body="b", key="k" * 300), "c"])
    await pushq.publish(queue, "d")
    assert await bodies(pushq, queue, 3, seconds=5) == ["a", "c", "d"], "nobody waits for the number of b"


async def test_a_program_goes_on_with_its_numbers(shared_server: PushqServer, admin: Admin) -> None:
    queue = await made(admin, sequencing="producer", sort_window_ms=20_000)
    async with opened(shared_server, producer="till-7") as first:
        await first.publish_many(queue, ["a", "b"])
        numbers = first.next_numbers
    async with opened(shared_server, producer="till-7", first_number=numbers) as second:
        await second.publish(queue, "c")
        assert await bodies(second, queue, 3, seconds=5) == ["a", "b", "c"]
    async with opened(shared_server, producer="till-7", first_number=2) as confused:
        assert (await confused.publish(queue, "b again")).duplicate


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_tells_its_producer_and_its_number_also_when_it_came_too_late(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    queue = await made(admin, sequencing="producer", sort_window_ms=0)
    async with opened(shared_server, producer="till-7", first_number=2, transport=transport) as pushq:
        await pushq.publish_many(queue, ["2", "3"])
        found = await take(pushq, queue, 2)
        assert [(m.body, m.producer, m.producer_seq) for m in found] == [("2", "till-7", 2), ("3", "till-7", 3)]
        async with opened(shared_server, producer="till-7") as slow:
            await slow.publish(queue, "1")
        (late,) = await take(pushq, f"{queue}.late", 1)
        assert (late.body, late.producer, late.producer_seq) == ("1", "till-7", 1)
        assert late.ordering is not None and late.ordering.late


async def test_in_strict_order_a_late_message_comes_next_but_not_while_its_key_is_out(
    shared_server: PushqServer, admin: Admin
) -> None:
    queue = await made(admin, sequencing="producer", ordering="strict", late_messages="head", sort_window_ms=0)
    async with opened(shared_server, producer="till-7", first_number=2) as pushq:
        for body in ("2", "3"):
            await pushq.publish(queue, body, key="a")
        async with asyncio.timeout(20), pushq.subscribe(queue, credit=1) as one:
            first = await one.get()
            async with opened(shared_server, producer="till-7") as slow:
                await slow.publish(queue, "1", key="a")
            await pushq.publish(queue, "4", key="b")
            async with pushq.subscribe(queue, credit=9) as other:
                assert (await other.get()).body == "4", "key a is with the first consumer"
                await first.ack()
                late = await other.get()
                assert (late.body, late.ordering is not None and late.ordering.late) == ("1", True)


# sequencing: clock


async def test_an_answer_sorts_behind_what_it_answers_though_its_clock_is_behind(
    shared_server: PushqServer, admin: Admin
) -> None:
    queue = await made(admin, sequencing="clock", sort_window_ms=500)
    heard = await made(admin, sequencing="clock", sort_window_ms=1)
    async with opened(shared_server) as here, opened(shared_server) as there:
        there._numbering._wall_ms = lambda: time.time_ns() // 1_000_000 - 300
        async with there.subscribe(heard) as hearing:
            await here.publish(heard, "question")
            await asyncio.wait_for(hearing.get(), 10)
        await asyncio.gather(there.publish(queue, "answer"), here.publish(queue, "question"))
        messages = await take(here, queue, 2)
    stamps = [message.ordering.timestamp for message in messages if message.ordering is not None]
    assert len(stamps) == 2 and stamps == sorted(stamps)
    assert messages[0].body == "answer", "its stamp is that of the question it heard, and the other came after"


# The answers' `sequencing` and `dedupe`


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_queue_says_how_it_is_sequenced_and_a_plain_one_is_numbered_no_more(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    plain, sorted_one = await made(admin), await made(admin, sequencing="producer")
    async with opened(shared_server, transport=transport, publish_ids="auto") as pushq:
        for n in range(3):
            for queue in (plain, sorted_one):
                await pushq.publish(queue, n)
        assert pushq.next_numbers == {plain: 2, sorted_one: 4}
        third = (await take(pushq, plain, 3))[2]
    assert third.ordering is None and third.id != "" and not third.id.startswith("p")


# dedupe: id, delivery: exactly_once


async def test_a_repeated_id_is_stored_once(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, dedupe="id")
    first = await pushq.publish(queue, 1, id="order-1")
    second = await pushq.publish(queue, 1, id="order-1")
    assert second == Published(first.id, first.seq, first.partition, duplicate=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_exactly_once_means_once_though_the_server_is_killed(
    server: PushqServer, transport: TransportName
) -> None:
    async with Admin(server.url, server.key) as admin, opened(server, transport=transport) as pushq:
        queue = await made(admin, delivery="exactly_once")
        publishing = asyncio.create_task(pushq.publish_many(queue, list(range(5_000))))
        for _ in range(2):
            await asyncio.sleep(0.15)
            server.kill()
            await anyio.to_thread.run_sync(server.start)
        await asyncio.wait_for(publishing, 60)
        assert (await admin.get_queue(queue))["stats"]["published_total"] == 5_000


# delivery: at_most_once


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_at_most_once_has_nothing_to_settle_and_loses_nothing_on_a_quiet_day(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    queue = await made(admin, delivery="at_most_once")
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(queue, range(500))
        messages = await take(pushq, queue, 500, credit=20)
        assert sorted(message.body for message in messages) == list(range(500))
        assert {message.receipt for message in messages} == {None}
        assert (await admin.get_queue(queue))["stats"]["ready"] == 0


# max_attempts, nack's delay and reason, dead letters


async def test_a_message_that_fails_too_often_tells_its_story_as_a_dead_letter(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, max_attempts=2)
    await pushq.publish(queue, {"n": 1}, key="k", headers={"h": "v"})
    async with asyncio.timeout(10), pushq.subscribe(queue) as messages:
        began = time.monotonic()
        await (await messages.get()).nack(delay=0.3, reason="no stock")
        again = await messages.get()
        assert again.attempt == 2 and time.monotonic() - began >= 0.28
        await again.nack(reason="still none")
        [dead] = await take(pushq, f"{queue}.dead", 1)
    told = dead.dead_letter
    assert (dead.body, dead.key, dict(dead.headers)) == ({"n": 1}, "k", {"h": "v"}) and told is not None
    assert (told.from_, told.reason, told.attempts) == (queue, "max_attempts", 2)
    assert [attempt["reason"] for attempt in told.history] == ["no stock", "still none"]
    assert told.at is not None and abs(told.at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_nack_without_a_delay_waits_for_the_queues_back_off(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, retry_backoff_ms=400)
    await pushq.publish(queue, "job")
    async with asyncio.timeout(10), pushq.subscribe(queue) as messages:
        began = time.monotonic()
        await (await messages.get()).nack()
        await (await messages.get()).ack()
        assert time.monotonic() - began >= 0.35


async def test_a_nack_with_a_delay_does_not_wait_for_the_queues_back_off(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, retry_backoff_ms=600_000)
    await pushq.publish(queue, "job")
    async with asyncio.timeout(PATIENCE_S), pushq.subscribe(queue) as messages:
        await (await messages.get()).nack(delay=0)
        await (await messages.get()).ack()


# max_messages, overflow: reject


async def test_a_full_queue_refuses_a_message_and_no_more_than_that(pushq: Pushq, admin: Admin) -> None:
    queue = await made(admin, max_messages=2)
    await pushq.publish_many(queue, [1, 2])
    with pytest.raises(Full) as caught:
        await pushq.publish(queue, 3)
    assert (caught.value.code, caught.value.status) == ("queue-full", 507)
    assert await bodies(pushq, queue, 2) == [1, 2]
    await pushq.publish(queue, 4)


# colocate_with: ack and publish in one step


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_ack_and_what_it_publishes_happen_together(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    orders = await made(admin)
    bills = await made(admin, colocate_with=orders, sequencing="producer")
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(orders, [1, 2, 3])
        async with asyncio.timeout(10), pushq.subscribe(orders, credit=3) as messages:
            first, *others = [await messages.get() for _ in range(3)]
            await first.ack(publish=[(bills, "one", {"key": "k"}), (bills, "two")])
            await pushq.ack(others, publish=[(bills, "three")])
        await pushq.publish(bills, "four")
        taken = await take(pushq, bills, 4)
        assert [(message.body, message.key) for message in taken] == [
            ("one", "k"), ("two", None), ("three", None), ("four", None),
        ]  # fmt: skip
        assert (await admin.get_queue(orders))["stats"]["acked_total"] == 3


async def test_a_lost_lease_publishes_nothing(pushq: Pushq, admin: Admin) -> None:
    orders = await made(admin)
    bills = await made(admin, colocate_with=orders)
    await pushq.publish(orders, 1)
    options: dict[str, Any] = {"visibility_timeout_ms": 300, "extend_leases": False, "credit": 2}
    async with asyncio.timeout(10), pushq.subscribe(orders, **options) as messages:
        first, second = await messages.get(), await messages.get()
        with pytest.raises(LeaseLost):
            await first.ack(publish=[(bills, "twice")])
        await second.ack(publish=[(bills, "once")])
    assert [item["body"] async for item in admin.each_message(bills)] == ["once"]


async def test_queues_that_share_no_step_are_refused_and_the_message_stays_in_hand(pushq: Pushq, admin: Admin) -> None:
    orders, far_away = await made(admin), await made(admin)
    await pushq.publish(orders, 1)
    async with asyncio.timeout(10), pushq.subscribe(orders) as messages:
        message = await messages.get()
        with pytest.raises(PushqError, match="colocate_with"):
            await message.ack(publish=[(far_away, 1)])
        await message.ack()


@pytest.mark.parametrize(
    ("transport", "encoding"), [("ws", "json"), ("ws", "msgpack"), ("sse", "json"), ("poll", "json")]
)
async def test_one_publish_stores_the_same_by_every_way(
    shared_server: PushqServer, admin: Admin, transport: TransportName, encoding: Encoding
) -> None:
    """What JSON has no form for is refused before it is sent, a usual text is the same one, and bytes stay bytes."""
    queue = await made(admin)
    async with opened(shared_server, transport=transport, encoding=encoding) as pushq:
        for body in (math.nan, {"a": [math.inf]}, {"a": b"x"}, "\ud800"):
            with pytest.raises(ApiError, match="the body cannot be sent") as refused:
                await pushq.publish(queue, body)
            assert refused.value.code == "invalid-request"
        moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
        sent = [moment, {"at": [moment]}, (1, UUID(int=5)), {1: None}, bytearray(b"x"), b"\xff", 1.5, 2**63]
        for body in sent:
            await pushq.publish(queue, body)
        text = "2026-01-02T03:00:00Z"
        expected = [text, {"at": [text]}, [1, str(UUID(int=5))], {"1": None}, b"x", b"\xff", 1.5, 2**63]
        assert await bodies(pushq, queue, len(sent)) == expected
