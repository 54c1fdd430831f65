"""Asks one backend a question for an operator, whichever shards it leads, by a connection opened for it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from backend_store.model import PushqError, Unavailable
from backend_store.remote.limits import LINE_CONNECT_SECONDS_MAX, OPERATOR_ASK_SECONDS_MAX
from backend_store.wire.store_frames import (
    STORE_FRAME_BYTES_MAX,
    STORE_SUBPROTOCOL,
    STORE_VERSION,
    Answered,
    Asks,
    Operating,
    Turned,
    error_of,
    from_backend,
    pack,
    raw,
)


async def ask_backend(address: str, tls: ssl.SSLContext | None, gateway: str, operation: Any) -> msgspec.Raw:
    """Returns a backend's answer. `address`: HOST:PORT. Raises `Unavailable` if none answers, and the backend's own
    error."""
    try:
        async with asyncio.timeout(OPERATOR_ASK_SECONDS_MAX):
            answer = await _asked(address, tls, gateway, operation)
    except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError) as error:
        raise Unavailable(f"the backend at {address} does not respond: {error or type(error).__name__}") from None
    if answer.wrong is not None:
        raise error_of(answer.wrong)
    return answer.value


async def _asked(address: str, tls: ssl.SSLContext | None, gateway: str, operation: Any) -> Answered:
    async with connect(
        f"{'ws' if tls is None else 'wss'}://{address}",
        ssl=tls,
        subprotocols=[Subprotocol(STORE_SUBPROTOCOL)],
        compression=None,
        proxy=None,
        open_timeout=LINE_CONNECT_SECONDS_MAX,
        close_timeout=1,
        max_size=STORE_FRAME_BYTES_MAX,
    ) as connection:
        await connection.send(pack(Operating(STORE_VERSION, gateway)))
        await connection.send(pack(Asks(1, int(OPERATOR_ASK_SECONDS_MAX * 1000), raw(operation))))
        answer = from_backend(await connection.recv(decode=False))
        if isinstance(answer, Turned):
            raise Unavailable(f"the backend at {address} refused: {answer.wrong.detail}")
        if not isinstance(answer, Answered):
            raise PushqError(f"the backend at {address} sent an unexpected response: {type(answer).__name__}")
        return answer
