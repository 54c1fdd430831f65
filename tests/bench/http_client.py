"""HTTP publish: a keep-alive connection with one request of one message in flight."""

from __future__ import annotations

import asyncio
import json
import time
from typing import cast

from tests.bench.clients import ClientFailed, now_stamp
from tests.bench.scale import BODY_BYTES, STAMP_DIGITS

_SHOWN_BYTES = 400
_LENGTH = b"content-length: "


class HttpPublisher(asyncio.Protocol):
    """Sends the next request as soon as the previous one is answered, until `stop`."""

    def __init__(self, port: int, token: str, *, queue: str) -> None:
        body = (now_stamp() + b"x" * (BODY_BYTES - STAMP_DIGITS)).decode()
        content = json.dumps({"messages": [{"body": body}]}).encode()
        head = (
            f"POST /v1/queues/{queue}/messages HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._request = head.encode() + content
        self._answer = b""
        self._sent_ns = 0
        self._is_stopping = False
        self.error: Exception | None = None
        self.answered = 0
        self.latencies_ns: list[int] = []
        self.is_idle = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent_ns = time.monotonic_ns()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not _is_whole(self._answer):
            return
        answer, self._answer = self._answer, b""
        if not answer.startswith(b"HTTP/1.1 201 ") or b'"duplicate":false' not in answer:
            self.error = ClientFailed(f"a publish failed: {answer[:_SHOWN_BYTES]!r}")
            self.close()
            return
        self.answered += 1
        self.latencies_ns.append(time.monotonic_ns() - self._sent_ns)
        if self._is_stopping:
            self.is_idle = True
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_stopping and self.error is None:
            self.error = error or ClientFailed("the server closed the connection")

    def stop(self) -> None:
        """Waits for the response to the request in flight, and sends no more."""
        self._is_stopping = True

    def resume(self) -> None:
        """Continues after `stop`, once it is idle."""
        self._is_stopping = self.is_idle = False
        self._send()

    def close(self) -> None:
        self._is_stopping = True
        self.transport.abort()


def _is_whole(answer: bytes) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = answer.lower().find(_LENGTH, 0, end) + len(_LENGTH)
    return len(answer) >= end + 4 + int(answer[at : answer.index(b"\r", at)])
