from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from push.client import ApiError, DeadLetter, LeaseLost, Message, Ordering, Problem, Pushq
from push.client.frames import Ack, Error, Nack, Ok, SettleResult
from tests.unit.push.client.played import PlayedServer, eventually, session
from tests.unit.push.client.world import bodies, fields_of

pytestmark = pytest.mark.anyio


async def delivered(pushq: Pushq, server: PlayedServer, **fields: Any) -> Message:
    """One message with these fields, in the user's hands."""
    messages = pushq.subscribe("q")
    await messages.subscribed()
    server.connection.deliver("m", **fields)
    return await messages.get()


def acks(server: PlayedServer) -> list[Ack]:
    return [frame for frame in server.frames if isinstance(frame, Ack)]


# Fields


@pytest.mark.parametrize(
    ("content_type", "given", "body"),
    [
        ("application/json", b"[18446744073709551616]", [2**64]),
        ("Application/vnd.shop+JSON; charset=utf-8", b"-9223372036854775809", -(2**63) - 1),
        ("application/octet-stream", b"18446744073709551616", b"18446744073709551616"),
        ("application/json", b'{"a":1}', b'{"a":1}'),
        ("application/json", b"\xff{", b"\xff{"),
    ],
)
async def test_bytes_are_bytes_but_for_a_value_that_messagepack_has_not(
    content_type: str, given: bytes, body: Any
) -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server, content_type=content_type, body=given)
        assert message.body == body


async def test_every_field_has_its_type() -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(
            pushq,
            server,
            key="k",
            priority=3,
            expires_at="2026-11-21T10:00:00.500Z",
            ordering={"timestamp": "2026-11-21T10:00:00.123456Z", "late": True},
            reply_to="r",
            correlation_id="c",
            producer="p",
            producer_seq=7,
        )
    assert (message.key, message.priority, message.reply_to, message.correlation_id) == ("k", 3, "r", "c")
    assert (message.producer, message.producer_seq) == ("p", 7)
    assert message.expires_at == datetime(2026, 11, 21, 10, 0, 0, 500_000, UTC)
    assert message.ordering == Ordering(datetime(2026, 11, 21, 10, 0, 0, 123_456, UTC), True)
    assert message.dead_letter is None


async def test_a_plain_message_has_neither_order_nor_end() -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server)
    assert (message.ordering, message.expires_at, message.dead_letter) == (None, None, None)
    assert (message.key, message.priority) == (None, 0)
    assert (message.producer, message.producer_seq) == (None, None)


async def test_a_dead_letter_tells_what_it_died_of() -> None:
    history = [{"attempt": 1, "at": "2026-11-21T09:59:00.000Z", "outcome": "nacked", "reason": "no stock"}]
    told = {"from": "orders", "reason": "max_attempts", "at": "2026-11-21T10:00:00.000Z", "attempts": 1}
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server, dead_letter=told | {"history": history})
    at = datetime(2026, 11, 21, 10, tzinfo=UTC)
    assert message.dead_letter == DeadLetter("orders", "max_attempts", at, 1, tuple(history))


async def test_a_late_message_without_a_stamp_is_late_all_the_same() -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server, ordering={"timestamp": None, "late": True})
    assert message.ordering == Ordering(None, True)


# Settling


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, None),
        ({"delay": 0}, 0),
        ({"delay": 1.5}, 1500),
        ({"delay": timedelta(hours=1)}, 3_600_000),
        ({"delay_ms": 7}, 7),
    ],
)
async def test_a_nack_waits_as_long_as_it_says_or_else_as_the_queue_does(
    given: dict[str, Any], sent: int | None
) -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server)
        await message.nack(reason="no stock", **given)
    [frame] = [frame for frame in server.frames if isinstance(frame, Nack)]
    assert (frame.delay_ms, frame.reason) == (sent, "no stock")


async def test_an_ack_may_publish_in_the_same_step() -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server)
        await message.ack(publish=[("bills", {"n": 1}), ("mails", "sent", {"key": "k", "delay": 2})])
    [frame] = acks(server)
    assert frame.publish is not None and [part.queue for part in frame.publish] == ["bills", "mails"]
    mail = fields_of(frame.publish[1].messages[0])
    assert (mail["body"], mail["key"], mail["delay_ms"], mail["producer_seq"]) == ("sent", "k", 2000, 1)
    assert mail["id"]


async def test_several_messages_are_acked_in_one_step() -> None:
    async with session(server := PlayedServer()) as pushq, pushq.subscribe("q") as messages:
        server.connection.deliver("a", "b")
        await pushq.ack([await messages.get(), await messages.get()], publish=[("bills", "x")])
    [frame] = acks(server)
    assert list(frame.receipts) == ["r-a", "r-b"]
    assert frame.publish is not None and [bodies(part) for part in frame.publish] == [["x"]]


async def test_acking_several_tells_whose_lease_was_lost() -> None:
    async with session(server := PlayedServer()) as pushq, pushq.subscribe("q") as messages:
        server.stale = {"r-a", "r-c"}
        server.connection.deliver("a", "b", "c")
        with pytest.raises(LeaseLost, match="2 of 3") as caught:
            await pushq.ack([await messages.get() for _ in range(3)])
    assert caught.value.ids == ("a", "c")


async def test_acking_nothing_is_nothing_and_publishes_nothing() -> None:
    async with session(server := PlayedServer()) as pushq:
        await pushq.ack([])
        message = await delivered(pushq, server, receipt=None)
        await pushq.ack([message])
        with pytest.raises(ValueError, match="cannot publish with this ack"):
            await message.ack(publish=[("bills", 1)])
    assert acks(server) == []


async def test_messages_of_two_subscriptions_are_not_acked_together() -> None:
    async with session(server := PlayedServer()) as pushq:
        one, two = pushq.subscribe("one"), pushq.subscribe("two")
        await two.subscribed()
        server.connection.deliver("a", sub=1)
        server.connection.deliver("b", sub=2)
        with pytest.raises(ValueError, match="one subscription"):
            await pushq.ack([await one.get(), await two.get()])


async def test_a_step_of_too_many_receipts_or_messages_is_refused_here() -> None:
    server = PlayedServer()
    async with session(server, settle_frame_receipts_max=2) as pushq, pushq.subscribe("q") as messages:
        server.connection.deliver("a", "b", "c")
        held = [await messages.get() for _ in range(3)]
        with pytest.raises(ValueError, match="3 receipts"):
            await pushq.ack(held, publish=[("bills", 1)])
        with pytest.raises(ApiError, match="1001 messages"):
            await held[0].ack(publish=[("bills", n) for n in range(1001)])
    assert acks(server) == []


async def test_an_ack_that_could_not_publish_leaves_the_message_in_hand() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        message = await delivered(pushq, server)
        server.answers = False
        acking = asyncio.create_task(message.ack(publish=[("bills", 1)]))
        await eventually(lambda: acks(server))
        full = Problem(code="queue-full", status=507, detail="bills is full")
        server.connection.say(Error(id=acks(server)[0].id, problem=full))
        with pytest.raises(ApiError, match="bills is full"):
            await acking
        server.answers = True
        await message.nack()
    assert not message.lost


# Replying


async def test_a_reply_goes_where_the_request_says_and_carries_its_correlation_id() -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server, reply_to="replies", correlation_id="c-7")
        stored = await message.reply({"price": 3}, headers={"status": "ok"})
    [sent] = server.messages
    assert (sent["body"], sent["correlation_id"], sent["headers"]) == ({"price": 3}, "c-7", {"status": "ok"})
    assert stored.seq == 0


async def test_a_message_that_asks_for_no_reply_gets_none() -> None:
    async with session(server := PlayedServer()) as pushq:
        message = await delivered(pushq, server)
        with pytest.raises(ValueError, match="no reply_to"):
            await message.reply(1)


async def test_a_confirmed_ack_is_an_answer_for_each_receipt() -> None:
    server = PlayedServer()
    async with session(server) as pushq, pushq.subscribe("q") as messages:
        server.answers = False
        server.connection.deliver("a", "b")
        acking = asyncio.create_task(pushq.ack([await messages.get(), await messages.get()]))
        await eventually(lambda: acks(server))
        [frame] = acks(server)
        server.connection.say(Ok(id=frame.id, results=[SettleResult("r-b", True), SettleResult("r-a", True)]))
        await acking
