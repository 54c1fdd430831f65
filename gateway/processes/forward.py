"""Forwards administration, console and whole-server requests from a gateway process to the first one (the desk).

Every process carries messages. Other state, such as sign-ins, firing alerts or the progress of a purge, is kept by one
process, so that it makes no difference where a request arrives.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import httpx2
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from backend_store.model import OutcomeUnknown, Unavailable
from gateway.api.dispatch import LOCAL
from gateway.api.http import problem_answer, write

log = structlog.get_logger("pushq.processes")

VIA: Final = b"pushq-via"
"""Header between processes: who asked, and how. It is read only from the sockets in the data folder."""
_READS: Final = ("GET", "HEAD")
_OF_THE_WHOLE: Final = ("purge", "purges", "redrives", "groups", "series")
"""Path segments after a queue's name that are not about its messages."""
_HOP: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"})


def is_for_desk(method: str, path: str) -> bool:
    """Whether the first process handles a request."""
    if path == "/metrics" or path == "/console" or path.startswith("/console/"):
        return True
    if not path.startswith("/v1/"):
        return False
    steps = path.split("/")[2:]
    if steps[0] == "tickets":
        return False
    if steps[0] != "queues":
        return True
    if len(steps) > 2:
        return steps[2] in _OF_THE_WHOLE
    return method not in ("GET", "HEAD", "OPTIONS")


class Forwarding:
    """An ASGI application that forwards the desk's requests and handles all others."""

    def __init__(self, app: ASGIApp, desk: httpx2.AsyncClient) -> None:
        self._app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_for_desk(scope["method"], scope["path"]):
            await self._forward(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[LOCAL] = True
        await self(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.Event()
        request = self._request(scope, _body(receive, gone))
        try:
            answer = await self._desk.send(request, stream=True)
        except (httpx2.HTTPError, OSError) as error:
            log.info("the first gateway process is not responding", error=str(error) or type(error).__name__)
            was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if was_sent and scope["method"] not in _READS:
                unknown = OutcomeUnknown(
                    "the process that handles administration exited during the request; check its outcome"
                )
                await write(send, problem_answer(unknown))
                return
            detail = "the process that handles administration is restarting"
            await write(send, problem_answer(Unavailable(detail, retry_after_ms=1000)))
            return
        try:
            await self._answered(answer, receive, send, gone)
        finally:
            await answer.aclose()

    async def _answered(self, answer: httpx2.Response, receive: Receive, send: Send, gone: asyncio.Event) -> None:
        headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        watch = asyncio.create_task(_until_gone(receive, gone), name="forwarded request")
        try:
            pieces = answer.aiter_raw()
            while (piece := await _next(pieces, watch)) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _request(self, scope: Scope, body: AsyncIterator[bytes]) -> httpx2.Request:
        path = (scope.get("raw_path") or scope["path"].encode()) + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP and name != VIA]
        via = {"client": scope.get("client"), "scheme": scope.get("scheme", "http"), "is_local": LOCAL in scope}
        headers.append((VIA, json.dumps(via).encode()))
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        url = self._desk.base_url.copy_with(raw_path=path)
        return httpx2.Request(scope["method"], url, headers=headers, content=body if has_body else None)


class Inner:
    """An ASGI application for requests from other processes of this server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            via = next((value for name, value in scope["headers"] if name == VIA), None)
            if via is not None:
                _arrived(scope, json.loads(via))
        await self._app(scope, receive, send)


def _arrived(scope: Scope, via: dict[str, Any]) -> None:
    """Restores the scope that the request had at the process where it came in."""
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != VIA]
    scope["client"] = tuple(via["client"]) if via["client"] else None
    scope["scheme"] = via["scheme"]
    if via["is_local"]:
        scope[LOCAL] = True


async def _body(receive: Receive, gone: asyncio.Event) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone.set()
            raise ConnectionResetError("the client has gone")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def _until_gone(receive: Receive, gone: asyncio.Event) -> None:
    """Returns when the client has disconnected: a stream without a reader must end at the other process, too."""
    while not gone.is_set():
        if (await receive())["type"] == "http.disconnect":
            return


async def _next(pieces: AsyncIterator[bytes], watch: asyncio.Task[None]) -> bytes | None:
    """The next piece of an answer; None at its end, or when the client or the other process has gone."""
    piece = asyncio.ensure_future(anext(pieces, None))
    await asyncio.wait({piece, watch}, return_when=asyncio.FIRST_COMPLETED)
    if not piece.done():
        piece.cancel()
        await asyncio.gather(piece, return_exceptions=True)
        return None
    with suppress(httpx2.HTTPError, OSError):
        return piece.result()
    return None
