"""A listener whose application responds with what it was told about the client, over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from gateway.api.http import json_answer, write
from gateway.config.addresses import Address
from gateway.listener.accept_limit import AcceptLimit
from gateway.listener.proxy_gate import Entrance
from gateway.listener.server import bind_tcp, listener
from gateway.listener.unread_body import Bounds

asked: list[str] = []
"""The paths requested from the application of the current listener."""


async def told(scope: Scope, receive: Receive, send: Send) -> None:
    """The application: `{client, scheme, path, forwarded}`."""
    asked.append(scope["path"])
    facts = {
        "client": list(scope["client"]),
        "scheme": scope["scheme"],
        "path": scope["path"],
        "forwarded": [value.decode() for name, value in scope["headers"] if name == b"x-forwarded-for"],
    }
    if scope["type"] == "http":
        await write(send, json_answer(facts))
        return
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": json_answer(facts).body.decode()})
    await send({"type": "websocket.close", "code": 1000})


@asynccontextmanager
async def listening(
    entrance: Entrance, door: AcceptLimit | None = None, bounds: Bounds | None = None
) -> AsyncIterator[int]:
    """Yields the port while the listener serves."""
    asked.clear()
    sock = bind_tcp(Address("127.0.0.1", 0))
    server = listener(told, entrance, door, bounds)
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="listener")
    try:
        while not server.started:  # noqa: ASYNC110 -- uvicorn has only a flag
            await asyncio.sleep(0)
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
