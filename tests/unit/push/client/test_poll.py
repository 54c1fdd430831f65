"""A subscription as long-polls: what it holds when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from push.client.config import Limits
from push.client.frames import Subscribe, Unsubscribe
from push.client.transports.http import HttpTransport
from push.client.transports.poll import PollStream

pytestmark = pytest.mark.anyio

QUICK = Limits(poll_leave_s=0.05)
SUBSCRIBE = Subscribe(id=7, queue="orders", credit=2, ack="manual")


class Server:
    """Answers the first poll with nothing, the second one when it is told to, and notes who gives what back."""

    def __init__(self) -> None:
        self.given_back: list[str] = []
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self._polls = 0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body: dict[str, Any] = json.loads(request.content or b"{}")
        if request.url.path.endswith("/nack"):
            self.given_back += body["receipts"]
            return httpx2.Response(200, json={"results": []})
        if not request.url.path.endswith("/receive"):
            return httpx2.Response(200, json={"config": {}})
        self._polls += 1
        if self._polls == 1:
            return httpx2.Response(200, json={"messages": []})
        self.is_asked.set()
        await self.may_answer.wait()
        return httpx2.Response(200, json={"messages": [{"id": "a", "body": 1, "receipt": "r-a"}]})


async def polling(server: Server) -> HttpTransport:
    """A subscription whose second poll is under way."""
    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(server))
    transport = HttpTransport(http, PollStream, QUICK)
    await transport.send([SUBSCRIBE])
    await asyncio.wait_for(server.is_asked.wait(), 5)
    return transport


async def test_what_the_last_poll_brings_to_one_who_leaves_is_given_back() -> None:
    server = Server()
    transport = await polling(server)
    await transport.send([Unsubscribe(id=8, sub=1)])
    server.may_answer.set()
    await transport.close()
    assert server.given_back == ["r-a"]
    await transport.wait_closed()


async def test_who_leaves_does_not_wait_for_a_poll_that_finds_nothing() -> None:
    server = Server()
    transport = await polling(server)
    await transport.send([Unsubscribe(id=8, sub=1)])
    await asyncio.wait_for(transport.close(), 2)
    assert server.given_back == []
    await asyncio.wait_for(transport.wait_closed(), 2)
