"""Both ends of a connection over a real socket: what is posted is heard, in its order, and its end is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError

from backend_store.model import InvalidRequest
from backend_store.wire.sockets import HEARD_BYTES_PER_TURN, PARTS_MAX, ClientWire, ServerWire
from backend_store.wire.tls import BothSides
from tests.support.patience import eventually
from tests.support.shards import tls_of
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio
MANY = 1_000
PARTS = 8
SILENCE_S = 0.4
_TLS: list[BothSides | None] = [None]
"""What both ends speak of now."""
BIG = b"x" * (4 * 1024 * 1024)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Servers run on uvloop, whose transports are others."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> BothSides:
    return tls_of(Authority(tmp_path_factory.mktemp("tls")), "a")


@pytest.fixture(params=[False, True], ids=["plain", "tls"], autouse=True)
def tls(request: pytest.FixtureRequest, trusted: BothSides) -> Iterator[None]:
    """Between machines there is TLS, whose transports count and pause otherwise."""
    _TLS[0] = trusted if request.param else None
    yield
    _TLS[0] = None


@asynccontextmanager
async def connected(serving: Callable[[ServerWire], Awaitable[None]], **options: Any) -> AsyncIterator[ClientWire]:
    """`options`: of the client."""
    tls = _TLS[0]
    async with (
        serve(
            serving,
            "127.0.0.1",
            0,
            ssl=None if tls is None else tls.server,
            compression=None,
            max_size=None,
            create_connection=ServerWire,
        ) as server,
        connect(
            f"{'ws' if tls is None else 'wss'}://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}",
            compression=None,
            max_size=None,
            proxy=None,
            ssl=None if tls is None else tls.client,
            close_timeout=1,
            create_connection=ClientWire,
            **options,
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


async def test_message_in_endless_parts_ends_the_connection() -> None:
    """Empty parts count for nothing in the bound of a message's bytes."""
    faults: list[Exception] = []

    async def serving(connection: ServerWire) -> None:
        try:
            await connection.hear(lambda message: None)
        except Exception as error:
            faults.append(error)

    async with connected(serving) as client:
        client.protocol.send_binary(b"", fin=False)
        for _ in range(PARTS_MAX):
            client.protocol.send_continuation(b"", fin=False)
        client.send_data()
        await eventually(lambda: len(faults) == 1, "it is refused")
        assert isinstance(faults[0], InvalidRequest)


async def test_one_who_says_much_leaves_a_turn_to_the_others() -> None:
    """A socket that is full is read anew and anew before anybody else has a turn."""
    begin, heard, turns = asyncio.Event(), [0], list[int]()
    loop = asyncio.get_running_loop()

    def told(message: bytes) -> None:
        if len(turns) == 0 or turns[-1] < 0:
            turns.append(0)
            loop.call_soon(lambda: turns.append(-1))
        turns[-1] += len(message)
        heard[0] += len(message)

    async def slow(connection: ServerWire) -> None:
        connection.transport.pause_reading()
        await begin.wait()
        connection.transport.resume_reading()
        await connection.hear(told)

    async with connected(slow) as client:
        for _ in range(4 * MANY):
            client.post(BIG[:4096])
        begin.set()
        await eventually(lambda: heard[0] == 4 * MANY * 4096, "all was heard")
        assert max(turns) <= 4 * HEARD_BYTES_PER_TURN


async def test_who_reads_nothing_more_is_taken_for_gone() -> None:
    """The library's pings wait until there is room for them, without end; so does its goodbye."""
    gone = asyncio.Event()

    async def stopped(connection: ServerWire) -> None:
        connection.transport.pause_reading()
        await gone.wait()
        connection.transport.abort()

    async with connected(stopped, ping_interval=0.2, ping_timeout=0.2) as client:
        for _ in range(4):
            client.post(BIG)
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(client.hear(lambda message: None), 10)
        gone.set()


async def test_goodbye_to_who_reads_nothing_more_ends() -> None:
    gone = asyncio.Event()

    async def stopped(connection: ServerWire) -> None:
        connection.transport.pause_reading()
        await gone.wait()
        connection.transport.abort()

    async with connected(stopped, ping_interval=None, ping_timeout=0.2) as client:
        for _ in range(4):
            client.post(BIG)
        await asyncio.wait_for(client.close(), 10)
        gone.set()


async def test_who_reads_slowly_is_not_taken_for_gone() -> None:
    """As long as something leaves, or comes, nobody is cut; the buffer of TLS does not show all that leaves."""
    heard: list[bytes] = []

    async def slow(connection: ServerWire) -> None:
        hearing = asyncio.create_task(connection.hear(heard.append))
        while len(heard) < PARTS:
            connection.post(b"still here")
            known = len(heard)
            connection.transport.pause_reading()
            await asyncio.sleep(SILENCE_S / 4)
            connection.transport.resume_reading()
            await eventually(partial(_grown, heard, known), look_s=0.001)
        await hearing

    async with connected(slow, ping_interval=None, ping_timeout=SILENCE_S) as client:
        hearing = asyncio.create_task(client.hear(lambda message: None))
        for _ in range(PARTS):
            client.post(BIG)
        await client.drain()
        await eventually(lambda: len(heard) == PARTS, "all was heard")
        await client.close()
        await hearing


def _grown(heard: list[bytes], known: int) -> bool:
    return len(heard) > known
