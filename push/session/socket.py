"""The interface of a socket to its session."""

from __future__ import annotations

from typing import Protocol

from push.ports import Encoding


class Wire(Protocol):
    """The socket, as a session sees it."""

    is_writable: bool

    @property
    def outbox_bytes(self) -> int: ...

    def send_frame(self, payload: bytes, encoding: Encoding) -> None:
        """Writes one frame."""

    def write(self, data: bytes) -> None:
        """Writes bytes that are framed already."""

    def close(self, code: int, reason: str) -> None: ...
    def pause(self) -> None:
        """Reads nothing more until `unpause`: the peer asks faster than the disk answers."""

    def unpause(self) -> None: ...
    def waiting_bytes(self) -> int:
        """How many of the written bytes the peer's kernel has not taken yet, as far as this system tells."""

    def blocked_seconds(self) -> float:
        """How long the peer has not read what was written."""
