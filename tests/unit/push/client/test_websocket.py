from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from push.client import ApiError, Disconnected, Forbidden, Limits, SessionEvent, Unavailable, connect
from push.client.frames import Codec, Connect, Ping, ServerPong
from push.client.model import Encoding
from push.client.transports.base import Cut
from push.client.transports.websocket import Dialer
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

LIMITS = Limits(open_timeout_s=2, close_timeout_s=1)


@asynccontextmanager
async def served(handler: Any, **options: Any) -> AsyncIterator[str]:
    options = {"subprotocols": [Subprotocol("pushq.v1.json"), Subprotocol("pushq.v1.msgpack")]} | options
    async with serve(handler, "127.0.0.1", 0, compression=None, **options) as server:
        yield f"http://127.0.0.1:{port_of(server)}"


def port_of(server: Server) -> int:
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port


def dialer(url: str, encoding: Encoding = "msgpack") -> Dialer:
    return Dialer(url, Codec(encoding), LIMITS)


async def answer_pings(connection: ServerConnection) -> None:
    async for data in connection:
        is_text = isinstance(data, str)
        decode, encode = (msgspec.json.decode, msgspec.json.encode) if is_text else _PACK
        frames = decode(data)
        for frame in frames if isinstance(frames, list) else [frames]:
            if frame["type"] == "ping":
                await connection.send(encode({"type": "pong"}), text=is_text)


_PACK: tuple[Any, Any] = (msgspec.msgpack.decode, msgspec.msgpack.encode)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_frames_go_both_ways(encoding: Encoding) -> None:
    async with served(answer_pings) as url:
        transport = await dialer(url, encoding)(None)
        await transport.send([Connect(id=1), Ping(), Ping()])
        assert [await transport.receive(), await transport.receive()] == [[ServerPong()], [ServerPong()]]
        await transport.close()
        with pytest.raises(Cut):
            await transport.receive()


async def test_a_server_that_takes_the_connection_and_is_slow_to_answer_is_waited_for_longer_than_an_absent_one() -> (
    None
):
    async def begin(socket: ServerConnection) -> None:
        frame = msgspec.msgpack.decode(await socket.recv())
        await socket.send(msgspec.msgpack.encode({"type": "connected", "id": frame["id"], "session": "s1"}))
        await socket.wait_closed()

    async def slow(socket: ServerConnection, request: Request) -> None:
        await asyncio.sleep(0.2)

    limits = Limits(open_timeout_s=0.05, open_patience_s=PATIENCE_S)
    async with served(begin, process_request=slow) as url, connect(url, "k", limits=limits) as pushq:
        assert pushq.session == "s1"


async def test_a_server_that_never_answers_is_told_from_an_absent_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        limits = Limits(open_timeout_s=0.05, open_patience_s=0.2)
        with pytest.raises(
            Unavailable, match=r"no session within 0\.\d s: the server accepts the connection but does not"
        ):
            async with connect(f"http://127.0.0.1:{silent.getsockname()[1]}", "k", limits=limits):
                pytest.fail("must not open")


async def test_a_tunnel_with_nobody_behind_it_is_no_server() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as tunnel:
        limits = Limits(open_timeout_s=0.1, open_patience_s=2 * PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Unavailable, match="no connection to"):
                async with connect(f"http://127.0.0.1:{tunnel.sockets[0].getsockname()[1]}", "k", limits=limits):
                    pytest.fail("must not open")


async def test_the_close_code_and_reason_come_with_the_cut() -> None:
    async def refuse(connection: ServerConnection) -> None:
        await connection.close(4501, "who are you")

    async with served(refuse) as url:
        transport = await dialer(url)(None)
        with pytest.raises(Cut, match="who are you") as caught:
            await transport.receive()
    assert caught.value.code == 4501


async def test_a_connection_that_was_aborted_says_nothing_to_the_server() -> None:
    seen: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def watch(connection: ServerConnection) -> None:
        await connection.wait_closed()
        seen.set_result(connection.close_code)

    async with served(watch) as url:
        (await dialer(url)(None)).abort()
        assert await asyncio.wait_for(seen, 2) == 1006


async def test_unreadable_bytes_are_a_cut() -> None:
    async def babble(connection: ServerConnection) -> None:
        await connection.send(b"\xc1")
        await connection.wait_closed()

    async with served(babble) as url:
        transport = await dialer(url)(None)
        with pytest.raises(Cut, match="not msgpack"):
            await transport.receive()
        transport.abort()


async def test_an_overloaded_server_is_a_cut_with_the_time_it_asks_for() -> None:
    async with served(answer_pings, process_request=_answer(HTTPStatus.SERVICE_UNAVAILABLE)) as url:
        with pytest.raises(Cut, match="503") as caught:
            await dialer(url)(None)
    assert caught.value.retry_s == 7


async def test_what_an_overloaded_server_says_comes_with_the_cut() -> None:
    said = b'{"status": 503, "code": "overloaded", "detail": "1 connection is open", "retry_after_ms": 6500}'
    async with served(answer_pings, process_request=_answer(HTTPStatus.SERVICE_UNAVAILABLE, said)) as url:
        with pytest.raises(Cut, match="1 connection is open") as caught:
            await dialer(url)(None)
    assert caught.value.problem is not None
    assert (caught.value.problem.code, caught.value.retry_s) == ("overloaded", 6.5)


async def test_a_foreign_origin_is_no_reason_to_try_again() -> None:
    async with served(answer_pings, process_request=_answer(HTTPStatus.FORBIDDEN)) as url:
        with pytest.raises(Forbidden):
            await dialer(url)(None)


async def test_an_address_that_is_no_pushq_is_no_reason_to_try_again() -> None:
    async with served(answer_pings, process_request=_answer(HTTPStatus.NOT_FOUND)) as url:
        with pytest.raises(ApiError, match="not-pushq"):
            await dialer(url)(None)


@pytest.mark.parametrize("where", ["https://login.example/?next=secret", "/elsewhere", "ws://127.0.0.1:1/v1/ws"])
async def test_a_redirect_is_not_followed_and_its_goal_is_named(where: str) -> None:
    def away(connection: ServerConnection, request: Request) -> Response:
        return Response(HTTPStatus.FOUND, "Found", Headers([("Location", where), ("Content-Length", "0")]), b"")

    async with served(answer_pings, process_request=away) as url:
        with pytest.raises(ApiError, match=f"not-pushq.*redirects to .*{where.partition('?')[0]}") as caught:
            await dialer(url)(None)
    assert "secret" not in str(caught.value)


async def test_whoever_answers_in_place_of_a_server_that_is_away_does_not_end_the_session() -> None:
    answers = [None, HTTPStatus.NOT_FOUND, HTTPStatus.OK, None]
    sessions: list[ServerConnection] = []
    events: list[SessionEvent] = []

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        status = answers.pop(0)
        return None if status is None else Response(status, status.phrase, Headers([("Content-Length", "0")]), b"")

    async def begin(socket: ServerConnection) -> None:
        frame = msgspec.msgpack.decode(await socket.recv())
        await socket.send(msgspec.msgpack.encode({"type": "connected", "id": frame["id"], "session": "s1"}))
        sessions.append(socket)
        await socket.wait_closed()

    quick = Limits(backoff_base_s=0.001, close_timeout_s=1)
    async with (
        served(begin, process_request=answer) as url,
        connect(url, "k", limits=quick, on_event=events.append),
    ):
        await eventually(lambda: sessions)
        sessions[0].transport.abort()
        await eventually(lambda: len(sessions) == 2)
    reasons = [event.reason for event in events if isinstance(event, Disconnected)]
    assert ["the WebSocket was refused with 404" in reasons[1], "with 200" in reasons[2]] == [True, True]


async def test_a_server_without_the_subprotocol_is_refused() -> None:
    async with served(answer_pings, subprotocols=None) as url:
        with pytest.raises(ApiError, match="does not speak"):
            await dialer(url)(None)


async def test_nobody_listening_is_a_cut() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Cut, match="no connection"):
            await dialer(f"http://127.0.0.1:{taken.getsockname()[1]}")(None)


async def test_every_address_of_a_name_is_tried_and_each_call_begins_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1", "127.0.0.3")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    dial = dialer("http://many.test:1")
    starts = [[address["host"] for address in await dial._find()] for _ in range(4)]
    assert [hosts[0] for hosts in starts] == ["127.0.0.2", "127.0.0.1", "127.0.0.3", "127.0.0.2"]
    assert all(sorted(hosts) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"] for hosts in starts)
    assert asked == ["many.test"] * 4


async def test_a_dead_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(answer_pings) as url:
        port = int(url.rsplit(":", 1)[1])

        async def addresses() -> list[dict[str, Any]]:
            return [{"host": "127.0.0.9", "port": port}, {"host": "127.0.0.1", "port": port}]

        dial = dialer(f"http://localhost:{port}")
        monkeypatch.setattr(dial, "_find", addresses)
        transport = await dial(None)
        await transport.close()


def _answer(status: HTTPStatus, body: bytes = b"") -> Any:
    def process(_: ServerConnection, __: Request) -> Response:
        headers = Headers({"Retry-After": "7", "Content-Length": str(len(body))})
        return Response(status.value, status.phrase, headers, body)

    return process
