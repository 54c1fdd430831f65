"""One HTTP POST to a foreign server: returns the status of its answer, of which a bounded amount is read.

A server may send interim responses (1xx, RFC 9110 section 15.2) for as long and as fast as it likes. A client that
reads them all does nothing else meanwhile.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any

import httpcore2

from gateway.alerts.limits import WEBHOOK_ANSWER_BYTES_MAX, WEBHOOK_READ_BYTES_MAX


class AnswerTooLong(Exception):
    """The bound was reached before the head of the answer was complete."""

    def __init__(self) -> None:
        super().__init__(f"no HTTP status in the first {WEBHOOK_ANSWER_BYTES_MAX} bytes of the response")


async def post(
    url: str, body: bytes, headers: Mapping[str, str], *, trusted: ssl.SSLContext, server_name: str, seconds_max: float
) -> int:
    """Connects to the address in `url` and to no other; `server_name` is the name that the certificate has to carry.

    Leaves the rest of the answer unread. Raises `AnswerTooLong` and the errors of `httpcore2`.
    """
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), seconds_max)
    extensions: dict[str, Any] = {"timeout": timeout, "sni_hostname": server_name}
    async with (
        httpcore2.AsyncConnectionPool(trusted, network_backend=_Bounded()) as pool,
        pool.stream("POST", url, headers=list(headers.items()), content=body, extensions=extensions) as answer,
    ):
        return int(answer.status)


class _Bounded(httpcore2.AnyIOBackend):
    """Connections of which no more than the bound can be read."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = WEBHOOK_ANSWER_BYTES_MAX

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._left:
            raise AnswerTooLong
        # One read is parsed without yielding to other tasks, so it is kept small.
        data = await self._stream.read(min(max_bytes, WEBHOOK_READ_BYTES_MAX, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
