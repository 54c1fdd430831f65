"""Bodies that are answered before they have come: read to their end, or to a bound, by the listener on real sockets.

The application answers at once and never asks for a body.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.limits import LEFTOVERS_PER_TURN_MAX
from gateway.listener import unread_body, upgrade_offers
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.proxy_gate import Entrance
from gateway.listener.server import HttpProtocol
from gateway.listener.unread_body import Bounds, Turnstile
from push.intake import Intake
from tests.support.patience import PATIENCE_S, eventually
from tests.support.told_client import asked, listening
from throttling.gcra import NS_PER_S

pytestmark = pytest.mark.anyio

BODY_BYTES = 3_000_000
"""More than both sockets' buffers hold while nobody reads."""
NEXT = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"


def door(intake: Intake, *, connections_max: int = 100) -> AcceptLimit:
    return AcceptLimit(intake, connections_max=connections_max, clock_ns=lambda: NS_PER_S)


def post(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", *lines, "", ""]).encode()


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head, in lower case, and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """The server's side of each connection."""
    found: list[HttpProtocol] = []
    made = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", lambda self, tr: (found.append(self), made(self, tr))[1])
    return found


def chunks(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\nlast: one\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("body", [b"x" * BODY_BYTES, b"\r\n\r\n" * 5_000], ids=["many reads", "many pieces"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
async def test_a_body_that_is_read_to_its_end_leaves_the_connection_for_the_next_request(
    body: bytes, is_chunked: bool, seen: list[HttpProtocol]
) -> None:
    coding = "transfer-encoding: chunked" if is_chunked else f"content-length: {len(body)}"
    async with listening(Entrance()) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", coding))
        head, _ = await answer(reader)
        assert head.startswith(b"http/1.1 200") and b"connection: close" not in head
        # What goes on with the next request in one piece belongs to both.
        writer.write((chunks(body) if is_chunked else body) + NEXT + NEXT)
        await answer(reader)
        await answer(reader)
        assert asked == ["/early", "/next", "/next"]
        (protocol,) = seen
        assert protocol.leftover is None and protocol.timeout_keep_alive_task is not None
        writer.close()


async def test_nothing_of_it_is_kept(seen: list[HttpProtocol]) -> None:
    async with listening(Entrance()) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", f"content-length: {2 * BODY_BYTES}") + bytes(BODY_BYTES))
        await answer(reader)
        await writer.drain()
        (protocol,) = seen
        await eventually(lambda: protocol.leftover is not None and not protocol.flow.read_paused)
        assert protocol.cycle.body == b"" and protocol.timeout_keep_alive_task is None
        writer.write(bytes(BODY_BYTES) + NEXT)
        await answer(reader)
        writer.close()


class Calls:
    """Counts what this thread calls of the modules that care for bodies that are left over and for other protocols."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def __enter__(self) -> Counter[str]:
        sys.setprofile(self._called)
        return self.counted

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in (unread_body.__file__, upgrade_offers.__file__):
            self.counted[frame.f_code.co_qualname] += 1


WHOLE = [
    NEXT,
    post("/post", "content-length: 4") + b"body",
    post("/chunks", "transfer-encoding: chunked") + chunks(b"x"),
]


@pytest.mark.parametrize("request_", WHOLE, ids=["no body", "length", "chunks"])
async def test_a_request_that_comes_whole_costs_nothing_of_this(request_: bytes, seen: list[HttpProtocol]) -> None:
    """But for the parser's and the application's own steps, each of which is looked at once, or not at all where the
    head is known already.
    """
    async with listening(Entrance()) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        with Calls() as calls:
            for _ in range(10):
                writer.write(request_)
                await answer(reader)
        assert type(seen[0].cycle) is RequestResponseCycle
        steps = {"on_message_begin", "on_message_complete", "on_response_complete", "_start_asgi_task", "_run"}
        expected = {f"Lingering.{step}": 10 for step in steps} | {"Declining.on_message_complete": 10}
        assert calls.keys() == expected.keys() and all(calls[step] <= most for step, most in expected.items())
        writer.close()


@pytest.mark.parametrize(
    "lines",
    [["connection: close"], ["expect: 100-continue"]],
    ids=["the client asked for the end", "the client waits before it sends"],
)
async def test_where_the_connection_ends_behind_the_answer_it_is_told_and_still_read(lines: list[str]) -> None:
    intake = Intake()
    async with listening(Entrance(), door(intake)) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", f"content-length: {BODY_BYTES}", *lines))
        head, _ = await answer(reader)
        assert head.startswith(b"http/1.1 200") and b"connection: close" in head
        assert await reader.read() == b"", "who reads until the end waits for it"
        writer.write(bytes(BODY_BYTES))
        await writer.drain()  # a connection that is closed would be reset
        writer.close()
        await writer.wait_closed()
    assert intake.bodies_cut == 0


async def test_a_length_beyond_the_bound_is_told_to_end_the_connection() -> None:
    async with listening(Entrance(), bounds=Bounds(bytes_max=1000)) as port, asyncio.timeout(PATIENCE_S):
        for size, is_last in ((1000, False), (1001, True)):
            reader, writer = await opened(port)
            writer.write(post("/early", f"content-length: {size}"))
            head, _ = await answer(reader)
            assert (b"connection: close" in head) == is_last
            writer.close()


async def test_many_who_are_read_on_take_turns() -> None:
    turnstile, loop, went = Turnstile(), asyncio.get_running_loop(), list[int]()
    many = 2 * LEFTOVERS_PER_TURN_MAX + 1

    def goes_on(number: int) -> None:
        went.append(number)
        if len(went) <= many:
            turnstile.wait(loop, lambda: goes_on(number))

    for number in range(many):
        turnstile.wait(loop, lambda number=number: goes_on(number))  # type: ignore[misc]
    before = 0
    while len(went) < 2 * many:
        await asyncio.sleep(0)
        assert len(went) - before <= LEFTOVERS_PER_TURN_MAX
        before = len(went)
    assert went == [*range(many)] * 2


async def test_the_request_behind_a_body_of_just_the_bound_is_not_counted_with_it() -> None:
    async with listening(Entrance(), bounds=Bounds(bytes_max=1000)) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", "content-length: 1000"))
        await answer(reader)
        writer.write(bytes(1000) + NEXT)
        await answer(reader)
        assert asked == ["/early", "/next"]
        writer.close()


async def test_no_request_begins_behind_the_one_that_was_told_to_be_the_last() -> None:
    async with listening(Entrance()) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", "content-length: 4", "expect: 100-continue"))
        assert b"connection: close" in (await answer(reader))[0]
        writer.write(b"body" + NEXT)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert asked == ["/early"]


@pytest.mark.parametrize(
    "unit", [b"1\r\nx\r\n", b"1;" + b"e" * 1000 + b"\r\nx\r\n", b"400\r\n" + bytes(1024) + b"\r\n"]
)
async def test_a_body_without_end_is_cut_by_its_bytes_on_the_line(unit: bytes) -> None:
    intake, bounds = Intake(), Bounds(bytes_max=1_000_000)
    async with listening(Entrance(), door(intake), bounds) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", "transfer-encoding: chunked"))
        await answer(reader)
        sent, lot = 0, unit * (100_000 // len(unit))
        try:
            while sent < 20_000_000:  # far more than the bound and all buffers
                writer.write(lot)
                await writer.drain()
                sent += len(lot)
        except OSError:
            pass
        assert bounds.bytes_max - len(lot) < sent < 20_000_000
        writer.close()
    assert intake.bodies_cut == 1


async def test_a_body_that_does_not_go_on_is_cut_by_the_clock() -> None:
    intake, bounds = Intake(), Bounds(seconds_max=0.2)
    async with listening(Entrance(), door(intake), bounds) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", "content-length: 100", "", "x"))
        await answer(reader)
        assert await reader.read() == b""
        writer.close()
    assert intake.bodies_cut == 1


async def test_a_rest_that_is_malformed_gets_no_second_answer() -> None:
    intake = Intake()
    async with listening(Entrance(), door(intake)) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", "transfer-encoding: chunked"))
        await answer(reader)
        writer.write(b"nonsense\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
    assert intake.heads_refused == {"malformed": 1}


async def test_who_sends_a_body_that_is_answered_takes_a_place_among_the_connections() -> None:
    intake = Intake()
    async with listening(Entrance(), door(intake, connections_max=1)) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await opened(port)
        writer.write(post("/early", "content-length: 100"))
        await answer(reader)
        other, its_writer = await opened(port)
        assert (await answer(other))[0].startswith(b"http/1.1 503")
        its_writer.close()
        writer.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_stop_waits_for_no_body_that_is_answered(
    when: str, seen: list[HttpProtocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`before`: the stop comes while the answer is not written yet."""
    may_answer, begun = asyncio.Event(), asyncio.Event()
    real = HttpProtocol._start_asgi_task

    def started(self: HttpProtocol, cycle: Any, app: Any) -> None:
        async def later(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await may_answer.wait()
            await app(scope, receive, send)

        real(self, cycle, later)

    monkeypatch.setattr(HttpProtocol, "_start_asgi_task", started)
    serving = listening(Entrance(), bounds=Bounds(seconds_max=3600))
    async with asyncio.timeout(PATIENCE_S):
        port = await serving.__aenter__()
        reader, writer = await opened(port)
        writer.write(post("/early", "content-length: 100"))
        await begun.wait()
        if when == "after":
            may_answer.set()
            await answer(reader)
        stopping = asyncio.ensure_future(serving.__aexit__(None, None, None))
        if when == "before":
            await eventually(lambda: seen[0].cycle.keep_alive is False)
            may_answer.set()
            await answer(reader)
        await stopping
        writer.close()
