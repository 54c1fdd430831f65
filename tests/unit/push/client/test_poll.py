"""A subscription as long-polls: what it holds when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import msgspec
import pytest

from push.client.config import Limits
from push.client.frames import Begin, Deliver, Extend, Subscribe, Unsubscribe
from push.client.transports.http import HttpTransport
from push.client.transports.poll import PollStream, read_answer

pytestmark = pytest.mark.anyio

QUICK = Limits(poll_leave_s=0.05)
SUBSCRIBE = Subscribe(id=7, queue="orders", credit=2, ack="manual")


class Server:
    """Answers the first poll with nothing, each other one when it is told to, and notes who gives what back."""

    def __init__(self, delivery: str = "at_least_once") -> None:
        self.delivery = delivery
        self.given_back: list[str] = []
        self.nacks: list[dict[str, Any]] = []
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self._polls = 0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body: dict[str, Any] = json.loads(request.content or b"{}")
        if request.url.path.endswith("/nack"):
            self.given_back += body["receipts"]
            self.nacks.append(body)
            return httpx2.Response(200, json={"results": []})
        if request.url.path.endswith("/extend"):
            rows = [{"receipt": one, "ok": False, "code": "stale-receipt"} for one in body["receipts"]]
            return httpx2.Response(200, json={"results": rows})
        if not request.url.path.endswith("/receive"):
            return httpx2.Response(200, json={"config": {"delivery": self.delivery}})
        self._polls += 1
        if self._polls == 1:
            return httpx2.Response(200, json={"messages": []})
        self.is_asked.set()
        await self.may_answer.wait()
        self.may_answer.clear()
        self.is_asked.clear()
        return httpx2.Response(200, json={"messages": [{"id": "a", "body": 1, "receipt": "r-a"}]})


async def polling(server: Server, frame: Subscribe = SUBSCRIBE) -> HttpTransport:
    """A subscription whose second poll is under way."""
    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(server))
    transport = HttpTransport(http, PollStream, QUICK)
    await transport.send([frame])
    await asyncio.wait_for(server.is_asked.wait(), 5)
    return transport


async def test_what_the_last_poll_brings_to_one_who_leaves_is_given_back() -> None:
    server = Server()
    transport = await polling(server)
    await transport.send([Unsubscribe(id=8, sub=1)])
    server.may_answer.set()
    await transport.close()
    assert server.nacks == [{"receipts": ["r-a"], "delay_ms": 0, "tried": False}]
    await transport.wait_closed()


async def test_what_comes_long_after_the_end_of_a_subscription_is_given_back_while_the_client_goes_on() -> None:
    server = Server()
    transport = await polling(server)
    await transport.send([Unsubscribe(id=8, sub=1)])
    await asyncio.sleep(3 * QUICK.poll_leave_s)
    server.may_answer.set()
    async with asyncio.timeout(2):
        while not server.nacks:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    assert server.nacks == [{"receipts": ["r-a"], "delay_ms": 0, "tried": False}]
    await transport.close()
    await transport.wait_closed()


async def test_of_a_queue_that_delivers_at_most_once_nothing_is_fetched_for_nobody() -> None:
    server = Server(delivery="at_most_once")
    transport = await polling(server)
    (_, reading), *_ = transport._streams.values()
    await transport.send([Unsubscribe(id=8, sub=1)])
    async with asyncio.timeout(2):
        await asyncio.wait([reading])
    assert reading.cancelled()
    await transport.close()
    await transport.wait_closed()


@pytest.mark.parametrize("begins", [[], [Begin(sub=1, receipts=["r-a"])]], ids=["unseen", "begun"])
async def test_what_was_held_goes_back_at_once_though_a_poll_is_under_way(begins: list[Begin]) -> None:
    server = Server()
    transport = await polling(server)
    server.may_answer.set()
    frames = [await transport.receive() for _ in range(2)]
    assert isinstance(frames[1][0], Deliver)
    await asyncio.wait_for(server.is_asked.wait(), 5)
    await transport.send([*begins, Unsubscribe(id=8, sub=1)])
    async with asyncio.timeout(2):
        while not server.nacks:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    assert server.nacks == [{"receipts": ["r-a"], "tried": bool(begins)}]
    await transport.close()
    await transport.wait_closed()


async def test_a_lease_that_has_ended_gives_its_credit_back() -> None:
    """Nobody settles such a message here any more: it comes again. After as many as there was credit for, nothing was
    asked for."""
    server = Server()
    transport = await polling(server, msgspec.structs.replace(SUBSCRIBE, credit=1))
    server.may_answer.set()
    while not isinstance(found := (await transport.receive())[0], Deliver):
        pass
    assert not server.is_asked.is_set()
    await transport.send([Extend(id=8, queue="orders", receipts=["r-a"], sub=1, visibility_timeout_ms=1000)])
    await asyncio.wait_for(server.is_asked.wait(), 5)
    assert [message.receipt for message in found.messages] == ["r-a"]
    await transport.close()
    assert server.given_back == []


async def test_who_leaves_does_not_wait_for_a_poll_that_finds_nothing() -> None:
    server = Server()
    transport = await polling(server)
    await transport.send([Unsubscribe(id=8, sub=1)])
    await asyncio.wait_for(transport.close(), 2)
    assert server.given_back == []
    await asyncio.wait_for(transport.wait_closed(), 2)


def test_of_an_answer_the_messages_that_cannot_be_decoded_are_set_apart() -> None:
    messages = [
        f'{{"id":"{id}","body":{body},"receipt":"r-{id}"}}' for id, body in [("a", 1), ("b", "1e999"), ("c", 3)]
    ]
    answer = read_answer(f'{{"messages":[{",".join(messages)}],"cursor":"k","resume":"gap"}}'.encode())
    assert [message.id for message in answer.messages] == ["a", "c"]
    assert [(each.id, each.receipt) for each in answer.unread] == [("b", "r-b")]
    assert (answer.cursor, answer.resume) == ("k", "gap")
    assert [each.receipt for each in answer.both()] == ["r-a", "r-c", "r-b"]
