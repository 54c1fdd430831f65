"""Raw bytes on a socket, as a malicious client would send them."""

from __future__ import annotations

import os
import socket
import struct
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.server import PushqServer

ANSWER_SECONDS_MAX = 10.0
QUIET_SECONDS = 1.0
CLOSE, PING, PONG, CONTINUATION, TEXT = 8, 9, 10, 0, 1


def exchange(server: PushqServer, data: bytes) -> bytes:
    """Everything received until the server closes the connection, or is silent for a moment."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS_MAX) as connection:
        connection.sendall(data)
        connection.settimeout(QUIET_SECONDS)
        return until_closed(connection)


def until_closed(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while part := connection.recv(65_536):
            answer += part
    except (ConnectionResetError, TimeoutError):
        pass  # the rest of our bytes met a closed socket, or there is nothing more to come
    return answer


def statuses(answer: bytes) -> list[int]:
    """The status of each response on a connection, in order."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@contextmanager
def upgraded(server: PushqServer, *extra: str, behind: bytes = b"") -> Iterator[tuple[socket.socket, bytes]]:
    """A WebSocket after its handshake, and the response head. `behind`: bytes sent together with the request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS_MAX) as connection:
        lines = [
            "GET /v1/ws HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}",
            *extra,
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + behind)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        yield connection, head


def frame(opcode: int, payload: bytes = b"", *, is_last: bool = True) -> bytes:
    """A masked frame whose mask is zero."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = b"\xfe" + struct.pack(">H", size) if size < 65_536 else b"\xff" + struct.pack(">Q", size)
    return bytes([(0x80 if is_last else 0) | opcode]) + length + bytes(4) + payload
