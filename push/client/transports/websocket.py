"""Frames over a WebSocket: the transport with every feature."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.proxy import get_proxy
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from push.client.config import Limits
from push.client.discover import reason, redirected, without_secrets
from push.client.errors import NOT_PUSHQ, ApiError, Forbidden, Problem, api_error, problem_of
from push.client.frames import AnyClientFrame, AnyServerFrame, Codec, UnreadableFrame
from push.client.transports.addresses import Addresses, race
from push.client.transports.base import Cut

RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
WRITE_BYTES_MAX = 256 * 1024


class WebSocketTransport:
    """One socket. Frames are sent as arrays; the credential goes in the first frame, never in the URL."""

    def __init__(self, socket: ClientConnection, codec: Codec) -> None:
        self._socket = socket
        self._codec = codec

    async def send(self, frames: Sequence[AnyClientFrame]) -> None:
        try:
            for data in self._codec.pack(frames):
                await self._socket.send(data, text=self._codec.is_text)
        except ConnectionClosed as closed:
            raise _cut(closed) from closed

    async def receive(self) -> list[AnyServerFrame]:
        try:
            return self._codec.unpack(await self._socket.recv(decode=False))
        except ConnectionClosed as closed:
            raise _cut(closed) from closed
        except UnreadableFrame as error:
            raise Cut(str(error)) from error

    async def close(self) -> None:
        await self._socket.close()

    def abort(self) -> None:
        self._socket.transport.abort()

    async def wait_closed(self) -> None:
        await self._socket.wait_closed()


class _Connection(ClientConnection):
    def __init__(self, on_met: Callable[[], None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_met = on_met

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._on_met()


class _Opening(connect):
    """Does not follow redirects: a key for one server is not meant for another."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Dialer:
    """Opens sockets to one URL. Every address of its name is tried; each call begins with the next one."""

    def __init__(self, url: str, codec: Codec, limits: Limits, *, tls: ssl.SSLContext | None = None) -> None:
        self._uri = url.replace("http", "ws", 1) + "/v1/ws"
        self._codec = codec
        self._limits = limits
        self._tls = tls
        self._addresses = Addresses(self._uri)
        self.on_met: Callable[[], None] = lambda: None
        """Called when an address takes a connection, before anything was sent on it."""

    async def __call__(self, token: str | None) -> WebSocketTransport:
        found = await self._find()
        attempts = [functools.partial(self._open, address) for address in found]
        return await race(
            attempts, stagger_s=self._limits.address_stagger_s, passing=Cut, drop=WebSocketTransport.abort
        )

    async def _find(self) -> list[dict[str, Any]]:
        """`host` and `port` for each address; empty for a proxy, which resolves the name itself."""
        if get_proxy(parse_uri(self._uri)) is not None:
            return [{}]
        try:
            found = await self._addresses.found()
        except OSError as error:
            raise Cut(f"{self._addresses.host}: {error.strerror or error}") from error
        return [{"host": host, "port": self._addresses.port} for host in found]

    async def _open(self, address: dict[str, Any]) -> WebSocketTransport:
        options = address | ({} if self._tls is None else {"ssl": self._tls})
        try:
            opened = await _Opening(
                self._uri,
                subprotocols=[Subprotocol(self._codec.subprotocol)],
                compression=None,
                ping_interval=None,  # the server's `ping` frames detect dead connections, in both directions
                open_timeout=max(self._limits.open_timeout_s, self._limits.open_patience_s),
                close_timeout=self._limits.close_timeout_s,
                max_size=self._limits.frame_bytes_max,
                write_limit=WRITE_BYTES_MAX,
                create_connection=functools.partial(_Connection, self.on_met),  # type: ignore[arg-type]
                **options,
            )
        except InvalidStatus as refused:
            raise _refusal(self._uri, refused) from refused
        except InvalidURI as error:
            raise ValueError(str(error)) from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            where = address.get("host", without_secrets(self._uri))
            raise Cut(f"no connection to {where}: {reason(error)}") from error
        if opened.subprotocol != self._codec.subprotocol:
            opened.transport.abort()
            raise ApiError(
                Problem(detail=f"{without_secrets(self._uri)} does not speak {self._codec.subprotocol}", code=NOT_PUSHQ)
            )
        return WebSocketTransport(opened, self._codec)


def _cut(closed: ConnectionClosed) -> Cut:
    if closed.rcvd is None:
        return Cut("the connection was cut")
    return Cut(closed.rcvd.reason or f"closed with {closed.rcvd.code}", code=closed.rcvd.code)


def _refusal(uri: str, refused: InvalidStatus) -> Exception:
    """The error of an upgrade that was answered with HTTP: overload is temporary, a wrong address or origin is not."""
    response = refused.response
    status = response.status_code
    if status in RETRY_STATUSES:
        problem = problem_of(bytes(response.body or b""), status, dict(response.headers.raw_items()))
        reason = f"{without_secrets(uri)} returned {status}: {problem.detail or problem.title}"
        return Cut(reason, retry_s=api_error(problem).retry_after_s or 0.0, problem=problem)
    kind = Forbidden if status == 403 else ApiError
    code = "forbidden" if status == 403 else NOT_PUSHQ
    location = response.headers.get("Location") if 300 <= status < 400 else None
    detail = redirected(uri, location, f"the WebSocket was refused with {status}")
    return kind(Problem(status=status, code=code, detail=detail))
