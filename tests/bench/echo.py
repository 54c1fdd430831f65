"""`python -m tests.bench.echo PORT`: a WebSocket echo in plain ASGI, for comparison with our own server."""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import Receive, Scope, Send


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        event = await receive()
        if event["type"] != "websocket.receive":
            return
        await send({"type": "websocket.send", "bytes": event["bytes"]})


def main() -> None:
    uvicorn.run(
        echo,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
