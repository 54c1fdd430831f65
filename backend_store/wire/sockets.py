"""WebSockets between our own processes: a message is told in the turn of the loop that read it, and sent in its own.

The library gives each side of a connection a queue and somebody who waits at it. Here a message passes four to ten
connections before it is confirmed, and each of those waits is a turn of a loop and a switch between tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State

from backend_store.model import InvalidRequest

Heard = Callable[[bytes], None]


class Wire(Connection):
    """A connection as the library has it, and a second way to use it: `hear` for `recv`, `post` for `send`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_drained: Callable[[], None] = lambda: None
        """What was posted has left again, after it was too much for the socket."""
        self._told: Heard | None = None
        self._parts: list[bytes] = []
        self._fault: Exception | None = None

    @property
    def waiting_bytes(self) -> int:
        """What was posted and has not left."""
        return self.transport.get_write_buffer_size()

    def post(self, message: bytes) -> None:
        """Sends it behind all that was posted before. Nobody waits: whoever posts looks at `waiting_bytes`. On a
        connection that ends it is lost, as it would be on its way."""
        if self.protocol.state is not State.OPEN:
            return
        self.protocol.send_binary(message)
        try:
            self.send_data()
        except Exception as error:
            self.set_connection_exc(error)
            self.transport.abort()

    async def hear(self, told: Heard) -> None:
        """Has each message told, in their order, until the connection ends; it ends with what `told` raises.

        Raises that, `InvalidRequest` for a message of text, and `ConnectionClosedError` where nobody said goodbye.
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
            self._parts.append(bytes(event.data))
            if event.fin:
                parts, self._parts = self._parts, []
                self._told(b"".join(parts))
        except Exception as error:
            self._fault = error
            self.transport.abort()

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
    """Nobody listens any more."""
