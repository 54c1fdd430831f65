"""A subscription as server-sent events: what the core is told when the stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from push.client.config import Limits
from push.client.errors import ApiError, api_error
from push.client.frames import Ack, AnyServerFrame, Begin, Connect, Deliver, Ended, Error, Ok, Subscribe
from push.client.transports.base import Cut
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


async def test_a_stream_that_ended_is_kept_as_long_as_what_it_brought() -> None:
    """The second `Begin` comes when the subscription has a new stream, and so another name."""
    event = 'event: message\ndata: {"id":"a","body":1,"receipt":"r-a"}\n\n'
    streams = iter([event, "", ""])
    nacked: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        what = request.url.path.rsplit("/", 1)[1]
        if what == "events":
            return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=next(streams).encode())
        if what == "nack":
            nacked.append(request.content)
        if what in ("ack", "nack"):
            return httpx2.Response(200, json={"results": [{"receipt": "r-a", "ok": True}]})
        return httpx2.Response(200, json={"config": {"visibility_timeout_ms": 30_000}})

    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(answer))
    transport = HttpTransport(http, SseStream, Limits())
    async with asyncio.timeout(5):
        for _ in range(2):
            await transport.send([SUBSCRIBE])
            while not isinstance((await transport.receive())[0], Ended):
                pass
        while len(transport._streams) > 1:  # noqa: ASYNC110 - the second one ends without a word
            await asyncio.sleep(0)
        await transport.send([Begin(sub=2, receipts=["r-a"])])
        ((stream, _),) = transport._streams.values()
        assert [(held.receipt, held.is_begun) for held in stream.held()] == [("r-a", True)]
        await transport.send([Ack(id=9, queue="news", receipts=["r-a"])])
        while not isinstance((await transport.receive())[0], Ok):
            pass
        assert not transport._streams and not nacked
    await transport.wait_closed()


async def test_an_answer_that_cannot_be_unpacked_is_a_cut() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(b"no gzip"))

    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(answer))
    transport = HttpTransport(http, SseStream, Limits())
    await transport.send([Connect(id=1)])
    with pytest.raises(Cut, match="decompress"):
        await asyncio.wait_for(transport.receive(), 5)
    await transport.send([SUBSCRIBE])
    (error,) = await asyncio.wait_for(transport.receive(), 5)
    assert isinstance(error, Error) and api_error(error.problem).retryable
    await transport.wait_closed()


async def test_an_address_that_is_no_pushq_says_where_it_redirects_to() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(302, headers={"Location": "https://login.example/?next=secret"})

    http = httpx2.AsyncClient(base_url="http://pushq", transport=httpx2.MockTransport(answer))
    transport = HttpTransport(http, SseStream, Limits())
    await transport.send([Connect(id=1)])
    with pytest.raises(ApiError, match="http://pushq redirects to https://login") as caught:
        await asyncio.wait_for(transport.receive(), 5)
    assert "secret" not in str(caught.value)
    await transport.wait_closed()
