"""The listener on real sockets: who comes in, and how long an answer waits for its reader."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import listeners
from gateway.door import Door
from gateway.listeners import listener
from push.intake import Intake
from throttling.gcra import NS_PER_S

pytestmark = pytest.mark.anyio

ANSWER_BYTES = 8 * 1024 * 1024
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    size = ANSWER_BYTES if scope["path"] == "/" else int(scope["path"][1:])
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(size)})


@asynccontextmanager
async def serving(intake: Intake, *, connections_max: int = 100) -> AsyncIterator[tuple[str, int]]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = listener(app, None, Door(intake, connections_max=connections_max, clock_ns=lambda: NS_PER_S))
        task = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.001)
        yield bound.getsockname()[:2]
        server.should_exit = True
        await task


async def head(address: tuple[str, int]) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REQUEST.replace(b"/ ", b"/5 "))
    return await reader.readuntil(b"\r\n\r\n"), reader, writer


@pytest.mark.parametrize("path", [b"/", b"/4000000"], ids=["paused", "written at once"])
async def test_an_answer_that_nobody_reads_is_cut(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    monkeypatch.setattr(listeners, "WRITE_BLOCKED_SECONDS_MAX", 0.1)
    intake = Intake()
    async with serving(intake) as address, asyncio.timeout(10):
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(address)
        deaf.sendall(REQUEST.replace(b"/ ", path + b" "))
        while not intake.readers_cut:  # noqa: ASYNC110 - what is waited for is the listener's timer
            await asyncio.sleep(0.01)
        deaf.close()


async def test_a_slow_line_gets_its_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes many times as long as a reader may be silent."""
    monkeypatch.setattr(listeners, "WRITE_BLOCKED_SECONDS_MAX", 0.1)
    intake = Intake()
    async with serving(intake) as address, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address, limit=65_536)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        got, began = 0, asyncio.get_running_loop().time()
        while got < ANSWER_BYTES:
            got += len(await reader.readexactly(min(131_072, ANSWER_BYTES - got)))
            await asyncio.sleep(0.01)
        assert got == ANSWER_BYTES and asyncio.get_running_loop().time() - began > 0.5
        assert intake.readers_cut == 0
        writer.close()


async def test_connections_above_the_pace_are_answered_503_before_they_ask() -> None:
    intake = Intake(accepts_per_s=1, accepts_burst=1)  # so 10 connections of any kind
    async with serving(intake) as address, asyncio.timeout(10):
        answers = [await head(address) for _ in range(12)]
        assert [answer.split()[1] for answer, _, _ in answers[:10]] == [b"200"] * 10
        late = answers[-1][0].lower()
        assert late.startswith(b"http/1.1 503") and b"retry-after: " in late and b"connection: close" in late
        assert b'"overloaded"' in await answers[-1][1].read()
        assert intake.refused["connection", "pace"] >= 1
        for _, _, writer in answers:
            writer.close()


async def test_there_are_never_more_connections_than_there_is_room_for() -> None:
    intake = Intake()
    async with serving(intake, connections_max=3) as address, asyncio.timeout(10):
        answers = [await head(address) for _ in range(5)]
        assert [answer.split()[1] for answer, _, _ in answers] == [b"200"] * 3 + [b"503"] * 2
        assert intake.refused == {("connection", "full"): 2}
        for _, _, writer in answers:
            writer.close()
