"""The interface of a transport: frames out, frames in, and one exception for every way in which it can break."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from push.client.errors import Problem
from push.client.frames import AnyClientFrame, AnyServerFrame


class Cut(Exception):
    """The connection is lost, or could not be made. `code` is the close code; None if there was none.

    `problem` is the answer of a server that takes no connection at the moment.
    """

    def __init__(
        self, reason: str, *, code: int | None = None, retry_s: float = 0.0, problem: Problem | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.retry_s = retry_s
        self.problem = problem


class Transport(Protocol):
    """One connection."""

    async def send(self, frames: Sequence[AnyClientFrame]) -> None:
        """Hand frames to the network, in order; raises `Cut`."""

    async def receive(self) -> list[AnyServerFrame]:
        """The next frames; raises `Cut` when the connection is lost, `ApiError` if trying again cannot help."""

    async def close(self) -> None:
        """Close the connection: the server gives back at once what it held."""

    def abort(self) -> None:
        """Drop the connection without a close: the server keeps its leases for a while."""

    async def wait_closed(self) -> None:
        """Return when nothing of a closed or dropped connection is left."""


Dial = Callable[[str | None], Awaitable[Transport]]
"""Makes a connection with the given credential; raises `Cut`, or a `PushqError` if trying again cannot help."""
