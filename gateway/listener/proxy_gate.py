"""Handles a new TCP connection before HTTP does: the TLS handshake, or the PROXY header of a load balancer.

A gate is the first protocol of a connection. It reads the first bytes and then hands the transport, and the client's
address, to the HTTP protocol.
"""

from __future__ import annotations

import asyncio
import ssl
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import structlog

from gateway.config.settings import Http
from gateway.limits import PROXY_HEADER_SECONDS_MAX, REQUEST_HEAD_SECONDS_MAX
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.certificates import Certificates, files_of
from gateway.listener.proxy_header import (
    Client,
    Network,
    ProxyRefused,
    is_within,
    looks_like_header,
    networks,
    read_header,
)

log = structlog.get_logger("pushq.entrance")

T = TypeVar("T")

REFUSALS: Final = ("untrusted", "missing", "malformed", "late", "address")
"""Why a gate ended a connection; `malformed` includes a header that is too long."""


@dataclass(slots=True)
class Entrance:
    """How the listener accepts connections, and counters of those that it refused."""

    certificates: Certificates | None = None
    trusted: tuple[Network, ...] = ()
    """Networks of proxies, which must send a PROXY header; no other peer may. Empty: PROXY headers are not used."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → connections."""


def open_entrance(http: Http) -> Entrance:
    """The entrance that the settings describe. Raises `CertificateError`."""
    files = files_of(http)
    return Entrance(Certificates(files) if files is not None else None, networks(http.trusted_proxies))


class Inner(Protocol):
    """The protocol that a gate hands its connection to."""

    via: Client | None

    def connection_made(self, transport: Any) -> None: ...
    def data_received(self, data: bytes) -> None: ...


class ProxyGate(asyncio.Protocol):
    """The gate of a connection that may begin with a PROXY header, which names its client."""

    def __init__(
        self, entrance: Entrance, inner: Callable[[], Inner], connections: set[Any], door: AcceptLimit | None = None
    ) -> None:
        """`connections`: the server's set, so that a shutdown closes connections that wait here, too. `door`: admits
        them; those of trusted proxies take no room while they wait."""
        self._entrance = entrance
        self._inner = inner
        self._connections = connections
        self._door = door
        self._has_room = False
        self._seen = b""
        self._is_trusted = False
        self._peer = ""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._is_trusted = is_within(self._peer, self._entrance.trusted)
        if self._door is not None and not self._is_trusted:
            if not self._door.wait(self._peer):
                self._refuse("address", "too many connections from one address")
                return
            self._has_room = True
        seconds = PROXY_HEADER_SECONDS_MAX if self._is_trusted else REQUEST_HEAD_SECONDS_MAX
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if not self._is_trusted:
            if looks_like_header(self._seen):
                self._refuse("untrusted", "only http.trusted_proxies may send a PROXY header")
            else:
                self._enter(None, self._seen)
            return
        try:
            header = read_header(self._seen)
        except ProxyRefused as error:
            self._refuse("malformed" if looks_like_header(self._seen) else "missing", str(error))
            return
        if header is not None:
            self._enter(header.client, self._seen[header.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def shutdown(self) -> None:
        """The server stops: no request was made on this connection yet."""
        self._transport.close()

    def _enter(self, client: Client | None, rest: bytes) -> None:
        self._leave()
        inner = self._inner()
        inner.via = client
        self._transport.set_protocol(inner)
        inner.connection_made(self._transport)
        if rest and not self._transport.is_closing():  # the inner protocol may have refused it for lack of room
            inner.data_received(rest)

    def _too_late(self) -> None:
        if self._is_trusted:
            self._refuse("late", f"no PROXY header within {PROXY_HEADER_SECONDS_MAX} s")
        else:
            self._transport.close()

    def _refuse(self, reason: str, detail: str) -> None:
        """Closes without an answer: the peer may speak any protocol."""
        if reason not in self._entrance.refused:
            # Once per reason: a port scan must not fill the log. The counter has them all.
            log.warning("connection rejected", reason=reason, detail=detail, peer=self._peer)
        self._entrance.refused[reason] += 1
        self._transport.abort()

    def _leave(self) -> None:
        self._connections.discard(self)
        if self._has_room and self._door is not None:
            self._has_room = False
            self._door.leave(self._peer)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TlsGate(asyncio.Protocol):
    """The gate of a TLS connection until its handshake is done. It takes room meanwhile."""

    def __init__(
        self,
        context: ssl.SSLContext,
        inner: Callable[[], Inner],
        connections: set[Any],
        door: AcceptLimit | None = None,
        *,
        seconds_max: float,
    ) -> None:
        """`connections`: the server's set. `seconds_max`: the handshake's time limit."""
        self._context = context
        self._inner = inner
        self._connections = connections
        self._door = door
        self._seconds_max = seconds_max
        self._leaves: Callable[[], None] | None = None
        self._seen: list[bytes] = []
        self._is_over = False
        self._transport: Any = None
        self._greeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._door is not None:
            peer = transport.get_extra_info("peername")
            self._leaves = self._door.greet(str(peer[0]) if peer else "")
            if self._leaves is None:
                self._is_over = True
                transport.abort()
                return
        self._connections.add(self)
        loop = asyncio.get_running_loop()
        handshake = loop.start_tls(
            transport, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds_max
        )
        # The handshake's first step must run now, so that it gets the first bytes: a task would begin after them.
        self._greeting = loop.create_task(self._greet(_begun(handshake)), name="tls handshake")

    def data_received(self, data: bytes) -> None:
        """Keeps bytes that arrive after the handshake, before its task has continued."""
        self._seen.append(data)

    def eof_received(self) -> None:
        self._is_over = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True

    def shutdown(self) -> None:
        """The server stops: no request was made yet. Aborts, because a close would wait for the handshake."""
        self._is_over = True
        self._transport.abort()

    async def _greet(self, handshake: Awaitable[Any]) -> None:
        try:
            secured = await handshake
        except OSError:
            return  # the handshake failed or timed out, or the peer has gone
        finally:
            self._connections.discard(self)
            if self._leaves is not None:
                self._leaves()
        if self._is_over:
            if secured is not None:  # asyncio returns None for a connection that was cut before the handshake's end
                secured.close()
            return
        inner = self._inner()
        secured.set_protocol(inner)
        inner.connection_made(secured)
        for data in self._seen:
            if not secured.is_closing():  # the inner protocol may have refused it for lack of room
                inner.data_received(data)


def _begun(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Runs the coroutine now up to its first wait; the rest runs when the result is awaited."""
    waits_for = work.send(None)

    @types.coroutine
    def rest() -> Generator[Any, Any, T]:
        yield waits_for
        result: T = yield from work
        return result

    return rest()
