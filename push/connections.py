"""The open connections of a process: the client of each, since when it is open, what it reads, and how to end it.

A connection has an id of its own: with a session's id, any reader of the list could resume the session.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import structlog
from starlette.types import Receive

from backend_store.client import Queue
from backend_store.model import PushqError, Unauthenticated, Unavailable
from push.ports import Principal
from push.session.subscriptions import StreamSubscription, WorkSubscription

log = structlog.get_logger("pushq.connections")

Transport = Literal["ws", "sse", "poll"]
KICK_RETRY_MS = 1000
"""When a client may come back after its stream was ended."""
KICK_REASON = "an administrator closed this connection"


class Holder(Protocol):
    """What a connection belongs to: a session, an event stream, or a receive that waits."""

    @property
    def remote(self) -> str:
        """The client's address; empty if there is none."""

    @property
    def principal(self) -> Principal | None: ...
    @property
    def outbox_bytes(self) -> int:
        """Bytes written that the peer has not taken yet."""

    def reading(self) -> Iterable[WorkSubscription | StreamSubscription | Queue]:
        """Its subscriptions; of a waiting receive, the queue it waits for."""

    def kick(self) -> None:
        """Ends it: what it holds returns at once, and no connection can resume it."""


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    id: str
    transport: Transport
    connected_at_ms: int
    holder: Holder


class Connections:
    """Open connections by id. The code that opens and closes connections changes it; the administration reads it."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}
        self._of: dict[Holder, str] = {}
        self.kicked = 0

    def add(self, transport: Transport, holder: Holder) -> None:
        connection = Connection(secrets.token_hex(8), transport, time.time_ns() // 1_000_000, holder)
        self._open[connection.id] = connection
        self._of[holder] = connection.id

    def remove(self, holder: Holder, *, code: int | None = None) -> None:
        """Removes a connection. One that was never added is no mistake: it was closed before it was open. `code`: of a
        WebSocket's close."""
        connection_id = self._of.pop(holder, None)
        if connection_id is not None:
            _log_close(self._open.pop(connection_id), code)

    def find(self, connection_id: str) -> Connection | None:
        return self._open.get(connection_id)

    def kick(self, connection: Connection) -> None:
        self.kicked += 1
        self.remove(connection.holder)
        connection.holder.kick()

    def end_polls_without_key(self, still_valid: Callable[[Principal], bool]) -> None:
        """Ends waiting receives whose key was revoked: a receive may wait for a minute, a revoked key must not be used
        so long."""
        for connection in list(self._open.values()):
            if isinstance(connection.holder, WaitingPoll) and not still_valid(connection.holder.principal):
                connection.holder.end(Unauthenticated("the key was revoked or has expired"))

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def waiting(self, principal: Principal, remote: str, queue: Queue, receive: Receive) -> Iterator[WaitingPoll]:
        """Keeps a receive among the connections for as long as it waits."""
        poll = WaitingPoll(principal, remote, queue, receive)
        self.add("poll", poll)
        try:
            yield poll
        finally:
            self.remove(poll)


def _log_close(connection: Connection, code: int | None) -> None:
    """Logs one line for each socket and stream. A receive that waited is a request like any other."""
    if connection.transport == "poll":
        return
    holder = connection.holder
    principal = holder.principal
    log.info(
        "connection closed",
        transport=connection.transport,
        connection=connection.id,
        tenant=principal.tenant if principal is not None else None,
        principal=principal.id if principal is not None else None,
        address=holder.remote,
        seconds=round(max(0, time.time_ns() // 1_000_000 - connection.connected_at_ms) / 1000, 3),
        **({} if code is None else {"code": int(code)}),
    )


class WaitingPoll:
    """A waiting receive as a connection. To the code that serves it, a kick looks as if the client had left."""

    outbox_bytes = 0

    def __init__(self, principal: Principal, remote: str, queue: Queue, receive: Receive) -> None:
        self.principal = principal
        self.remote = remote
        self.ended_by: PushqError | None = None
        """The error for the client once the receive is ended; None before."""
        self._queue = queue
        self._receive = receive
        self._ended = asyncio.Event()

    def reading(self) -> Iterable[Queue]:
        return (self._queue,)

    def kick(self) -> None:
        self.end(Unavailable(KICK_REASON, retry_after_ms=KICK_RETRY_MS))

    def end(self, error: PushqError) -> None:
        self.ended_by = error
        self._ended.set()

    async def receive(self) -> Any:
        """The client's next ASGI message, or a disconnect once the receive is ended."""
        theirs = asyncio.ensure_future(self._receive())
        ours = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({theirs, ours}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if self.ended_by is not None else theirs.result()
        finally:
            for task in (theirs, ours):
                task.cancel()
            await asyncio.gather(theirs, ours, return_exceptions=True)
