"""A head that comes again on its connection means what it meant the first time, and is not parsed again."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.limits import REMEMBERED_HEAD_BYTES_MAX
from gateway.listener.certificates import Certificates, Files
from gateway.listener.head_cache import Head
from gateway.listener.proxy_gate import Entrance
from gateway.listener.proxy_header import networks
from gateway.listener.server import HttpProtocol
from push.intake import Intake
from tests.support.patience import PATIENCE_S
from tests.support.tls import Authority
from tests.unit.gateway.listener.test_server import serving

pytestmark = pytest.mark.anyio


def post(body: bytes, *lines: str, path: str = "/q?a=1", version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: x", *lines, f"Content-Length: {len(body)}", "X-Last: y", "", ""]
    return "\r\n".join(head).encode() + body


async def telling(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was told, and leaves its marks in the scope, as frameworks do."""
    message = {"body": b"", "more_body": True}
    while message["more_body"]:
        part = await receive()
        message = {"body": message["body"] + part["body"], "more_body": part["more_body"]}
    names = ("method", "path", "raw_path", "query_string", "http_version", "headers", "state", "scheme")
    body = repr(([scope[name] for name in names], message)).encode()
    scope["headers"].append((b"mark", b""))
    scope["path"] = scope["state"]["mark"] = "marked"
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """To a server of its own."""
    async with serving(Intake(), answers=telling) as address, asyncio.timeout(PATIENCE_S), connected(address) as both:
        yield both


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    yield reader, writer
    writer.close()
    await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"100 Continue" in head:
        head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


async def facts(reader: asyncio.StreamReader) -> tuple[list[tuple[str, str]], bytes]:
    """The headers that the application was told, and the body."""
    values, message = ast.literal_eval((await answer(reader)).decode())
    return [(name.decode(), value.decode()) for name, value in values[5]], message["body"]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The paths of heads that were parsed."""
    found: list[bytes] = []
    told = HttpProtocol.on_url
    monkeypatch.setattr(HttpProtocol, "on_url", lambda self, url: (found.append(url), told(self, url))[1])
    return found


OTHERS: list[bytes] = [
    post(b"body"),
    post(b"a longer body"),
    post(b""),
    post(b"line\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
    post(b"body", path="/other"),
    post(b"body", "X-More: 1"),
    post(b"body", "Expect: 100-continue"),
    post(b"body", "X-Long: Content-Length: 3"),
    post(b"body").replace(b"POST", b"GET"),
    b"GET /q HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    post(b"body").replace(b"Content-Length: 4", b"content-length:4"),
    post(b"body").replace(b"Content-Length: 4", b"Content-Length: 04"),
]


@pytest.mark.parametrize("other", OTHERS)
async def test_every_request_of_a_connection_is_told_as_on_one_of_its_own(other: bytes) -> None:
    sent = [post(b"body"), post(b"body"), other, other, other, post(b"bodies"), other, post(b"body")]
    async with serving(Intake(), answers=telling) as address, asyncio.timeout(PATIENCE_S):
        told_alone = {}
        for request in dict.fromkeys(sent):
            async with connected(address) as (reader, writer):
                writer.write(request)
                told_alone[request] = await answer(reader)
        alone = [told_alone[request] for request in sent]
        async with connected(address) as (reader, writer):
            for request, told in zip(sent, alone, strict=True):
                writer.write(request)
                assert await answer(reader) == told
        async with connected(address) as (reader, writer):
            writer.write(b"".join(sent))  # ahead of the answers
            assert [await answer(reader) for _ in sent] == alone


async def test_a_head_is_parsed_until_it_is_known_and_again_after_another(parsed: list[bytes]) -> None:
    async with connection() as (reader, writer):
        for number in range(10):
            writer.write(post(b"x" * number))
            await answer(reader)
        assert len(parsed) == 2, "the first one, and the first one between two requests"
        for path in ("/other", "/q?a=1", "/q?a=1"):
            writer.write(post(b"body", path=path))
            await answer(reader)
        assert parsed[2:] == [b"/other", b"/q?a=1"]


async def test_a_body_that_comes_later_is_waited_for() -> None:
    request = post(b"a body in pieces")
    async with connection() as (reader, writer):
        for cut in (len(request), len(request), len(request) - 3, len(request) - 16, 20, len(request)):
            writer.write(request[:cut])
            await writer.drain()
            await asyncio.sleep(0.01)  # so that it goes in two pieces, mostly; either way the answer is the same
            writer.write(request[cut:])
            assert b"a body in pieces" in await answer(reader)


@pytest.mark.parametrize("is_secured", [False, True], ids=["behind a proxy", "tls"])
async def test_all_who_ask_over_one_connection_are_told_apart(
    is_secured: bool, parsed: list[bytes], tmp_path: Path
) -> None:
    """A proxy sends the requests of many over one connection; the address is that of the connection."""
    own, tls = Entrance(trusted=networks(["127.0.0.0/8"])), None
    if is_secured:
        authority = Authority(tmp_path)
        pair, tls = authority.issue(), authority.context()
        own = Entrance(Certificates(Files(pair.certificate, pair.key, None)))

    async def telling_address(scope: Any, receive: Any, send: Any) -> None:
        scope["headers"].append((b"client", scope["client"][0].encode()))
        await telling(scope, receive, send)

    async with serving(Intake(), answers=telling_address, entrance=own) as address, asyncio.timeout(PATIENCE_S):
        for client in ("127.0.0.1",) if is_secured else ("192.0.2.7", "192.0.2.8"):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
            if not is_secured:
                writer.write(b"PROXY TCP4 %b 10.0.0.1 51000 443\r\n" % client.encode())
            parsed.clear()
            for number in range(12):
                who = number // 3 % 3
                lines = f"Authorization: Bearer {who}", f"Cookie: session={who}", f"X-Forwarded-For: 203.0.113.{who}"
                writer.write(post(b"x" * number, *lines))
                headers, body = await facts(reader)
                assert body == b"x" * number and headers.count(("client", client)) == 1
                told = [
                    (name, value) for name, value in headers if name in ("authorization", "cookie", "x-forwarded-for")
                ]
                assert told == [(name.lower(), value) for name, _, value in (one.partition(": ") for one in lines)]
            assert len(parsed) == 5, "the first one, and each that is another than the one before it"
            writer.close()


@pytest.mark.parametrize("wrong", [b"+4", b"4 4", b"-1", b"0x4", b"", b"9" * 30])
async def test_a_length_that_is_none_is_refused_behind_one_that_was(wrong: bytes) -> None:
    async with connection() as (reader, writer):
        for _ in range(3):
            writer.write(post(b"body"))
            await answer(reader)
        writer.write(post(b"body").replace(b"Length: 4", b"Length: " + wrong))
        assert (await reader.read()).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "lines", [["Connection: close"], ["Upgrade: h2c", "Connection: Upgrade"], ["Proxy-Connection: x"], ["Expect: x"]]
)
def test_with_these_a_head_is_parsed_each_time(lines: Sequence[str]) -> None:
    headers = [
        (b"host", b"x"),
        *((n.lower().encode(), v.encode()) for n, _, v in (one.partition(": ") for one in lines)),
    ]
    headers.append((b"content-length", b"4"))
    data = post(b"body", *lines)[:-4]
    assert Head.of(data, {"http_version": "1.1"}, headers) is None


def test_a_head_of_http_1_0_or_of_two_lengths_is_parsed_each_time() -> None:
    headers = [(b"host", b"x"), (b"content-length", b"4")]
    assert Head.of(post(b"body")[:-4], {"http_version": "1.1"}, headers) is not None
    assert Head.of(post(b"body")[:-4], {"http_version": "1.0"}, headers) is None
    assert Head.of(post(b"body")[:-4], {"http_version": "1.1"}, [*headers, (b"content-length", b"4")]) is None


def test_a_large_head_is_not_kept() -> None:
    headers = [(b"host", b"x"), (b"content-length", b"4")]
    small, large = (post(b"body", "X-Long: " + "x" * size)[:-4] for size in (10, REMEMBERED_HEAD_BYTES_MAX))
    assert Head.of(small, {"http_version": "1.1"}, headers) is not None
    assert Head.of(large, {"http_version": "1.1"}, headers) is None
