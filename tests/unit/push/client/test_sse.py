"""A subscription as server-sent events: what the core is told when the stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from push.client.config import Limits
from push.client.errors import api_error
from push.client.frames import AnyServerFrame, Deliver, Ended, Error, Ok, Subscribe
from push.client.transports.http import HttpTransport
from push.client.transports.sse import SseStream

pytestmark = pytest.mark.anyio

UNREAD = [("a", 1), ("b", "1e999"), ("c", 3)]
SUBSCRIBE = Subscribe(id=7, queue="news", credit=10, ack="manual")


class Breaks(httpx2.AsyncByteStream):
    """A body whose connection is cut after its first bytes."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b": welcome\n\n"
        raise httpx2.RemoteProtocolError("cut")


async def told(breaks_at: str) -> list[AnyServerFrame]:
    """The frames that the core gets of one stream whose connection is cut at this place."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        is_stream = request.url.path.endswith("/events")
        if breaks_at == ("events" if is_stream else "config"):
            raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")
        if not is_stream:
            return httpx2.Response(200, json={"config": {"visibility_timeout_ms": 30_000}})
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Breaks())

    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(answer))
    transport = HttpTransport(http, SseStream, Limits())
    await transport.send([SUBSCRIBE])
    frames: list[AnyServerFrame] = []
    async with asyncio.timeout(5):
        while not any(isinstance(frame, Error | Ended) for frame in frames):
            frames += await transport.receive()
    await transport.wait_closed()
    return frames


@pytest.mark.parametrize("breaks_at", ["config", "events"])
async def test_a_stream_that_never_began_is_an_error_of_its_request(breaks_at: str) -> None:
    (error,) = await told(breaks_at)
    assert isinstance(error, Error) and error.id == 7
    assert api_error(error.problem).retryable


async def test_a_stream_that_breaks_is_ended() -> None:
    began, ended = await told("body")
    assert isinstance(began, Ok) and began.id == 7
    assert isinstance(ended, Ended) and ended.sub == began.sub
    assert api_error(ended.problem).retryable


async def test_an_event_that_cannot_be_decoded_does_not_end_the_stream() -> None:
    events = [f'event: message\ndata: {{"id":"{id}","body":{body},"receipt":"r-{id}"}}\n\n' for id, body in UNREAD]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if not request.url.path.endswith("/events"):
            return httpx2.Response(200, json={"config": {"visibility_timeout_ms": 30_000}})
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content="".join(events).encode())

    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(answer))
    transport = HttpTransport(http, SseStream, Limits())
    await transport.send([SUBSCRIBE])
    frames: list[AnyServerFrame] = []
    async with asyncio.timeout(5):
        while not any(isinstance(frame, Ended) for frame in frames):
            frames += await transport.receive()
    (stream, _), *_ = transport._streams.values()
    assert [held.receipt for held in stream.held()] == ["r-a", "r-b", "r-c"]
    await transport.wait_closed()
    delivered = [frame for frame in frames if isinstance(frame, Deliver)]
    assert [message.id for frame in delivered for message in frame.messages] == ["a", "c"]
    assert [each.receipt for frame in delivered for each in frame.unread] == ["r-b"]
