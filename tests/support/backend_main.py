"""`pushq backend` with an extra socket in its data folder, through which a test writes and reads rows.

put KEY VALUE  →  ok, lost (outcome unknown) or no (not the leader)      rows  →  the rows on disk, as JSON
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator

from backend_store.model import PushqError
from backend_store.shard.host import BackendHost
from backend_store.shard.interface import ShardNumber
from gateway.config.load import load_settings
from gateway.roles.backend import serve_backend_role
from tests.support.shards import put, rows

SOCKET = "test.sock"
SHARD = ShardNumber(0)


@contextlib.asynccontextmanager
async def attach(host: BackendHost) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write((await _done(host, line.decode().split()) + "\n").encode())
                await writer.drain()
        writer.close()

    path = host.config.directory / SOCKET
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()


async def _done(host: BackendHost, words: list[str]) -> str:
    shard = host.shards.get(SHARD)
    if words[0] == "rows":
        return json.dumps({} if shard is None else rows(shard))
    node = None if shard is None else shard.node
    if node is None:
        return "no"
    try:
        await put(node, words[1], words[2])
    except PushqError:
        return "lost"
    return "ok"


if __name__ == "__main__":
    serve_backend_role(load_settings({}, os.environ).settings, attach)
