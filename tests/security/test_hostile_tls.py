"""TLS from somebody who means no good: handshakes that do not come, half ones, and bytes that are none."""

from __future__ import annotations

import asyncio
import gc
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.listener import accept_limit as doors
from gateway.listener import server
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.certificates import Certificates, Files
from gateway.listener.proxy_gate import Entrance
from push.intake import Intake
from tests.support.patience import eventually
from tests.support.tls import Authority
from tests.support.told_client import listening
from throttling.gcra import NS_PER_S

pytestmark = pytest.mark.anyio

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How a client begins a handshake."""


@pytest.fixture(params=[{"use_uvloop": True}, {"use_uvloop": False}], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A server runs on uvloop, whose TLS is another one."""
    return "asyncio", request.param


def entrance(authority: Authority) -> Entrance:
    pair = authority.issue()
    return Entrance(Certificates(Files(pair.certificate, pair.key, None)))


async def answer(port: int, sent: bytes) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("beginning", [b"", HELLO, HELLO[:3]], ids=["nothing", "half a hello", "three bytes"])
async def test_a_handshake_that_does_not_come_ends_by_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(server, "TLS_HANDSHAKE_SECONDS_MAX", 0.3)
    async with listening(entrance(Authority(tmp_path / "ca"))) as port:
        assert await answer(port, beginning) == b""


async def test_what_is_no_handshake_ends_its_own_connection_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    async with listening(entrance(authority)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.context())
        for garbage in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\x80" * 64):
            assert b"HTTP/1.1" not in await answer(port, garbage)
        writer.write(b"GET /still HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_knows_another_authority_gets_no_further_than_the_handshake(tmp_path: Path) -> None:
    async with listening(entrance(Authority(tmp_path / "ca"))) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=Authority(tmp_path / "other").context())


REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def answered(port: int, context: ssl.SSLContext, address: str) -> bytes:
    """The answer to a request of an address; nothing where the handshake is cut."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1", local_addr=(address, 0)
        )
    except (ConnectionResetError, ssl.SSLError):
        return b""
    writer.write(REQUEST)
    with suppress(ConnectionResetError):
        return await reader.read()
    return b""


@pytest.mark.parametrize("beginning", [b"", HELLO], ids=["nothing", "half a hello"])
async def test_handshakes_that_are_not_done_take_the_room_of_their_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    """They were counted when they were done: of those that never are an address could have as many as it liked."""
    monkeypatch.setattr(doors, "UNTOLD_HANDSHAKES_MAX", 2)
    authority, intake = Authority(tmp_path / "ca"), Intake()
    door = AcceptLimit(intake, connections_max=10, per_address_max=3, clock_ns=lambda: NS_PER_S)
    context = authority.context()
    async with listening(entrance(authority), door) as port, asyncio.timeout(10):
        half_open = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(beginning)
            half_open.append((reader, writer))
        await eventually(lambda: not door.wait("127.0.0.1"))
        refused = await answered(port, context, "127.0.0.1")
        assert refused.startswith(b"HTTP/1.1 503 ") and b"limits.open_per_address_max is 3" in refused
        assert intake.refused == {("connection", "address"): 1}
        reader, writer = await asyncio.open_connection("127.0.0.1", port)  # one that is to be told, and does not greet
        half_open.append((reader, writer))
        await eventually(lambda: door._told.used == 1)
        assert await answered(port, context, "127.0.0.1") == b"", "only so many are told"
        assert intake.refused == {("connection", "address"): 2}
        assert (await answered(port, context, "127.0.0.2")).startswith(b"HTTP/1.1 200 ")
        for _, writer in half_open:
            writer.close()

        async def is_served() -> bool:
            return (await answered(port, context, "127.0.0.1")).startswith(b"HTTP/1.1 200 ")

        await eventually(is_served)
        assert door.wait("127.0.0.1"), "all that went left their places"


async def test_connections_above_the_pace_are_cut_before_their_handshake_costs_anything(tmp_path: Path) -> None:
    authority, intake = Authority(tmp_path / "ca"), Intake(accepts_per_s=1, accepts_burst=1)
    door = AcceptLimit(intake, connections_max=100, clock_ns=lambda: NS_PER_S)  # so 10 connections, 9 of an address
    context = authority.context()
    async with listening(entrance(authority), door) as port, asyncio.timeout(10):
        answers = [await answered(port, context, "127.0.0.1") for _ in range(12)]
        assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 9 + [b""] * 3
        assert intake.refused == {("connection", "pace"): 3}
        assert (await answered(port, context, "127.0.0.2")).startswith(b"HTTP/1.1 200 ")
        await eventually(lambda: door.open == 0)


async def test_handshakes_of_an_address_without_room_count_as_well(tmp_path: Path) -> None:
    authority, intake = Authority(tmp_path / "ca"), Intake(accepts_per_s=1, accepts_burst=1)
    door = AcceptLimit(intake, connections_max=100, per_address_max=1, clock_ns=lambda: NS_PER_S)
    context = authority.context()
    async with listening(entrance(authority), door) as port, asyncio.timeout(10):
        held = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        answers = [await answered(port, context, "127.0.0.1") for _ in range(10)]
        assert [answer[:12] for answer in answers] == [b"HTTP/1.1 503"] * 8 + [b""] * 2
        assert intake.refused == {("connection", "address"): 8, ("connection", "pace"): 2}
        held[1].close()


async def test_a_handshake_that_fails_leaves_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TLS_HANDSHAKE_SECONDS_MAX", 0.2)
    authority = Authority(tmp_path / "ca")
    door = AcceptLimit(Intake(), connections_max=10, per_address_max=2, clock_ns=lambda: NS_PER_S)
    async with listening(entrance(authority), door) as port, asyncio.timeout(10):
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"", HELLO, b"\x80" * 64):
            assert b"HTTP/1.1" not in await answer(port, sent)
        assert (await answered(port, authority.context(), "127.0.0.1")).startswith(b"HTTP/1.1 200 ")
        await eventually(lambda: door.open == 0)


@pytest.mark.parametrize("beginning", [b"", HELLO], ids=["nothing", "half a hello"])
async def test_a_server_that_stops_waits_for_no_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(server, "ANSWERS_SECONDS_MAX", 60)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    door = AcceptLimit(Intake(), connections_max=10)
    async with asyncio.timeout(10):
        async with listening(entrance(Authority(tmp_path / "ca")), door) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(beginning)
            await eventually(lambda: door.open == 1)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        await eventually(lambda: door.open == 0)
    writer.close()
    gc.collect()
    assert faults == []
