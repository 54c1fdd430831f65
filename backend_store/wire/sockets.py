"""WebSockets between our own processes: a message is handled in the turn of the loop that read it, and sent in the turn
that posts it.

The library gives each side of a connection a queue and a task that waits on it. Here a message passes four to ten
connections before it is confirmed, and each of those waits would be a turn of the loop and a task switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosedError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State

from backend_store.model import InvalidRequest

Heard = Callable[[bytes], None]
HEARD_BYTES_PER_TURN: Final = 128 * 1024
"""After a read of so many bytes the other connections have a turn. uvloop reads on for as long as reads are full."""
PARTS_MAX: Final = 4096
"""Fragments of one message; empty ones have no bytes that would be counted."""


class Wire(Connection):
    """The library's connection with a second way to use it: `hear` for `recv`, `post` for `send`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_drained: Callable[[], None] = lambda: None
        """Called when the posted bytes have left again, after they were too many for the socket."""
        self._told: Heard | None = None
        self._parts: list[bytes] = []
        self._fault: Exception | None = None
        self._posted_bytes = self._reads = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were posted and have not left."""
        return self.transport.get_write_buffer_size()

    def post(self, message: bytes) -> None:
        """Sends a message after all posted ones, without waiting: the caller checks `waiting_bytes`. On a connection
        that is closing, the message is lost, as it could be on its way."""
        if self.protocol.state is not State.OPEN:
            return
        self.protocol.send_binary(message)
        self._posted_bytes += len(message)
        self._send_posted()

    def leave(self) -> None:
        """Sends a close frame (going away) after all posted messages, and ignores further input."""
        if self.protocol.state is State.OPEN:
            self.protocol.send_close(CloseCode.GOING_AWAY)
            self._send_posted()
        self.transport.close()

    def _send_posted(self) -> None:
        try:
            self.send_data()
        except Exception as error:
            self.set_connection_exc(error)
            self.transport.abort()

    @property
    def was_left(self) -> bool:
        """The other side sent its close frame (going away) first."""
        said = self.protocol.close_rcvd
        return said is not None and said.code == CloseCode.GOING_AWAY and bool(self.protocol.close_rcvd_then_sent)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        # The library would send "internal error" for a cancelled task, too.
        if kind is asyncio.CancelledError:
            await self.close(CloseCode.GOING_AWAY)
        else:
            await super().__aexit__(kind, error, tb)

    async def hear(self, told: Heard) -> None:
        """Calls `told` with each message, in order, until the connection ends; an exception from `told` ends it.

        Raises that exception, `InvalidRequest` for a text message, and `ConnectionClosedError` for a connection that
        ended without a close handshake.
        """
        while len(self.recv_messages.frames):
            told(_binary(await self.recv()))
        self._told = told
        try:
            await self.wait_closed()
        finally:
            self._told = _nothing
        if self._fault is not None:
            raise self._fault
        if isinstance(error := self.close_exc, ConnectionClosedError):
            raise error

    def process_event(self, event: Request | Response | Frame) -> None:
        if self._told is None or not isinstance(event, Frame) or event.opcode not in _DATA:
            super().process_event(event)
            return
        if self._fault is not None:
            return
        try:
            if event.opcode is Opcode.TEXT:
                raise InvalidRequest("roles speak in binary frames, and this one is text")
            if event.fin and not self._parts:
                self._told(bytes(event.data))
                return
            if len(self._parts) >= PARTS_MAX:
                raise InvalidRequest(f"a message has more than {PARTS_MAX} parts")
            self._parts.append(bytes(event.data))
            if event.fin:
                parts, self._parts = self._parts, []
                self._told(b"".join(parts))
        except Exception as error:
            self._fault = error
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._reads += 1
        super().data_received(data)
        if self._told is not None and len(data) >= HEARD_BYTES_PER_TURN:
            self.transport.pause_reading()
            self.loop.call_soon(self.transport.resume_reading)

    async def drain(self) -> None:
        """Returns when there is room, as the library's does. The library's waits without end for a peer that is stopped
        and reads nothing, and so do its pings and close frame: the peer would never count as gone.

        Raises `TimeoutError` where nothing left and nothing came for as long as an unanswered ping takes; while
        closing, after `close_timeout`.
        """
        silence_s = None if self.ping_timeout is None else (self.ping_interval or 0) + self.ping_timeout
        while True:
            is_leaving = self.protocol.state is not State.OPEN
            left, reads = self._posted_bytes - self.waiting_bytes, self._reads
            try:
                async with asyncio.timeout(self.close_timeout if is_leaving else silence_s):
                    await super().drain()
                    return
            except TimeoutError:
                is_silent = self._reads == reads and self._posted_bytes - self.waiting_bytes <= left
                if is_leaving or is_silent:
                    raise

    def resume_writing(self) -> None:
        super().resume_writing()
        self.on_drained()


class ClientWire(ClientConnection, Wire):
    """For `connect(create_connection=…)`."""


class ServerWire(ServerConnection, Wire):
    """For `serve(create_connection=…)`."""


_DATA = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise InvalidRequest("roles speak in binary frames, and this one is text")
    return message


def _nothing(message: bytes) -> None:
    """Ignores a message after `hear` has ended."""
