"""A socket's bytes: how much is parsed in a turn of the loop, that nothing is lost by it, and heads that open none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from push.limits import FRAMES_PER_TURN_MAX, READ_BYTES_PER_TURN_MAX
from push.protocol import FRAME_BYTES_MAX
from push.transports import websocket
from push.transports.websocket import EXTENSION, PushProtocol
from tests.support.hostile import CLOSE, PONG, TEXT, frame

pytestmark = pytest.mark.anyio

HEAD = (
    b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Transport:
    """A socket without a peer."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Session:
    """What a session is told."""

    def __init__(self) -> None:
        self.may_begin = asyncio.Event()
        self.heard: list[bytes] = []
        self.turns: list[int] = []
        """How much was heard at the end of each turn."""
        self.pings = 0

    def receive(self, data: bytes) -> None:
        self.heard.append(data)

    def turn_ended(self) -> None:
        if self.heard:
            self.turns.append(len(self.heard))

    def pinged(self) -> bool:
        self.pings += 1
        return True

    def gone(self, *, clean: bool, code: int) -> None: ...


async def nobody(scope: Scope, receive: Receive, send: Send) -> None: ...


def made(app: ASGIApp = nobody) -> tuple[PushProtocol, Transport]:
    config = uvicorn.Config(app, ws=PushProtocol, ws_max_size=FRAME_BYTES_MAX, ws_ping_interval=None, log_config=None)
    protocol, transport = PushProtocol(config=config, server_state=ServerState(), app_state={}), Transport()
    protocol.connection_made(transport)
    return protocol, transport


async def greeted(*, is_attached: bool = True) -> tuple[PushProtocol, Transport, Session]:
    """A connection after its handshake, or in the middle of it."""
    session = Session()
    if is_attached:
        session.may_begin.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await session.may_begin.wait()
        await send({"type": "websocket.accept"})
        scope["extensions"][EXTENSION].attach(session)

    protocol, transport = made(app)
    protocol.data_received(HEAD)
    await turns(5)
    return protocol, transport, session


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["messages", "control frames"])
async def test_a_turn_parses_so_many_frames_and_reads_no_more(kind: str) -> None:
    protocol, transport, session = await greeted()
    count = 3 * FRAMES_PER_TURN_MAX + 1
    protocol.data_received(frame(TEXT if kind == "messages" else PONG, b"x") * count)

    def seen() -> int:
        return len(session.heard) if kind == "messages" else session.pings

    for turn in range(1, 4):
        assert seen() == turn * FRAMES_PER_TURN_MAX and not transport.is_reading
        await turns(1)
    assert seen() == count and transport.is_reading
    assert protocol.session is not None


async def test_frames_of_many_turns_come_in_their_order_with_those_that_a_read_cut() -> None:
    protocol, transport, session = await greeted()
    sent = [str(number).encode() for number in range(3 * FRAMES_PER_TURN_MAX)]
    data = b"".join(frame(PONG if number % 7 == 0 else TEXT, one) for number, one in enumerate(sent))
    protocol.data_received(data[: len(data) - 3])
    protocol.data_received(data[len(data) - 3 :])  # the loop had it before it was told not to read
    await turns(10)
    assert session.heard == [one for number, one in enumerate(sent) if number % 7]
    assert transport.is_reading


async def test_after_much_at_once_a_socket_is_not_read_in_the_same_turn() -> None:
    protocol, transport, session = await greeted()
    protocol.data_received(frame(TEXT, bytes(READ_BYTES_PER_TURN_MAX // 4)) * 5)
    assert len(session.heard) == 5 and not transport.is_reading
    await turns(1)
    assert transport.is_reading


async def test_what_comes_before_the_answer_waits_and_is_heard_after_it() -> None:
    protocol, transport, session = await greeted(is_attached=False)
    protocol.data_received(frame(TEXT, b"early") * (FRAMES_PER_TURN_MAX + 1))
    await turns(5)
    assert not session.heard and not transport.is_reading
    session.may_begin.set()
    await turns(5)
    assert session.heard == [b"early"] * (FRAMES_PER_TURN_MAX + 1) and transport.is_reading


async def test_a_session_that_pauses_hears_nothing_more_until_it_goes_on() -> None:
    protocol, transport, session = await greeted()
    hear = session.receive

    def pausing(data: bytes) -> None:
        hear(data)
        if len(session.heard) == 2:
            protocol.pause()

    session.receive = pausing  # type: ignore[method-assign]
    protocol.data_received(frame(TEXT, b"x") * 5)
    await turns(5)
    assert len(session.heard) == 2 and not transport.is_reading
    protocol.unpause()
    await turns(2)
    assert len(session.heard) == 5 and transport.is_reading


async def test_a_session_is_told_where_its_turn_ends_and_before_each_control_frame() -> None:
    protocol, _, session = await greeted()
    protocol.data_received(frame(TEXT, b"x") * 3 + frame(PONG, b"") + frame(TEXT, b"x") * 2)
    assert session.turns == [3, 5]
    protocol.data_received(frame(TEXT, b"x") * (FRAMES_PER_TURN_MAX + 1))
    assert session.turns == [3, 5, 5 + FRAMES_PER_TURN_MAX]
    await turns(2)
    assert session.turns[-1] == 6 + FRAMES_PER_TURN_MAX


async def test_a_close_frame_waits_behind_messages_that_wait() -> None:
    protocol, _, session = await greeted()
    ended: list[int] = []
    session.turn_ended = protocol.pause  # type: ignore[method-assign]
    session.gone = lambda **how: ended.append(how["code"])  # type: ignore[method-assign]
    protocol.data_received(frame(TEXT, b"x") * 2 + frame(CLOSE, b"\x03\xe8"))
    await turns(5)
    assert len(session.heard) == 2 and not ended
    session.turn_ended = lambda: None  # type: ignore[method-assign]
    protocol.unpause()
    await turns(2)
    assert ended == [1000]


async def test_what_waits_of_a_connection_that_ended_is_let_go() -> None:
    protocol, transport, session = await greeted()
    protocol.data_received(frame(TEXT, b"x") * (2 * FRAMES_PER_TURN_MAX))
    transport.close()
    protocol.connection_lost(None)
    await turns(5)
    assert len(session.heard) == FRAMES_PER_TURN_MAX


# ------------------------------------------------------------------------------------------------------- the handshake


async def test_a_handshake_that_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_SECONDS_MAX", 0.02)
    _, attached, _ = await greeted()
    _, waiting, _ = await greeted(is_attached=False)
    async with asyncio.timeout(5):
        while not waiting.is_closed:  # noqa: ASYNC110 - what is waited for is the protocol's timer
            await asyncio.sleep(0.01)
    assert not attached.is_closed


async def test_a_head_that_the_library_refuses_is_answered_and_closed() -> None:
    protocol, transport = made()
    protocol.data_received(HEAD[:-2] + b"Cookie: " + b"a" * 9000 + b"\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ") and b'"invalid-request"' in transport.written
    assert transport.is_closed and protocol.is_refused
