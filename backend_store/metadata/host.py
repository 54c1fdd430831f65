"""A process that holds only the metadata: its data folder, its writer, its socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from websockets.asyncio.server import Server

from backend_store.metadata.embedded import Metadata
from backend_store.metadata.local import LocalMetadata
from backend_store.metadata.server import Pages, serve_metadata
from backend_store.metadata.traffic import Traffic
from backend_store.node.commit.committer import Committer
from backend_store.node.node import end_process
from backend_store.storage.engine import Batch, Engine
from backend_store.storage.folder import create_private
from backend_store.storage.writer import CommitSeconds, Writer
from backend_store.tracing import Tracer

SECRET_FILE = "metadata.secret"


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MetadataHost:
    """A metadata process: owns the engine, the writer and the server."""

    def __init__(self, engine: Engine, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        loop = asyncio.get_running_loop()
        self._engine = engine
        self._writer = Writer(engine, loop, on_fatal=end_process)
        self._committer = Committer(self._writer, loop, end_process)
        self._clock_ms = clock_ms
        self._server: Server | None = None
        self.metadata = Metadata(engine, self._committer.write)
        self.service = LocalMetadata(self.metadata, clock_ms)
        self.traffic = Traffic()

    async def start(self) -> None:
        batch = Batch()
        self.metadata.found(batch, self._clock_ms())
        await self._committer.write(batch)

    @property
    def commit_seconds(self) -> CommitSeconds:
        return self._writer.commit_seconds

    async def listen(
        self,
        secret: str,
        host: str,
        port: int,
        pages: Pages | None = None,
        tracer: Tracer | None = None,
        *,
        zone: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Returns the port it listens on. See `serve_metadata`. Raises `OSError`."""
        self._server = await serve_metadata(
            self.service, secret, host, port, traffic=self.traffic, pages=pages, tracer=tracer, zone=zone, tls=tls
        )
        bound: int = next(iter(self._server.sockets)).getsockname()[1]
        return bound

    async def close(self) -> None:
        """Finishes what has begun, then releases the folder."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self._committer.drain()
        await self._writer.close()
        self._engine.close()


async def open_host(directory: Path) -> MetadataHost:
    """Opens or makes the data folder. Raises `storage` errors."""
    from backend_store.storage.env import open_engine

    host = MetadataHost(open_engine(directory))
    await host.start()
    return host


def secret_of(directory: Path) -> str:
    """The secret that gateways show; made at the first start, readable by the folder's owner only."""
    path = directory / SECRET_FILE
    if not path.exists():
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        with create_private(part) as file:
            file.write(secrets.token_urlsafe(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    return path.read_text().strip()
