"""Both ends of a connection over a real socket: what is posted is heard, in its order, and its end is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError

from backend_store.model import InvalidRequest
from backend_store.wire.sockets import ClientWire, ServerWire
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio
MANY = 1_000
BIG = b"x" * (4 * 1024 * 1024)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Servers run on uvloop, whose transports are others."""
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def connected(serving: Callable[[ServerWire], Awaitable[None]]) -> AsyncIterator[ClientWire]:
    async with (
        serve(serving, "127.0.0.1", 0, compression=None, max_size=None, create_connection=ServerWire) as server,
        connect(
            f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}",
            compression=None,
            max_size=None,
            proxy=None,
            close_timeout=1,
            create_connection=ClientWire,
        ) as client,
    ):
        yield client


async def test_messages_are_heard_in_the_order_in_which_they_were_posted() -> None:
    heard: list[bytes] = []

    async def echo(connection: ServerWire) -> None:
        connection.post(b"before anybody hears")
        await connection.hear(connection.post)

    async with connected(echo) as client:
        hearing = asyncio.create_task(client.hear(heard.append))
        sent = [b"%d" % number for number in range(MANY)]
        for message in sent:
            client.post(message)
        await eventually(lambda: len(heard) == MANY + 1, "all came back")
        assert heard == [b"before anybody hears", *sent]
        await client.close()
        await hearing


async def test_message_in_parts_is_heard_whole() -> None:
    heard: list[bytes] = []
    async with connected(lambda connection: connection.hear(heard.append)) as client:
        client.post(b"one")
        await client.send([b"t", b"w", b"o"])
        client.post(b"three")
        await eventually(lambda: len(heard) == 3, "all were heard")
        assert heard == [b"one", b"two", b"three"]


async def test_what_the_socket_does_not_take_is_counted_until_it_has_left() -> None:
    begin, heard, drained = asyncio.Event(), list[bytes](), list[int]()

    async def slow(connection: ServerWire) -> None:
        connection.transport.pause_reading()
        await begin.wait()
        connection.transport.resume_reading()
        await connection.hear(heard.append)

    async with connected(slow) as client:
        client.on_drained = lambda: drained.append(client.waiting_bytes)
        for _ in range(4):
            client.post(BIG)
        assert client.waiting_bytes > 2 * len(BIG)
        assert not drained
        begin.set()
        await eventually(lambda: len(heard) == 4 and bool(drained), "it has left")
        assert client.waiting_bytes < len(BIG)


async def test_connection_ends_with_what_its_hearer_raises() -> None:
    heard: list[bytes] = []
    faults: list[Exception] = []

    def told(message: bytes) -> None:
        heard.append(message)
        raise InvalidRequest("nothing that is said here")

    async def serving(connection: ServerWire) -> None:
        try:
            await connection.hear(told)
        except Exception as error:
            faults.append(error)

    async with connected(serving) as client:
        client.post(b"one")
        client.post(b"two")
        with pytest.raises(ConnectionClosedError):
            await client.hear(heard.append)
        client.post(b"three")  # is lost, as it would be on its way
        await eventually(lambda: len(faults) == 1, "the other side has seen it")
        assert heard == [b"one"]
        assert isinstance(faults[0], InvalidRequest)


@pytest.mark.parametrize("is_early", [True, False])
async def test_text_is_no_message(is_early: bool) -> None:
    faults: list[Exception] = []
    begin, heard = asyncio.Event(), list[bytes]()

    async def serving(connection: ServerWire) -> None:
        await begin.wait()
        try:
            await connection.hear(heard.append)
        except Exception as error:
            faults.append(error)

    async with connected(serving) as client:
        if not is_early:
            begin.set()
            client.post(b"hears")
            await eventually(lambda: heard == [b"hears"], "it hears")
        await client.send("text")
        begin.set()
        await eventually(lambda: len(faults) == 1, "it is refused")
        assert isinstance(faults[0], InvalidRequest)
