"""The listener on real sockets: who comes in, and how long an answer waits for its reader."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.types import ASGIApp
from websockets.asyncio.client import connect as connect_socket

from gateway.listener import server as listeners
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.proxy_gate import Entrance
from gateway.listener.proxy_header import networks
from gateway.listener.server import HttpProtocol, listener
from push.intake import Intake
from tests.support.patience import eventually
from tests.support.told_client import listening
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
async def serving(
    intake: Intake, *, connections_max: int = 100, answers: ASGIApp = app, entrance: Entrance | None = None
) -> AsyncIterator[tuple[str, int]]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = listener(
            answers, entrance, AcceptLimit(intake, connections_max=connections_max, clock_ns=lambda: NS_PER_S)
        )
        task = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.001)
        yield bound.getsockname()[:2]
        server.should_exit = True
        await task


async def head(
    address: tuple[str, int], source: str = "127.0.0.1"
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
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


async def test_a_larger_answer_after_a_smaller_one_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unread of the second is more than was left of the first, and its reader reads all the time."""
    monkeypatch.setattr(listeners, "WRITE_BLOCKED_SECONDS_MAX", 0.3)
    intake = Intake()
    async with serving(intake) as address, asyncio.timeout(20):
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        line.connect(address)
        reader, writer = await asyncio.open_connection(sock=line, limit=65_536)
        for path, length, pause in ((b"/4000000 ", 4_000_000, 0.0), (b"/ ", ANSWER_BYTES, 0.02)):
            writer.write(REQUEST.replace(b"/ ", path))
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(length // 125_000):
                await reader.readexactly(125_000)
                await asyncio.sleep(pause)
            await reader.readexactly(length % 125_000)
        assert intake.readers_cut == 0
        writer.close()


async def test_connections_above_the_pace_are_answered_503_before_they_ask() -> None:
    intake = Intake(accepts_per_s=1, accepts_burst=1)  # so 10 connections of any kind, 9 of an address
    async with serving(intake) as address, asyncio.timeout(10):
        answers = [await head(address) for _ in range(12)]
        assert [answer.split()[1] for answer, _, _ in answers[:9]] == [b"200"] * 9
        late = answers[-1][0].lower()
        assert late.startswith(b"http/1.1 503") and b"retry-after: " in late and b"connection: close" in late
        assert b'"overloaded"' in await answers[-1][1].read()
        assert intake.refused["connection", "pace"] >= 1
        elsewhere = await head(address, source="127.0.0.2")
        assert elsewhere[0].startswith(b"HTTP/1.1 200"), "one address used up the pace of all"
        answers.append(elsewhere)
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


# -------------------------------------------------------------------------------------------------- requests sent ahead


class Slow:
    """An application that answers with the path, when it may; a body is read first."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await self.may_answer.wait()
        said = scope["path"].encode() + body
        headers = [(b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


def bodies(answers: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in answers.split(b"HTTP/1.1 200 OK\r\n")[1:]]


async def test_requests_sent_ahead_are_answered_in_their_order_one_at_a_time() -> None:
    slow = Slow()
    async with serving(Intake(), answers=slow) as address, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        gets = [b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(300)]
        posts = [b"POST /p HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n\r\n\r\nab"] * 2
        chunked = b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
        last = b"GET /end HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        writer.write(b"".join([*gets, *posts, chunked, last]))
        while not slow.asked:  # noqa: ASYNC110 - what is waited for is the listener's
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert slow.asked == ["/0"]
        slow.may_answer.set()
        expected = [b"/%d" % number for number in range(300)] + [b"/p\r\n\r\nab"] * 2 + [b"/cab", b"/end"]
        assert bodies(await reader.read()) == expected
        writer.close()


async def test_a_request_sent_ahead_whose_body_is_still_to_come_is_not_taken_for_the_one_that_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[HttpProtocol] = []
    made = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", lambda self, tr: (seen.append(self), made(self, tr))[1])
    slow = Slow()
    post = b"POST /%b HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
    async with serving(Intake(), answers=slow) as address, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post % b"1" + b"body" + post % b"2")  # the end of one and the head of the next are one piece
        slow.may_answer.set()
        await reader.readuntil(b"/1body")
        while slow.asked != ["/1", "/2"]:  # noqa: ASYNC110 - what is waited for is the listener's
            await asyncio.sleep(0.01)
        assert seen[0].leftover is None
        writer.write(b"more")
        await reader.readuntil(b"/2more")
        writer.close()


async def test_what_is_sent_ahead_is_neither_parsed_nor_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HttpProtocol] = []
    made = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", lambda self, tr: (seen.append(self), made(self, tr))[1])
    slow = Slow()
    async with serving(Intake(), answers=slow) as address, asyncio.timeout(20):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /1 HTTP/1.1\r\nhost:\r\n\r\n" * 1_000_000)  # 28 MB, far more than the system holds
        await asyncio.sleep(0.5)
        (protocol,) = seen
        assert slow.asked == ["/1"] and not protocol.pipeline
        assert protocol.flow.read_paused
        left = writer.transport.get_write_buffer_size()
        await asyncio.sleep(0.2)
        assert writer.transport.get_write_buffer_size() == left > 0
        writer.transport.abort()
        slow.may_answer.set()


async def test_a_body_that_nobody_takes_yet_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HttpProtocol] = []
    made = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", lambda self, tr: (seen.append(self), made(self, tr))[1])
    begun, may_take, size = asyncio.Event(), asyncio.Event(), 3_000_000
    taken = 0

    async def asks_others_first(scope: Any, receive: Any, send: Any) -> None:
        nonlocal taken
        begun.set()
        await may_take.wait()
        while (message := await receive())["type"] == "http.request":
            taken += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with serving(Intake(), answers=asks_others_first) as address, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
        await begun.wait()
        (protocol,) = seen
        lot = bytes(2 * listeners.READ_BYTES_PER_TURN_MAX)
        protocol.data_received(lot)  # more than a turn's share, as the loop may read it
        await asyncio.sleep(0.05)
        assert protocol.flow.read_paused, "the next turn ended the pause of a full buffer"
        may_take.set()
        writer.write(bytes(size - len(lot)))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert taken == size
        writer.close()


async def test_an_empty_line_keeps_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "KEEP_ALIVE_SECONDS", 1)
    async with serving(Intake()) as address, asyncio.timeout(10):
        reader, writer = (await head(address))[1:]
        await reader.readexactly(5)
        writer.write(b"\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"\r\n\r\n\r\n" + REQUEST.replace(b"/ ", b"/5 "))
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(5)
        writer.write(b"\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_an_empty_line_behind_a_request_keeps_nobody_from_seeing_its_client_leave() -> None:
    slow = Slow()
    left = asyncio.Event()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        slow.asked.append(scope["path"])
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with serving(Intake(), answers=waiting) as address, asyncio.timeout(10):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n\r\n")
        while not slow.asked:  # noqa: ASYNC110 - what is waited for is the listener's
            await asyncio.sleep(0.01)
        writer.close()
        await left.wait()


async def test_a_bad_request_sent_ahead_gets_no_answer_in_anothers_place() -> None:
    slow = Slow()
    async with serving(Intake(), answers=slow) as address, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n" + b"nonsense\r\n\r\n")
        await asyncio.sleep(0.1)
        slow.may_answer.set()
        answers = await reader.read()
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]
        writer.close()


async def test_a_bad_body_gets_no_answer_within_the_one_that_has_begun() -> None:
    intake, is_cut = Intake(), asyncio.Event()

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        while (await receive())["type"] == "http.request":
            pass
        is_cut.set()

    async with serving(intake, answers=streaming) as address, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await reader.readuntil(b"one\r\n")
        writer.write(b"nonsense\r\n")
        assert await reader.read() == b""
        await is_cut.wait()
        writer.close()
    assert intake.heads_refused == {"malformed": 1}


@pytest.mark.parametrize(
    "body",
    [b"\r\n\r\n" * 1000, b"x" * 3_000_000],
    ids=["many pieces", "many reads"],
)
async def test_a_body_that_takes_many_turns_comes_whole(body: bytes) -> None:
    slow = Slow()
    slow.may_answer.set()
    async with serving(Intake(), answers=slow) as address, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        head, _, said = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and said == b"/" + body
        writer.close()


# ------------------------------------------------------------------------------------------------------- bad heads


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"nonsense\r\n\r\n", "malformed"),
        (b"GET /5 HTTP/1.1\r\n\r\n", "host"),
        (b"GET /5 HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", "host"),
        (b"GET /5 HTTP/1.1\r\nhost: a\r\nx: " + b"x" * 70_000 + b"\r\n\r\n", "size"),
        (
            b"POST /5 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"x" * 70_000 + b"\r\n\r\n",
            "size",
        ),
    ],
    ids=["nonsense", "no host", "two hosts", "large head", "large trailer"],
)
async def test_a_bad_head_is_told_counted_and_ends_the_connection(sent: bytes, reason: str) -> None:
    intake = Intake()
    slow = Slow()
    async with serving(intake, answers=slow) as address, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400") and b'"invalid-request"' in answer
        assert intake.heads_refused == {reason: 1}
        writer.close()


LINE = b"GET /5 HTTP/1.1\r\nhost: a\r\n"


@pytest.mark.parametrize("beyond", [0, 1], ids=["just the bound", "one more"])
@pytest.mark.parametrize("what", ["headers", "their bytes", "the target's bytes", "with trailers"])
async def test_a_head_may_be_as_large_as_the_bound_and_no_larger(what: str, beyond: int) -> None:
    """Its bytes are those of the target, of names and of values."""
    many, size = listeners.HEADERS_MAX - 1 + beyond, listeners.HEADERS_BYTES_MAX - len("/5hosta") + beyond
    request = {
        "headers": LINE + b"x: 1\r\n" * many + b"\r\n",
        "their bytes": LINE + b"x: %b\r\n\r\n" % (b"x" * (size - 1)),
        "the target's bytes": LINE.replace(b"/5", b"/5?" + b"x" * (size - 1)) + b"\r\n",
        "with trailers": LINE.replace(b"GET", b"POST")
        + b"x: 1\r\n" * (listeners.HEADERS_MAX - 2)
        + b"transfer-encoding: chunked\r\n\r\n0\r\n"
        + b"last: one\r\n" * beyond
        + b"\r\n",
    }[what]
    intake, slow = Intake(), Slow()
    slow.may_answer.set()
    async with serving(intake, answers=slow) as address, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400" if beyond else b"HTTP/1.1 200")
        writer.close()
    assert intake.heads_refused == ({"size": 1} if beyond else {})


async def test_a_head_that_comes_too_late_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "REQUEST_HEAD_SECONDS_MAX", 0.05)
    intake = Intake()
    async with serving(intake) as address, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        assert intake.heads_refused == {"late": 1}
        writer.close()


# ---------------------------------------------------------------------------------------------- room of an address


async def test_connections_of_one_address_that_say_nothing_keep_no_other_one_out() -> None:
    intake = Intake()
    async with serving(intake, connections_max=10) as address, asyncio.timeout(10):
        idle = [await asyncio.open_connection(*address) for _ in range(9)]
        reader, writer = await asyncio.open_connection(*address)
        refused = await reader.read()
        assert refused.startswith(b"HTTP/1.1 503 ") and b"127.0.0.1 has 9 connections open" in refused
        writer.close()
        answer, _, other = await head(address, "127.0.0.2")
        assert answer.startswith(b"HTTP/1.1 200 ")
        other.close()
        idle.pop()[1].close()

        async def is_served() -> bool:
            try:
                answer, _, writer = await head(address)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return False
            writer.close()
            return answer.startswith(b"HTTP/1.1 200 ")

        await eventually(is_served)
        for _, opened in idle:
            opened.close()


async def test_a_websocket_keeps_the_room_of_its_connection_until_it_has_gone() -> None:
    door = AcceptLimit(Intake(), connections_max=10, per_address_max=1, clock_ns=lambda: NS_PER_S)
    async with listening(Entrance(), door) as port, asyncio.timeout(10):
        async with connect_socket(f"ws://127.0.0.1:{port}/x", proxy=None):
            assert not door.wait("127.0.0.1")
        await eventually(lambda: door.wait("127.0.0.1"))


async def test_what_waits_at_the_gate_takes_the_room_of_who_connected() -> None:
    """Whoever waits there for a header was not counted by its address at all."""
    entrance = Entrance(trusted=networks(["10.0.0.1"]))
    async with serving(Intake(), connections_max=10, entrance=entrance) as address, asyncio.timeout(10):
        idle = [await asyncio.open_connection(*address) for _ in range(9)]
        reader, writer = await asyncio.open_connection(*address)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert entrance.refused == {"address": 1}
        answer, _, other = await head(address, "127.0.0.2")
        assert answer.startswith(b"HTTP/1.1 200 ")
        for opened in (*(one for _, one in idle), writer, other):
            opened.close()
