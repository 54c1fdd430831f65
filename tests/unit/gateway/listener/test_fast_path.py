"""What is here as a whole passes at once, and looks on the line as if it had gone ASGI's way."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from gateway.api.http import Answer, write
from gateway.limits import JOINED_BYTES_MAX
from gateway.listener.fast_path import body_at_hand, write_at_once
from push.intake import Intake
from tests.support.patience import PATIENCE_S
from tests.unit.gateway.listener.test_server import serving

pytestmark = pytest.mark.anyio

ANSWERS = {
    "/json": Answer(201, b'{"a":1}', ((b"location", b"/x"),)),
    "/empty": Answer(200),
    "/large": Answer(200, b"x" * (JOINED_BYTES_MAX + 1)),
    "/refused": Answer(404, b"{}", content_type=b"application/problem+json"),
    "/nothing": Answer(204, content_type=None),
}
TOLD = ((b"ratelimit", b"1"),)


def request(path: str, *lines: str, body: bytes = b"", method: str = "POST", version: str = "1.1") -> bytes:
    head = [f"{method} {path} HTTP/{version}", "Host: x", *lines, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


async def exchanged(data: bytes, *, is_at_once: bool) -> tuple[bytes, list[Any]]:
    """What comes back until the connection ends, but for the date, and what the application saw of it: other tests of
    this machine ask ports that they believe theirs, whether a server has come there.
    """
    seen: dict[tuple[str, int], list[Any]] = defaultdict(list)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        saw = seen[scope["client"]]
        if is_at_once:
            await asyncio.sleep(0)  # the body of a request in one piece is there
            body = body_at_hand(receive)
            saw.append(body is not None)
        else:
            body = None
            saw.append(False)
        if body is None:
            body = (await receive())["body"]
        saw.append(body)
        answer = ANSWERS.get(scope["path"], ANSWERS["/refused"])
        wrote = is_at_once and write_at_once(send, scope["method"], answer, TOLD)
        saw.append(wrote)
        if not wrote:
            await write(send, answer, TOLD)

    async with serving(Intake(), answers=app) as address, asyncio.timeout(PATIENCE_S):
        await stranger(address)
        reader, writer = await asyncio.open_connection(*address)
        own = writer.get_extra_info("sockname")
        writer.write(data)
        await writer.drain()
        writer.write(request("/json", "Connection: close", body=b"the last one"))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return b"\r\n".join(sorted(line for line in answer.split(b"\r\n") if not line.startswith(b"date:"))), seen[own]


async def stranger(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request("/readyz", "Connection: close", method="GET"))
    await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("method", ["POST", "HEAD"])
async def test_an_answer_has_the_same_bytes_either_way(path: str, method: str) -> None:
    data = request(path, method=method, body=b"body")
    (at_once, saw), (by_asgi, seen) = await exchanged(data, is_at_once=True), await exchanged(data, is_at_once=False)
    assert at_once == by_asgi
    assert saw[1] == seen[1] == b"body" and saw[0]
    assert saw[2] is (method == "POST" and path in ("/json", "/empty", "/large"))


async def test_who_waits_for_leave_to_send_gets_it() -> None:
    data = request("/json", "Expect: 100-continue", body=b"body")
    answer, saw = await exchanged(data, is_at_once=True)
    assert b"HTTP/1.1 100 Continue" in answer and saw[:2] == [False, b"body"]


async def test_a_header_that_would_end_its_line_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "/json", Answer(200, b"", ((b"x", b"1\r\nset-cookie: 2"),)))
    answer, saw = await exchanged(b"", is_at_once=True)
    assert b"set-cookie" not in answer and saw[2] is False


async def test_without_a_server_of_its_own_it_goes_the_usual_way() -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None: ...

    assert body_at_hand(receive) is None
    assert not write_at_once(send, "POST", ANSWERS["/json"], ())
