"""Runs uvicorn on TCP and on `DIR/admin.sock`, with an HTTP protocol class of our own and without uvicorn's shutdown.

`proxy_gate` handles TLS and a balancer's PROXY header before a connection comes here.

On SIGTERM uvicorn would close every socket at once, without telling its client why. Here it only serves; `serve`
decides when to stop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from functools import partial
from pathlib import Path
from termios import TIOCOUTQ
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl

from backend_store.model import InvalidRequest
from gateway.api.http import problem_answer
from gateway.config.addresses import Address
from gateway.limits import (
    ANSWERS_SECONDS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEEP_ALIVE_SECONDS,
    LISTEN_BACKLOG,
    PIECES_PER_TURN_MAX,
    READER_BYTES_MIN,
    REQUEST_HEAD_SECONDS_MAX,
    TLS_HANDSHAKE_SECONDS_MAX,
)
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.head_cache import HeadCache
from gateway.listener.head_limits import MALFORMED, TOO_LARGE, Fault, Reason, fault_of
from gateway.listener.proxy_gate import Entrance, ProxyGate, TlsGate
from gateway.listener.proxy_header import Client
from gateway.listener.unread_body import Bounds, Turnstile
from push.limits import READ_BYTES_PER_TURN_MAX, WRITE_BLOCKED_SECONDS_MAX
from push.protocol import FRAME_BYTES_MAX
from push.transports.websocket import PushProtocol

ADMIN_SOCKET: Final = "admin.sock"
HSTS: Final = ("strict-transport-security", "max-age=31536000")
"""Sent over TLS: for a year browsers use https:// only for this host (RFC 6797)."""
_HANDS_OUT: Final = ("/receive", "/events")
_HEAD_END: Final = b"\r\n\r\n"
_HEAD: Final = b"HTTP/1.1 %d Bad Request\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


class HeadRefused(Exception):
    """Raised in a callback of the parser to stop it: the request's head is refused."""


class Flow(FlowControl):
    """Flow control of a connection: pauses reading while a pipelined request waits for the answer before it (`hold`),
    or while the application is slow to read a body (`pause_reading`). Reading resumes when neither holds."""

    is_held = False
    _is_full = False

    def hold(self) -> None:
        self.is_held = True
        super().pause_reading()

    def let_go(self) -> None:
        self.is_held = False
        if not self._is_full:
            super().resume_reading()

    def pause_reading(self) -> None:
        self._is_full = True
        super().pause_reading()

    def resume_reading(self) -> None:
        if not self.read_paused:
            return  # neither held nor full; nearly every request calls this twice
        self._is_full = False
        if not self.is_held:
            super().resume_reading()


class HttpProtocol(HeadCache):
    """uvicorn's HTTP protocol with bounds on a request's head and on pipelined bytes, and with problem answers in place
    of plain text. One object per connection."""

    via: Client | None = None
    """The client, if a trusted proxy has named it."""
    flow: Flow
    _head_bytes = 0
    _in_head = True
    _fault: Fault | None = None
    _rest: tuple[bytes, int] | None = None
    """Bytes that were read and not parsed, and the offset where they begin: an answer is due, or this turn of the loop
    has had its share."""
    _is_upgraded = False
    _has_said_all = False
    """The client has closed its side and waits for the answer that is due."""
    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    door: AcceptLimit | None = None
    was_greeted = False
    """Whether the door counted this connection before its TLS handshake."""
    _leaves: Callable[[], None] | None = None
    """Gives its room back to the door; None until it was admitted. A WebSocket takes this over."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = Flow(transport)
        if self.via is not None:
            self.client = self.via
            self.ws_protocol_class = partial(_websocket, self.via)  # type: ignore[assignment]
        address = self.client[0] if self.client else ""
        if self.door is not None:
            refusal = self.door.enter(len(self.connections), address, was_greeted=self.was_greeted)
            if refusal is not None:
                transport.write(refusal)
                transport.close()
                return
            self._leaves = partial(self.door.leave, address)
        self._head_timer = self.loop.call_later(REQUEST_HEAD_SECONDS_MAX, self._head_too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._reader_reads()
        self._rest = None
        super().connection_lost(exc)
        if self._leaves is not None:
            self._leaves()

    def data_received(self, data: bytes) -> None:
        if self._rest is not None:
            rest, at = self._rest
            self._rest = rest[at:] + data, 0  # the loop had read this before reading was paused
            return
        self._parse(data, 0)
        is_much = len(data) > READ_BYTES_PER_TURN_MAX or self.leftover is not None
        if is_much and not self.flow.is_held and not self._is_upgraded:
            self._wait(data, len(data))  # else the loop reads on as long as the peer fills its buffer

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keeps the connection open if the client closed its side after a complete request: it is owed the answer (RFC
        9112, section 9.6). A client that has gone looks the same, so requests that deliver messages end: messages must
        not go to a client that is gone. Over TLS asyncio closes the connection in any case."""
        cycle: Any = self.cycle
        is_owed = self._is_answering() and not cycle.response_started and not cycle.scope["path"].endswith(_HANDS_OUT)
        # A handler may be waiting for the disconnect; one that waits for a body that has just arrived is not.
        is_watched = is_owed and bool(cycle.message_event._waiters) and not cycle.message_event.is_set()
        self._has_said_all = is_owed and not is_watched
        return self._has_said_all or None

    def _end_if_nothing_is_owed(self) -> None:
        if self._has_said_all and self._rest is None and not self._is_answering():
            self.transport.close()

    def _parse(self, data: bytes, at: int) -> None:
        """Parses one request at a time. Pipelined bytes are kept, and reading pauses until the answer is written."""
        pieces = 0
        while at < len(data) and not self.transport.is_closing():
            if self._is_answering():
                # Empty lines after a request are ignored (RFC 9112, section 2.2).
                if len(data) - at > len(_HEAD_END) or data[at:].strip(b"\r\n"):
                    self._wait(data, at)
                return
            if pieces == PIECES_PER_TURN_MAX:
                self._wait(data, at)
                return
            found = data.find(_HEAD_END, at)
            end = len(data) if found < 0 else found + len(_HEAD_END)
            piece, pieces, at = data[at:end], pieces + 1, end
            is_idle = self._is_idle()
            if piece[0] in b"\r\n" and is_idle and not piece.strip(b"\r\n"):
                continue  # else an empty line without a request after it would stop the keep-alive timer
            if is_idle and found >= 0 and (taken := self._begin_again(data, end - len(piece), end)):
                at = taken
                continue
            super().data_received(piece)
            if is_idle and found >= 0:
                self.remember(piece)
            if self.leftover is not None and not self.takes(len(piece)):
                return
            if self._is_upgraded:
                self._hand_over(data[at:])
                return
        if self._in_head and self._head_timer is None and not self.transport.is_closing():
            # Else a client that sends its head byte by byte would hold a socket for ever. Most heads arrive in one
            # piece, so most requests need no timer.
            self._head_timer = self.loop.call_later(REQUEST_HEAD_SECONDS_MAX, self._head_too_late)

    def _begin_again(self, data: bytes, at: int, end: int) -> int:
        taken = self.begin_again(data, at, end)
        if taken and self._reader_timer is not None and not self.flow.write_paused:
            self._reader_reads()
        return taken

    def _is_answering(self) -> bool:
        """Whether a complete or pipelined request has no answer yet."""
        cycle: Any = self.cycle  # None before the first request
        return bool(self.pipeline) or (cycle is not None and not cycle.more_body and not cycle.response_complete)

    def _is_idle(self) -> bool:
        """Whether all requests are answered and no byte of the next one has come: the keep-alive timer runs."""
        cycle: Any = self.cycle
        return cycle is not None and cycle.response_complete and self.leftover is None and not self._in_head

    def _has_begun_to_answer(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _wait(self, data: bytes, at: int) -> None:
        """Keeps the unparsed bytes and pauses reading: until the answer that is due, else until the next turn of the
        loop or, with a leftover body, this connection's turn at the turnstile."""
        if self.transport.is_closing():
            return
        self._rest = data, at
        self.flow.hold()
        if self._is_answering():
            return
        if self.leftover is None:
            self.loop.call_soon(self._parse_rest)
        else:
            self.turnstile.wait(self.loop, self._parse_rest)

    def _parse_rest(self) -> None:
        if self._rest is not None and not self.transport.is_closing():
            (data, at), self._rest = self._rest, None
            self.flow.let_go()
            self._parse(data, at)
            self._end_if_nothing_is_owed()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        self._head_arrived()
        self._reader_reads()
        super().handle_websocket_upgrade()
        websocket: Any = self.transport.get_protocol()
        websocket.on_lost = self._leaves

    def _hand_over(self, data: bytes) -> None:
        """Passes the rest of what was read to the WebSocket, whose client did not wait for the upgrade's answer."""
        websocket: Any = self.transport.get_protocol()
        if websocket.is_refused:
            self._count_fault("upgrade")
        elif data and not self.transport.is_closing():
            websocket.data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = True
        if self._reader_timer is not None and not self.flow.write_paused:
            self._reader_reads()  # a client that asks again reads; a backlog that grows is watched again

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > HEADERS_BYTES_MAX:
            self._refuse_head(TOO_LARGE)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEADERS_BYTES_MAX or len(self.headers) >= HEADERS_MAX:
            self._refuse_head(TOO_LARGE)
        if self._in_head:  # uvicorn's code inlined: calling it for each header would double the cost
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))
        # A trailer is not added: all decisions were made by the head (RFC 9110, section 6.5.1).

    def on_headers_complete(self) -> None:
        self._head_arrived()
        parser = self.parser
        is_offer = parser.should_upgrade()
        is_upgrade = is_offer and self._should_upgrade()
        fault = fault_of(self.headers, parser.get_http_version(), is_upgrade=is_upgrade)
        if fault is not None:
            self._refuse_head(fault)
        if is_offer and not is_upgrade:
            self.decline()
        super().on_headers_complete()

    def _refuse_head(self, fault: Fault) -> None:
        self._fault = fault
        raise HeadRefused

    def cut_body(self) -> None:
        if self.door is not None:
            self.door.cut_body()
        super().cut_body()

    def _count_fault(self, reason: Reason) -> None:
        if self.door is not None:
            self.door.refuse_head(reason)

    def _head_arrived(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._count_fault("late")
            self.transport.close()

    # ------------------------------------------------------------------------------------------ slow readers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader_reads()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._rest is not None:
            self.loop.call_soon(self._parse_rest)
        self._end_if_nothing_is_owed()
        if self.transport.get_write_buffer_size():
            self._watch_reader()  # no further write would notice a client that does not read

    def _watch_reader(self) -> None:
        """Restarts the watch from the bytes unread now: an earlier one began with fewer, or with another answer's."""
        self._reader_reads()
        self._unread_bytes = _unread_bytes(self.transport)
        self._reader_timer = self.loop.call_later(WRITE_BLOCKED_SECONDS_MAX, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Aborts the connection if its client read less than `READER_BYTES_MIN` since the watch began: an unread answer
        occupies memory. A slow line that makes progress may take as long as it needs."""
        self._reader_timer = None
        if not self.transport.get_write_buffer_size():
            return
        unread = _unread_bytes(self.transport)
        if self._unread_bytes - unread >= READER_BYTES_MIN:
            self._watch_reader()
            return
        if self.door is not None:
            self.door.cut_reader()
        self.transport.abort()

    def _reader_reads(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:
        fault = self._fault or MALFORMED
        self._count_fault(fault.reason)
        # Else the client would take it for the answer that is due or has begun, or for that to the next request.
        if not self._is_answering() and not self._has_begun_to_answer() and self.leftover is None:
            answer = problem_answer(InvalidRequest(fault.detail))
            head = _HEAD % (answer.status, answer.content_type, len(answer.body))
            self.transport.write(head + answer.body)
        self.transport.close()


def _unread_bytes(transport: Any) -> int:
    """Bytes the peer has not taken: in our buffer and in the system's, which takes from ours only in large pieces."""
    with suppress(OSError):
        waiting = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        return int(transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder))
    return int(transport.get_write_buffer_size())


def _websocket(via: Client, **options: Any) -> PushProtocol:
    """The WebSocket protocol after an upgrade, with the client that the proxy named."""
    protocol = PushProtocol(**options)
    protocol.via = via
    return protocol


class Listener(uvicorn.Server):
    """One uvicorn server on one socket; `serve` owns it. `serve()` returns some time after `should_exit` was set."""

    entrance = Entrance()
    door: AcceptLimit | None = None
    bounds = Bounds()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `gateway.serve`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts serving the one socket, TCP or UNIX, with the gate or protocol that the entrance asks for."""
        assert sockets is not None and len(sockets) == 1
        config, loop, turnstile = self.config, asyncio.get_running_loop(), Turnstile()
        await self.lifespan.startup()

        def http() -> HttpProtocol:
            made = HttpProtocol(
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
            )
            made.door, made.bounds, made.turnstile = self.door, self.bounds, turnstile
            return made

        def greeted() -> HttpProtocol:
            made = http()
            made.was_greeted = True
            return made

        def gate() -> ProxyGate:
            return ProxyGate(self.entrance, http, self.server_state.connections, self.door)

        protocol: Callable[[], asyncio.Protocol] = gate if self.entrance.trusted else http
        if self.entrance.certificates is not None and sockets[0].family != socket.AF_UNIX:
            protocol = partial(
                TlsGate,
                self.entrance.certificates.context,
                greeted,
                self.server_state.connections,
                self.door,
                seconds_max=TLS_HANDSHAKE_SECONDS_MAX,
            )

        if sockets[0].family == socket.AF_UNIX:
            server: Any = await loop.create_unix_server(protocol, sock=sockets[0], backlog=LISTEN_BACKLOG)
        else:
            server = await loop.create_server(protocol, sock=sockets[0], backlog=LISTEN_BACKLOG)
        self.servers = [server]
        self.started = True


def listener(
    app: ASGIApp,
    entrance: Entrance | None = None,
    door: AcceptLimit | None = None,
    bounds: Bounds | None = None,
    *,
    hsts: bool = False,
) -> Listener:
    """Makes a listener. `door`: admits connections; None for the listener that only the folder's owner reaches.
    `bounds`: how much of a body is read that was answered before it had come."""
    made = Listener(
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
            headers=[HSTS] if hsts else [],
        )
    )
    made.entrance = entrance or Entrance()
    made.door = door
    made.bounds = bounds or Bounds()
    return made


def bind_tcp(address: Address, *, is_shared: bool = False) -> socket.socket:
    """Binds a TCP socket. Raises `OSError`. Called before the store is opened, so that a port in use fails early.

    `is_shared`: other processes of the same user may bind it too; the system spreads connections over the listeners.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address.host, address.port))
    except BaseException:
        bound.close()
        raise
    return bound


def bind_unix(directory: Path, name: str = ADMIN_SOCKET) -> socket.socket:
    """Binds a UNIX socket of the folder, mode 600: the one for local administration, or another `name`. This process
    holds the folder's lock, so an existing socket is left over and is replaced."""
    path = directory / name
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    mask = os.umask(0o177)
    try:
        # A socket's address has room for 107 bytes; a path through the folder's descriptor always fits.
        bound.bind(f"/proc/self/fd/{folder}/{name}")
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(mask)
        os.close(folder)
    return bound


class Folder:
    """Keeps a folder open, so that each socket in it has a path short enough to connect to."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def path(self, name: str) -> Path:
        return Path(f"/proc/self/fd/{self._fd}/{name}")
