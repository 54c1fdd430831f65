"""Requests of gateways about sessions that go on at another gateway; the first shard's leader answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.service.asked import Asked
from backend_store.service.limits import (
    LEFT_BYTES_MAX,
    LEFT_SESSIONS_MAX,
    SEEK_SECONDS_MAX,
    SESSION_KEEP_SECONDS_MAX,
    SESSIONS_SOUGHT_MAX,
)

SWEEP_SECONDS = 0.1
"""How long after their time sessions that nobody came for are dropped."""


class SeekSession(Asked, frozen=True):
    """Asks for a session that a client wants to resume at gateway `by`. The answer is what its gateway says of it, or
    None."""

    session: str
    principal_id: str
    by: str
    tenant: str

    @property
    def whose(self) -> str | None:
        return self.tenant


class GiveSession(Asked, frozen=True):
    """A gateway's answer to a `Sought` frame: the session, which it has no more, or None."""

    session: str
    content: bytes | None


class LeftSession(msgspec.Struct, frozen=True):
    """A session of a gateway that stops."""

    session: str
    principal_id: str
    tenant: str
    content: bytes


class LeaveSessions(Asked, frozen=True):
    """Leaves sessions for whichever gateway is asked for them within `life_ms`. Beyond `LEFT_SESSIONS_MAX` and
    `LEFT_BYTES_MAX` they are dropped: their clients open new ones."""

    sessions: list[LeftSession]
    life_ms: int


async def _seek(store: EmbeddedStore, asked: SeekSession) -> bytes | None:
    return await store.sessions.take(
        asked.session,
        asked.principal_id,
        asked.by,
        store.steady_ms(),
        wait_s=SEEK_SECONDS_MAX,
        most=SESSIONS_SOUGHT_MAX,
    )


async def _give(store: EmbeddedStore, asked: GiveSession) -> None:
    store.sessions.given(asked.session, asked.content)


async def _leave(store: EmbeddedStore, asked: LeaveSessions) -> None:
    now_ms = store.steady_ms()
    life_ms = min(asked.life_ms, 1000 * SESSION_KEEP_SECONDS_MAX)
    sessions = store.sessions
    for one in asked.sessions:
        size = len(one.content)
        if sessions.has_room(one.tenant, size, now_ms, most=LEFT_SESSIONS_MAX, bytes_max=LEFT_BYTES_MAX):
            sessions.leave(one.session, one.principal_id, one.tenant, one.content, now_ms + life_ms)
    asyncio.get_running_loop().call_later(life_ms / 1000 + SWEEP_SECONDS, lambda: sessions.sweep(store.steady_ms()))


HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {
    SeekSession: _seek,
    GiveSession: _give,
    LeaveSessions: _leave,
}
