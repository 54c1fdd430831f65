"""A proxy that fails as a network does: it loses responses, connections, or everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.server import free_port


class FaultProxy:
    """Listens on `url`. The fate of a connection is decided when its next bytes pass."""

    def __init__(self, target_port: int):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.answers_to_lose = 0
        """How many responses to requests matching `losing` are swallowed, with their connections cut: the server has
        already carried them out."""
        self.losing = b""
        """Text that identifies such requests."""
        self.connections = 0
        self._target_port = target_port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def cut(self) -> None:
        """Breaks all connections in the middle of whatever they carry."""
        for writer in list(self._open):
            writer.transport.abort()

    async def stop(self) -> None:
        """Breaks all connections and refuses new ones. `start` listens on the same port again."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._open |= {writer, there}
        doomed = asyncio.Event()
        try:
            await asyncio.gather(self._requests(reader, there, doomed), self._answers(there_reader, writer, doomed))
        except OSError:
            pass
        finally:
            self._open -= {writer, there}
            for end in (writer, there):
                end.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await reader.read(65536):
            if self.answers_to_lose and self.losing in data:
                self.answers_to_lose -= 1
                doomed.set()
            there.write(data)
            await there.drain()
        there.write_eof()

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await there.read(65536):
            if doomed.is_set():
                break
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("the response was lost, or the server closed the connection")


@asynccontextmanager
async def fault_proxy(target_port: int) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(target_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            await proxy.stop()
