from __future__ import annotations

import asyncio
from typing import Any

import pytest

from push.client import (
    ApiError,
    Forbidden,
    NoReplyQueue,
    NotFound,
    Problem,
    Pushq,
    PushqError,
    RequestTimeout,
    SessionClosed,
)
from push.client.errors import FieldError
from push.client.frames import Deliver, Ended, Error, Publish, Subscribe, WireMessage
from tests.unit.push.client.played import PlayedConnection, PlayedServer, eventually, session
from tests.unit.push.client.world import fields_of

pytestmark = pytest.mark.anyio

FORBIDDEN = Problem(code="forbidden", status=403, detail="the key has no scope manage:reply.x")


def answering(server: PlayedServer, *, times: int = 1) -> None:
    """Whoever asks is answered with what they said, in capital letters."""

    def answer(connection: PlayedConnection, frame: Publish) -> None:
        for message in map(fields_of, frame.messages):
            reply = WireMessage(id="r", body=message["body"].upper(), correlation_id=message["correlation_id"])
            connection.say(*[Deliver(sub=1, messages=[reply])] * times)

    server.on_publish = answer


def subscribed_queues(server: PlayedServer) -> list[str]:
    return [frame.queue for frame in server.frames if isinstance(frame, Subscribe)]


async def test_a_request_returns_its_reply() -> None:
    answering(server := PlayedServer())
    async with session(server) as pushq:
        reply = await pushq.request("work", "hello")
        assert reply.body == "HELLO"
        assert pushq.late_replies == 0


async def test_requests_side_by_side_get_their_own_replies_over_one_subscription() -> None:
    answering(server := PlayedServer())
    async with session(server) as pushq:
        replies = await asyncio.gather(*(pushq.request("work", f"r{n}") for n in range(50)))
    assert [reply.body for reply in replies] == [f"R{n}" for n in range(50)]
    assert len(subscribed_queues(server)) == 1


async def test_a_client_makes_itself_a_reply_queue_where_nothing_piles_up() -> None:
    answering(server := PlayedServer())
    async with session(server) as pushq:
        await pushq.request("work", "hello")
        [(name, config)] = server.queues.items()
        assert name == f"reply.{pushq.producer}" == subscribed_queues(server)[0]
    assert (config["delivery"], config["message_ttl_ms"]) == ("at_most_once", 60_000)


async def test_a_producers_name_that_fits_no_queue_is_not_used_for_one() -> None:
    answering(server := PlayedServer())
    async with session(server, options={"producer": "till 7/north"}) as pushq:
        await pushq.request("work", "hello")
    [name] = server.queues
    assert name.startswith("reply.p") and " " not in name


@pytest.mark.parametrize("where", ["connect", "request"])
async def test_a_given_reply_queue_is_used_and_none_is_made(where: str) -> None:
    answering(server := PlayedServer())
    options = {"reply_queue": "answers"} if where == "connect" else {}
    async with session(server, options=options) as pushq:
        await pushq.request("work", "hello", **{} if options else {"reply_queue": "answers"})
    assert not server.queues and subscribed_queues(server) == ["answers"]
    assert server.messages[0]["reply_to"] == "answers"


async def test_a_request_expires_with_its_time_out_unless_it_says_otherwise() -> None:
    answering(server := PlayedServer())
    async with session(server) as pushq:
        await pushq.request("work", "a", timeout=2.5)
        await pushq.request("work", "b", 2.5, ttl=60, key="k")
    assert [(sent["ttl_ms"], sent.get("key")) for sent in server.messages] == [(2500, None), (60_000, "k")]


async def test_a_stream_gets_its_requests_without_an_end() -> None:
    server = PlayedServer()
    answering(server)
    async with session(server) as pushq:
        server.answers = False
        asking = asyncio.create_task(pushq.request("work", "hello"))
        await eventually(lambda: server.messages)
        frame = next(frame for frame in server.frames if isinstance(frame, Publish))
        problem = Problem(code="invalid-request", status=400, errors=pointing_at("/messages/0/ttl_ms"))
        server.answers = True
        server.connection.say(Error(id=frame.id, problem=problem))
        assert (await asking).body == "HELLO"
    assert "ttl_ms" not in server.messages[-1] and server.messages[-1]["producer_seq"] == 1


async def test_no_reply_in_time_is_a_timeout_and_a_late_one_is_counted() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        with pytest.raises(RequestTimeout, match="waiting for the reply") as caught:
            await pushq.request("work", "hello", timeout=0.2)
        assert isinstance(caught.value, TimeoutError) and caught.value.retryable
        late = server.messages[0]["correlation_id"]
        server.connection.say(Deliver(sub=1, messages=[WireMessage(id="r", correlation_id=late)]))
        await eventually(lambda: pushq.late_replies == 1)


async def test_a_second_reply_is_a_late_one() -> None:
    answering(server := PlayedServer(), times=2)
    async with session(server) as pushq:
        assert (await pushq.request("work", "hello")).body == "HELLO"
        await eventually(lambda: pushq.late_replies == 1)


async def test_replies_for_others_on_a_shared_stream_are_passed_over() -> None:
    server = PlayedServer()
    answering(server)
    async with session(server, options={"reply_queue": "answers"}) as pushq:
        await pushq.request("work", "hello")
        server.connection.say(Deliver(sub=1, messages=[WireMessage(id="x", correlation_id="someone-1")]))
        server.connection.say(Deliver(sub=1, messages=[WireMessage(id="y")]))
        await pushq.request("work", "again")
        assert pushq.late_replies == 0


async def test_a_key_that_may_make_no_queue_is_told_what_helps() -> None:
    server = PlayedServer()
    server.refuse_queue = Forbidden(FORBIDDEN)
    async with session(server) as pushq:
        with pytest.raises(NoReplyQueue, match=r"manage:reply\.\*.*reply_queue"):
            await pushq.request("work", "hello")
    assert not server.messages


async def test_a_reply_queue_that_is_there_with_another_config_will_do() -> None:
    answering(server := PlayedServer())
    server.refuse_queue = ApiError(Problem(code="conflict", status=409))
    async with session(server) as pushq:
        assert (await pushq.request("work", "hello")).body == "HELLO"


async def test_a_reply_queue_that_is_missing_is_told() -> None:
    async with session(PlayedServer(), options={"reply_queue": "missing"}) as pushq:
        with pytest.raises(NoReplyQueue, match="must exist") as caught:
            await pushq.request("work", "hello")
    assert isinstance(caught.value.__cause__, NotFound)


async def test_a_request_that_the_server_refuses_raises_its_error() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        answering(server)
        await pushq.request("work", "warm")
        server.answers = False
        asking = asyncio.create_task(pushq.request("work", "hello"))
        await eventually(lambda: len(server.messages) == 2)
        frame = [frame for frame in server.frames if isinstance(frame, Publish)][-1]
        server.connection.say(Error(id=frame.id, problem=Problem(code="queue-not-found", status=404)))
        with pytest.raises(NotFound):
            await asking


async def test_when_the_reply_queue_goes_the_waiting_are_told_and_the_next_request_opens_it_anew() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        asking = asyncio.create_task(pushq.request("work", "hello"))
        await eventually(lambda: server.messages)
        server.connection.say(Ended(sub=1, problem=Problem(code="queue-not-found", status=404)))
        with pytest.raises(NotFound):
            await asking
        server.on_publish = reply_to_sub(2)
        assert (await pushq.request("work", "again")).body == "again"
    assert len(subscribed_queues(server)) == 2


async def test_leaving_ends_the_requests_that_wait() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        asking = asyncio.create_task(pushq.request("work", "hello"))
        await eventually(lambda: server.messages)
    with pytest.raises(SessionClosed):
        await asking


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    server = PlayedServer()
    async with session(server) as pushq:
        asking = asyncio.create_task(pushq.request("work", "hello"))
        await eventually(lambda: server.messages)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not waiting(pushq)


async def test_requests_beyond_the_bound_wait_within_their_time_out() -> None:
    server = PlayedServer()
    async with session(server, requests_in_progress_max=1) as pushq:
        first = asyncio.create_task(pushq.request("work", "a", timeout=5))
        await eventually(lambda: server.messages)
        with pytest.raises(RequestTimeout, match="another request"):
            await pushq.request("work", "b", timeout=0.01)
        first.cancel()
        answering(server)
        assert (await pushq.request("work", "c")).body == "C"


async def test_a_session_that_is_not_open_asks_nothing() -> None:
    with pytest.raises(PushqError):
        await session(PlayedServer()).request("work", "hello")


def reply_to_sub(sub: int) -> Any:
    def answer(connection: PlayedConnection, frame: Publish) -> None:
        for message in map(fields_of, frame.messages):
            reply = WireMessage(id="r", body=message["body"], correlation_id=message["correlation_id"])
            connection.say(Deliver(sub=sub, messages=[reply]))

    return answer


def pointing_at(pointer: str) -> Any:
    return (FieldError(pointer, "no"),)


def waiting(pushq: Pushq) -> Any:
    return pushq._session[1]._waiting
