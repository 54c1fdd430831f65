from __future__ import annotations

import asyncio
from typing import Any

import pytest

from push.client import (
    ApiError,
    LeaseLost,
    Lost,
    NotFound,
    Problem,
    SessionEvent,
    Unauthenticated,
)
from push.client.frames import Ack, Error, LostFrame, Nack, Publish, Subscribe, Unsubscribe
from tests.support.patience import PATIENCE_S
from tests.unit.push.client.played import PlayedServer, eventually, session

pytestmark = pytest.mark.anyio


async def test_messages_are_iterated_and_acked() -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, _: connection.deliver("a", "b")
    got = []
    async with session(server) as pushq:
        async for message in pushq.subscribe("q", credit=5):
            got.append((message.id, message.body, message.receipt))
            await message.ack()
            if len(got) == 2:
                break
        await eventually(lambda: any(isinstance(frame, Unsubscribe) for frame in server.frames))
    assert got == [("a", "a", "r-a"), ("b", "b", "r-b")]
    assert server.acked == ["r-a", "r-b"]
    assert server.connection.is_closed


async def test_acks_of_many_tasks_travel_in_one_frame() -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, _: connection.deliver("a", "b", "c")
    async with session(server) as pushq, pushq.subscribe("q") as messages:
        held = [await messages.get() for _ in range(3)]
        await asyncio.gather(*(message.ack() for message in held))
    assert [list(frame.receipts) for frame in server.frames if isinstance(frame, Ack)] == [["r-a", "r-b", "r-c"]]


@pytest.mark.parametrize(
    "wrong", [{"ack": "maybe"}, {"credit": 0}, {"credit": 10_001}, {"credit": 1.5}, {"credit": True}]
)
async def test_what_the_server_refuses_over_a_websocket_is_refused_here_over_every_transport(
    wrong: dict[str, Any],
) -> None:
    server = PlayedServer()
    ((name, value),) = wrong.items()
    async with session(server) as pushq:
        with pytest.raises(ApiError, match=f"/{name}: {name} must be .*, not {value!r}$") as caught:
            pushq.subscribe("q", **wrong)
    assert caught.value.code == "invalid-request"
    assert not any(isinstance(frame, Subscribe) for frame in server.frames)


async def test_a_lost_lease_is_raised_by_ack_and_told() -> None:
    server, events = PlayedServer(), list[SessionEvent]()
    server.on_subscribe = lambda connection, _: connection.deliver("a")
    server.stale = {"r-a"}
    async with session(server, on_event=events.append) as pushq, pushq.subscribe("q") as messages:
        message = await messages.get()
        assert not message.lost
        with pytest.raises(LeaseLost):
            await message.ack()
        assert message.lost
    assert Lost("q", ("a",)) in events


async def test_a_handler_can_wait_for_the_loss_of_its_lease() -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, _: connection.deliver("a")
    async with session(server) as pushq, pushq.subscribe("q") as messages:
        message = await messages.get()
        waiting = asyncio.create_task(message.until_lost())
        await asyncio.sleep(0)
        server.connection.say(LostFrame(sub=1, receipts=["r-a"]))
        await waiting
        await message.until_lost()
        assert message.lost


async def test_an_ack_after_a_lost_frame_still_asks_the_server() -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, _: connection.deliver("a")
    async with session(server) as pushq, pushq.subscribe("q") as messages:
        message = await messages.get()
        server.connection.say(LostFrame(sub=1, receipts=["r-a"]))
        await message.until_lost()
        await message.ack()
    assert server.acked == ["r-a"]


async def test_nack_carries_delay_and_reason() -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, _: connection.deliver("a")
    async with session(server) as pushq, pushq.subscribe("q") as messages:
        await (await messages.get()).nack(delay_ms=5, reason="busy")
    frame = next(frame for frame in server.frames if isinstance(frame, Nack))
    assert (frame.delay_ms, frame.reason) == (5, "busy")


async def test_a_missing_queue_raises_from_the_loop() -> None:
    async with session(PlayedServer()) as pushq:
        with pytest.raises(NotFound):
            await anext(aiter(pushq.subscribe("missing")))
        with pytest.raises(NotFound):
            async with pushq.subscribe("missing"):
                pytest.fail("must not open")


async def test_a_subscription_goes_on_after_a_cut() -> None:
    server = PlayedServer()
    seen = iter("abc")
    server.on_subscribe = lambda connection, _: connection.deliver(next(seen))
    got = []
    async with session(server) as pushq:
        async for message in pushq.subscribe("q"):
            await message.ack()
            got.append(message.id)
            if len(got) == 3:
                break
            server.connection.cut()
    assert got == ["a", "b", "c"]
    assert len([frame for frame in server.frames if isinstance(frame, Subscribe)]) == 3


async def test_two_tasks_may_read_one_subscription() -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, _: connection.deliver("a", "b")
    async with session(server) as pushq, pushq.subscribe("q") as messages:
        both = await asyncio.gather(messages.get(), messages.get())
        assert sorted(message.id for message in both) == ["a", "b"]


async def test_closing_a_subscription_ends_its_loop_without_an_error() -> None:
    async with session(PlayedServer()) as pushq:
        messages = pushq.subscribe("q")

        async def read() -> int:
            return len([message async for message in messages])

        reading = asyncio.create_task(read())
        await messages.subscribed()
        await messages.close()
        assert await reading == 0


async def test_a_session_closed_for_good_raises_from_everything() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        server.answers = False
        publishing = asyncio.create_task(pushq.publish("q", "a"))
        reading = asyncio.create_task(pushq.subscribe("q").get())
        await eventually(lambda: any(isinstance(frame, Publish) for frame in server.frames))
        server.connection.say(Error(problem=Problem(code="unauthenticated", status=401, detail="revoked")))
        server.connection.cut(4501)
        for task in (publishing, reading):
            with pytest.raises(Unauthenticated, match="revoked"):
                await task
        with pytest.raises(Unauthenticated):
            await pushq.publish("q", "b")


@pytest.mark.parametrize("code", [None, 4501])
async def test_who_works_on_a_message_is_told_when_the_session_ends_for_good(code: int | None) -> None:
    server = PlayedServer()
    server.on_subscribe = lambda connection, frame: connection.deliver("a", "b")
    async with session(server) as pushq:
        messages = pushq.subscribe("q")
        acked, held = await messages.get(), await messages.get()
        await acked.ack()
        waiting = asyncio.create_task(held.until_lost())
        await asyncio.sleep(0)
        if code is None:
            await pushq.close()
        else:
            server.connection.cut(code)
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert [acked.lost, held.lost] == [False, True]
