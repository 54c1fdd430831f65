"""The gate in front of HTTP, over real sockets: who may say whom it speaks for, and what happens to the others."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_socket

from gateway.listener import proxy_gate as entrances
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.proxy_gate import Entrance
from gateway.listener.proxy_header import SIGNATURE, networks
from push.intake import Intake
from tests.support.told_client import asked, listening

REQUEST = b"GET /x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
LINE = b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 443\r\n"
ADDRESSES = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 51000, 443)
BINARY = SIGNATURE + struct.pack(">BBH", 0x21, 0x11, len(ADDRESSES)) + ADDRESSES
LOCAL = SIGNATURE + struct.pack(">BBH", 0x20, 0, 0)

pytestmark = pytest.mark.anyio


def trusting(*texts: str) -> Entrance:
    return Entrance(trusted=networks(texts))


async def exchange(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def facts(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    return dict(json.loads(body))


@pytest.mark.parametrize("header", [LINE, BINARY])
async def test_the_client_is_whom_a_trusted_proxy_names(header: bytes) -> None:
    async with listening(trusting("127.0.0.0/8")) as port:
        assert facts(await exchange(port, header + REQUEST))["client"] == ["192.0.2.7", 51000]


async def test_a_header_may_come_byte_by_byte() -> None:
    async with listening(trusting("127.0.0.1")) as port:
        answer = await exchange(port, *(bytes([byte]) for byte in BINARY), REQUEST)
        assert facts(answer)["client"] == ["192.0.2.7", 51000]


async def test_a_websocket_keeps_the_address_of_its_upgrade() -> None:
    async with listening(trusting("127.0.0.1")) as port:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(BINARY)
        sock.setblocking(False)
        async with connect_socket(f"ws://127.0.0.1:{port}/v1/ws", sock=sock) as ws:
            assert json.loads(await ws.recv())["client"] == ["192.0.2.7", 51000]


async def test_a_proxy_that_speaks_for_itself_is_the_client() -> None:
    async with listening(trusting("127.0.0.1")) as port:
        assert facts(await exchange(port, LOCAL + REQUEST))["client"][0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (REQUEST, "missing"),
        (b"\x16\x03\x01\x02\x00", "missing"),
        (b"PROXY TCP4 nobody 10.0.0.1 1 2\r\n" + REQUEST, "malformed"),
        (SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 60000), "malformed"),
    ],
)
async def test_a_trusted_proxy_without_a_good_header_gets_no_answer(sent: bytes, reason: str) -> None:
    entrance = trusting("127.0.0.1")
    async with listening(entrance) as port:
        assert await exchange(port, sent) == b""
    assert entrance.refused == {reason: 1}


@pytest.mark.parametrize("header", [LINE, BINARY])
async def test_a_header_from_anybody_else_is_refused(header: bytes) -> None:
    entrance = trusting("10.0.0.0/8")
    async with listening(entrance) as port:
        assert await exchange(port, header + REQUEST) == b""
        assert facts(await exchange(port, REQUEST))["client"][0] == "127.0.0.1"
    assert entrance.refused == {"untrusted": 1}


@pytest.mark.parametrize("header", [LINE, BINARY])
async def test_without_trusted_proxies_a_header_is_no_http(header: bytes) -> None:
    async with listening(Entrance()) as port:
        assert (await exchange(port, header + REQUEST)).startswith(b"HTTP/1.1 400 ")


async def test_forwarded_headers_change_nothing_even_from_a_trusted_proxy() -> None:
    async with listening(trusting("127.0.0.1")) as port:
        told = facts(await exchange(port, BINARY + REQUEST))
        assert told["forwarded"] == ["203.0.113.9"] and told["client"] == ["192.0.2.7", 51000]


async def test_a_header_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrances, "PROXY_HEADER_SECONDS_MAX", 0.05)
    entrance = trusting("127.0.0.1")
    async with listening(entrance) as port:
        assert await exchange(port, BINARY[:5]) == b""
    assert entrance.refused == {"late": 1}


async def test_whoever_says_nothing_at_all_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrances, "REQUEST_HEAD_SECONDS_MAX", 0.05)
    async with listening(trusting("10.0.0.1")) as port:
        assert await exchange(port) == b""


async def test_behind_the_gate_there_may_be_no_room_and_then_nothing_is_asked() -> None:
    full = AcceptLimit(Intake(), connections_max=0)
    async with listening(trusting("127.0.0.1"), full) as port:
        answer = await exchange(port, BINARY + REQUEST)
    assert answer.startswith(b"HTTP/1.1 503 ") and not asked


async def test_a_shutdown_does_not_wait_for_those_at_the_gate() -> None:
    async with listening(trusting("127.0.0.1")) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
    async with asyncio.timeout(1):
        assert await reader.read() == b""
    writer.close()
