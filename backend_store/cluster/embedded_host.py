"""An embedded coordinator with a data folder of its own: for a process that does nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from backend_store.cluster.embedded import EmbeddedCoordinator
from backend_store.storage.engine import Batch, Engine
from backend_store.storage.writer import Writer


class EmbeddedHost:
    """An embedded coordinator with its own engine and writer thread. Made by `open_embedded`."""

    def __init__(self, engine: Engine, on_fatal: Callable[[BaseException], None]):
        self._engine = engine
        self._writer = Writer(engine, asyncio.get_running_loop(), on_fatal=on_fatal)
        self.coordinator = EmbeddedCoordinator(engine, self._commit)

    async def _commit(self, batch: Batch) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self._writer.submit(batch, done)
        await durable

    async def close(self) -> None:
        await self.coordinator.close()
        await self._writer.close()
        self._engine.close()


def open_embedded(directory: Path, *, on_fatal: Callable[[BaseException], None]) -> EmbeddedHost:
    """Opens or makes the folder. Raises `storage` errors. `on_fatal` must end the process: see `storage.writer`."""
    from backend_store.storage.env import open_engine

    return EmbeddedHost(open_engine(directory), on_fatal)
