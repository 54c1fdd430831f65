"""The servers under the application: uvicorn on TCP and on `DIR/admin.sock`, with its shutdown taken out of its hands.

On SIGTERM uvicorn closes every socket at once, before anybody could say why. Here it only serves; `serve` says when to
stop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from backend_store.model import InvalidRequest
from gateway.config import Address
from gateway.http import problem_answer
from gateway.limits import (
    ANSWERS_SECONDS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEEP_ALIVE_SECONDS,
    LISTEN_BACKLOG,
    REQUEST_HEAD_SECONDS_MAX,
)
from push.protocol import FRAME_BYTES_MAX
from push.transports.websocket import PushProtocol

ADMIN_SOCKET: Final = "admin.sock"
_HEAD: Final = b"HTTP/1.1 %d Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


class TooManyHeaders(Exception):
    """A request's head passed its bounds."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP with bounds on a request's head, and problems in place of plain text."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(REQUEST_HEAD_SECONDS_MAX, self._head_too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and self._head_timer is None and not self.transport.is_closing():
            # A client that sends its head drop by drop would hold a socket for ever. Most heads come in one piece, so
            # that a request costs no timer.
            self._head_timer = self.loop.call_later(REQUEST_HEAD_SECONDS_MAX, self._head_too_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_arrived()
        super().on_headers_complete()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADERS_BYTES_MAX or len(self.headers) >= HEADERS_MAX:
            raise TooManyHeaders

    def _head_arrived(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        detail = (
            f"the request's head has more than {HEADERS_BYTES_MAX} bytes or {HEADERS_MAX} headers"
            if self._head_bytes > HEADERS_BYTES_MAX or len(self.headers or ()) >= HEADERS_MAX
            else "this is not HTTP/1.1"
        )
        answer = problem_answer(InvalidRequest(detail))
        head = _HEAD % (answer.status, answer.content_type, len(answer.body))
        self.transport.write(head + answer.body)
        self.transport.close()


class Listener(uvicorn.Server):
    """One server on one socket. `run` ends some time after `should_exit` was set."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `serve`'s."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, for a socket of either family."""
        assert sockets is not None and len(sockets) == 1
        config, loop = self.config, asyncio.get_running_loop()
        await self.lifespan.startup()

        def protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )

        if sockets[0].family == socket.AF_UNIX:
            server: Any = await loop.create_unix_server(protocol, sock=sockets[0], backlog=LISTEN_BACKLOG)
        else:
            server = await loop.create_server(protocol, sock=sockets[0], backlog=LISTEN_BACKLOG)
        self.servers = [server]
        self.started = True


def listener(app: ASGIApp) -> Listener:
    return Listener(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=PushProtocol,
            ws_max_size=FRAME_BYTES_MAX,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=ANSWERS_SECONDS_MAX,
        )
    )


def bind_tcp(address: Address) -> socket.socket:
    """Raises `OSError`. The port is ours before the store is opened, so a port that is taken costs nothing."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
    except BaseException:
        bound.close()
        raise
    return bound


def bind_unix(directory: Path) -> socket.socket:
    """The socket for local administration, mode 600. The folder's lock is held, so a socket left over is nobody's."""
    path = directory / ADMIN_SOCKET
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    mask = os.umask(0o177)
    try:
        # A socket's address has room for 107 bytes; by way of the folder's descriptor any path fits.
        bound.bind(f"/proc/self/fd/{folder}/{ADMIN_SOCKET}")
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(mask)
        os.close(folder)
    return bound
