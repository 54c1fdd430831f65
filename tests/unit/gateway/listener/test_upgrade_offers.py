"""Offers of another protocol, with and without a body, to the listener on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.listener.server import listener
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
BODY = b"GET /made-up HTTP/1.1\r\nhost: x\r\n\r\n"
"""Of a client that would like to be taken for two."""

asked: list[tuple[str, bytes]] = []


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path and the body; on /early before it has come."""
    body = b""
    is_early = scope["path"] == "/early"
    while not is_early and (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    asked.append((scope["path"], body))
    said = scope["path"].encode() + body
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    asked.clear()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = listener(echo)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.001)
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(*bound.getsockname()[:2])
            yield reader, writer
            writer.close()
        server.should_exit = True
        await task


def post(path: bytes, body: bytes, *, is_chunked: bool) -> tuple[bytes, bytes]:
    """The head, with an offer, and what follows."""
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(body)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%b%b\r\n\r\n" % (path, OFFER, framing)
    return head, b"%x\r\n%b\r\n0\r\nlast: one\r\n\r\n" % (len(body), body) if is_chunked else body


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200")
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


@pytest.mark.parametrize("is_split", [False, True], ids=["in one piece", "in two"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
async def test_a_body_behind_an_offer_is_the_requests(is_chunked: bool, is_split: bool) -> None:
    head, rest = post(b"/1", BODY, is_chunked=is_chunked)
    async with connection() as (reader, writer):
        writer.write(head)
        if is_split:
            await asyncio.sleep(0.05)
        writer.write(
            rest + b"".join(post(b"/2", b"more", is_chunked=is_chunked)) + b"GET /3 HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        assert [await answer(reader) for _ in range(3)] == [b"/1" + BODY, b"/2more", b"/3"]
    assert asked == [("/1", BODY), ("/2", b"more"), ("/3", b"")]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
async def test_a_body_behind_an_offer_that_is_answered_early_is_thrown_away(is_chunked: bool) -> None:
    head, rest = post(b"/early", BODY * 1000, is_chunked=is_chunked)
    async with connection() as (reader, writer):
        writer.write(head)
        assert await answer(reader) == b"/early"
        writer.write(rest + b"GET /3 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await answer(reader) == b"/3"
    assert asked == [("/early", b""), ("/3", b"")]


@pytest.mark.parametrize("framing", [b"", b"content-length: 0\r\n"])
async def test_an_offer_without_a_body_is_a_request_like_any(framing: bytes) -> None:
    async with connection() as (reader, writer):
        writer.write(
            b"GET /1 HTTP/1.1\r\nhost: x\r\n%b%b\r\n" % (OFFER, framing) + b"GET /2 HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        assert [await answer(reader) for _ in range(2)] == [b"/1", b"/2"]


@pytest.mark.parametrize("framing", [b"content-length: x", b"transfer-encoding: gzip"])
async def test_a_body_behind_an_offer_of_which_nobody_knows_the_end_ends_the_connection(framing: bytes) -> None:
    async with connection() as (reader, writer):
        writer.write(b"POST /1 HTTP/1.1\r\nhost: x\r\n%b%b\r\n\r\n" % (OFFER, framing) + BODY)
        answers = await reader.read()
        assert answers.startswith(b"HTTP/1.1 400") and answers.count(b"HTTP/1.1 ") == 1
    assert ("/made-up", b"") not in asked
