"""A TCP proxy that can pass bytes one at a time: a service that is up, but practically useless."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

DRIP_SECONDS = 0.2


class Dripping:
    """Forwards bytes to an address. While `drips` is set, those of the service pass one at a time."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self.drips = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        self._writers.append(ours)
        for source, sink, is_answer in ((reader, ours, False), (theirs, writer, True)):
            task = asyncio.create_task(self._pass_on(source, sink, is_answer=is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                while data and self.drips and is_answer:
                    sink.write(data[:1])
                    data = data[1:]
                    await asyncio.sleep(DRIP_SECONDS)
                sink.write(data)
                await sink.drain()
        sink.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Dripping]:
        """Closes every connection before it returns: an open one would be closed later, after its event loop."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.close()
