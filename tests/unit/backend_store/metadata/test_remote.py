"""A metadata service behind a socket that fails in every way: nobody waits longer than they said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from backend_store.metadata import remote as remotes
from backend_store.metadata.local import LocalMetadata
from backend_store.metadata.operations import GetTenant, PutTenant
from backend_store.metadata.remote import RemoteMetadata
from backend_store.metadata.server import serve_metadata
from backend_store.model import OutcomeUnknown, Overloaded, PushqError, QueueConfig, Unavailable
from backend_store.wire.frames import SUBPROTOCOL, Ask, Hello, Refused, Watch, from_client, from_server, pack, raw
from tests.support.metadata import SECRET, local_service
from tests.support.server import free_port

pytestmark = pytest.mark.anyio


def raw_socket(port: int) -> connect:
    return connect(
        f"ws://127.0.0.1:{port}",
        additional_headers={"Authorization": f"Bearer {SECRET}"},
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        proxy=None,
    )


async def until_it_fails(ask: Callable[[], Awaitable[Any]]) -> None:
    """Asks until the end of a connection is known here."""
    async with asyncio.timeout(5):
        while True:
            await ask()


@contextlib.asynccontextmanager
async def served(service: LocalMetadata, port: int = 0) -> AsyncIterator[int]:
    server = await serve_metadata(service, SECRET, "127.0.0.1", port)
    try:
        yield next(iter(server.sockets)).getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def played(
    answer: Callable[[ServerConnection, Any], Any],
) -> AsyncIterator[RemoteMetadata]:
    """A client of a server that says hello and then does as the test likes."""

    async def handle(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.recv()
            await connection.send(pack(Hello(1, "metadata")))
            async for data in connection:
                await answer(connection, from_client(data))

    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        remote = RemoteMetadata(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", SECRET)
        try:
            assert await remote.connected(5)
            yield remote
        finally:
            await remote.close()


async def silent(connection: ServerConnection, frame: Any) -> None:
    """Says nothing."""


async def test_a_connection_without_the_secret_is_refused() -> None:
    async with served(local_service()) as port:
        with pytest.raises(InvalidStatus, match="401"):
            await connect(f"ws://127.0.0.1:{port}", proxy=None)
        remote = RemoteMetadata(f"ws://127.0.0.1:{port}", "a guess")
        try:
            assert not await remote.connected(0.2)
            with pytest.raises(Unavailable, match="401"):
                await remote.get_tenant("default")
        finally:
            await remote.close()


async def test_a_request_without_a_connection_fails_at_once() -> None:
    remote = RemoteMetadata(f"ws://127.0.0.1:{free_port()}", SECRET)
    try:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(remote.create_queue("default", "q", QueueConfig()), 0.5)
    finally:
        await remote.close()


async def test_a_look_up_that_is_not_answered_is_unavailable_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "READ_MS_MAX", 50)
    async with played(silent) as remote:
        with pytest.raises(Unavailable, match="50 ms"):
            await remote.get_tenant("default")
        assert not remote._asked


async def test_a_change_that_is_not_answered_may_have_been_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "WRITE_MS_MAX", 50)
    async with played(silent) as remote:
        with pytest.raises(OutcomeUnknown, match="may have been made"):
            await remote.put_tenant("acme")


async def test_a_connection_lost_under_way_is_told_by_kind_of_request() -> None:
    async def hang_up(connection: ServerConnection, frame: Any) -> None:
        await asyncio.sleep(0.02)
        connection.transport.abort()

    async with played(hang_up) as remote:
        with pytest.raises(Unavailable):
            await remote.get_tenant("default")
        assert await remote.connected(5)
        with pytest.raises(OutcomeUnknown):
            await remote.put_tenant("acme")


async def test_one_request_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "REQUESTS_WAITING_MAX", 2)
    async with played(silent) as remote:
        waiting = [asyncio.create_task(remote.get_tenant("default")) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="2 requests are already waiting"):
            await remote.get_tenant("default")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_silent_watch_is_lost_and_the_connection_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "SILENCE_SECONDS_MAX", 0.1)
    async with played(silent) as remote:
        with pytest.raises(Unavailable, match="sent nothing"):
            await anext(remote.watch(None))
        assert await remote.connected(5), "it connects again by itself"


async def test_an_answer_that_drips_does_not_pass_for_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "SILENCE_SECONDS_MAX", 0.2)

    async def drip(connection: ServerConnection, frame: Any) -> None:
        if isinstance(frame, Watch):
            connection.transport.write(b"\x82\x7e\x40\x00")  # a frame of 16 KiB, of which bytes come one by one
            for _ in range(1000):
                connection.transport.write(b"x")
                await asyncio.sleep(0.02)

    async with played(drip) as remote:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Unavailable):
            await anext(remote.watch(None))
        assert loop.time() - began < 10, "it drips for 20 s"


async def test_after_a_restart_of_the_service_it_answers_again() -> None:
    service, port = local_service(), free_port()
    async with served(service, port):
        remote = RemoteMetadata(f"ws://127.0.0.1:{port}", SECRET)
        assert await remote.connected(5)
    try:
        with pytest.raises(Unavailable):
            await until_it_fails(lambda: remote.get_tenant("default"))
        async with served(service, port):
            assert await remote.connected(5)
            assert (await remote.get_tenant("default")).value is not None
    finally:
        await remote.close()


async def test_the_watch_ends_with_the_connection() -> None:
    async with served(local_service()) as port:
        remote = RemoteMetadata(f"ws://127.0.0.1:{port}", SECRET)
        assert await remote.connected(5)
        watch = remote.watch(None)
        await anext(watch)
    try:
        with pytest.raises(Unavailable):
            await until_it_fails(lambda: anext(watch))
    finally:
        await remote.close()


# ------------------------------------------------------------------------------------------------------- the server


async def test_what_is_asked_for_too_late_is_not_begun() -> None:
    service = local_service()
    async with served(service) as port, raw_socket(port) as socket:
        await socket.send(pack(Hello(1, "metadata")))
        await socket.recv()
        await socket.send(pack(Ask(1, 0, raw(PutTenant("late")))))
        await socket.send(pack(Ask(2, 5000, raw(PutTenant("in-time")))))
        answer = from_server(await socket.recv())
        assert getattr(answer, "number", None) == 2
    assert "late" not in service._metadata.tenants and "in-time" in service._metadata.tenants


async def test_a_write_is_finished_though_nobody_waits_any_more() -> None:
    service = local_service()
    may_write, write = asyncio.Event(), service._metadata._write

    async def slow(rows: Any) -> None:
        await may_write.wait()
        await write(rows)

    service._metadata._write = slow
    async with served(service) as port:
        async with raw_socket(port) as socket:
            await socket.send(pack(Hello(1, "metadata")))
            await socket.recv()
            await socket.send(pack(Ask(1, 5000, raw(PutTenant("acme")))))
            await socket.send(pack(Ask(2, 5000, raw(GetTenant("default")))))
            assert getattr(from_server(await socket.recv()), "number", None) == 2  # the first one has begun
        may_write.set()
        async with asyncio.timeout(5):
            while "acme" not in service._metadata.tenants:  # noqa: ASYNC110 - the service makes it true
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "frame",
    ["text", b"\xc1", pack(["nothing"]), pack(Hello(99, "metadata")), pack(Ask(1, 1000, raw(GetTenant("default"))))],
)
async def test_who_does_not_say_hello_first_is_cut_off(frame: str | bytes) -> None:
    async with served(local_service()) as port, raw_socket(port) as socket:
        await socket.send(frame)
        with pytest.raises(ConnectionClosed):
            await until_it_fails(socket.recv)


async def test_a_request_that_does_not_parse_is_refused_and_the_connection_stays() -> None:
    async with served(local_service()) as port, raw_socket(port) as socket:
        await socket.send(pack(Hello(1, "metadata")))
        await socket.recv()
        for number, what in enumerate([["no_such_operation"], ["get_queue", 1, 2], "text"]):
            await socket.send(pack(Ask(number, 1000, raw(what))))
            answer = from_server(await socket.recv())
            assert isinstance(answer, Refused) and (answer.number, answer.code) == (number, "invalid-request")


async def test_a_mistake_of_the_service_is_told_and_does_not_end_it() -> None:
    service = local_service()

    async def broken(name: str) -> Any:
        raise RuntimeError("a mistake")

    service.get_tenant = broken  # type: ignore[method-assign]
    async with served(service) as port:
        remote = RemoteMetadata(f"ws://127.0.0.1:{port}", SECRET)
        try:
            assert await remote.connected(5)
            with pytest.raises(PushqError, match="internal error of the metadata service; see its log") as raised:
                await remote.get_tenant("default")
            assert raised.value.code == "internal"
            assert (await remote.get_key("k")).value is None
        finally:
            await remote.close()
