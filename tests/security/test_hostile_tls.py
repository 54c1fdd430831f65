"""TLS from somebody who means no good: handshakes that do not come, half ones, and bytes that are none."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway import listeners
from gateway.certificates import Certificates, Files
from gateway.entrance import Entrance
from tests.support.tls import Authority
from tests.support.told_client import listening

pytestmark = pytest.mark.anyio

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How a client begins a handshake."""


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
    monkeypatch.setattr(listeners, "TLS_HANDSHAKE_SECONDS_MAX", 0.3)
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
