"""Sessions that move between gateways: who has which, and those that a gateway left behind when it stopped.

A client that was cut may come back to any gateway. That one asks here; the gateway that has the session gives it away.
A session's id names the gateway that opened it, so nothing is stored for a session that stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256

from backend_store.client.tickets import Tickets

Reach = Callable[[str, str, str], bool]
"""Asks a gateway (its id) for a session of a principal; False if it is not connected or cannot be asked."""

_GATEWAY = "gateway-"


def session_suffix(gateway: str) -> str:
    """The end of the ids of sessions that a gateway opens."""
    return "." + gateway.removeprefix(_GATEWAY)


def opened_by(session: str) -> str:
    """The id of the gateway that opened a session; for other text the id of none."""
    return _GATEWAY + session.rpartition(".")[2]


class MovingSessions:
    """What a session contains is known to gateways only; here that is bytes. All of it is kept in memory."""

    def __init__(self) -> None:
        self.reach: Reach = lambda gateway, session, principal: False
        self._left = Tickets()
        self._at: dict[str, str] = {}
        """Session → gateway, for those that were given to another gateway than the one that opened them; oldest
        first."""
        self._sought: dict[str, asyncio.Future[bytes | None]] = {}

    def leave(self, session: str, principal: str, tenant: str, content: bytes, until_ms: int) -> None:
        """Keeps a session whose gateway stops."""
        self._left.put(_key(session, principal), tenant, content, until_ms)

    @property
    def left(self) -> int:
        """How many sessions are kept whose gateways have stopped."""
        return len(self._left)

    def has_room(self, tenant: str, size: int, now_ms: int, *, most: int, bytes_max: int) -> bool:
        """Whether one more session of a tenant may be left, with a content of `size` bytes."""
        has_place = self._left.has_room(tenant, now_ms, most=most)
        return has_place and self._left.has_bytes(tenant, size, most=bytes_max)

    def sweep(self, now_ms: int) -> None:
        """Drops the sessions that nobody came for in time."""
        self._left.sweep(now_ms)

    async def take(
        self, session: str, principal: str, by: str, now_ms: int, *, wait_s: float, most: int
    ) -> bytes | None:
        """Gives a session to the gateway `by`: its content, or None if no gateway has it, it belongs to another
        principal, or its gateway does not answer within `wait_s`. `most`: how many may be asked for at once."""
        content = self._left.take(_key(session, principal), now_ms)
        if content is None:
            content = await self._ask(session, principal, by, wait_s=wait_s, most=most)
        if content is not None:
            self._at.pop(session, None)
            self._at[session] = by
            while len(self._at) > most:
                del self._at[next(iter(self._at))]
        return content

    async def _ask(self, session: str, principal: str, by: str, *, wait_s: float, most: int) -> bytes | None:
        holder = self._at.get(session) or opened_by(session)
        if holder == by or session in self._sought or len(self._sought) >= most:
            return None
        if not self.reach(holder, session, principal):
            return None
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._sought[session] = answer
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._sought[session]

    def given(self, session: str, content: bytes | None) -> None:
        """The answer of the gateway that was asked for a session."""
        waiting = self._sought.get(session)
        if waiting is not None and not waiting.done():
            waiting.set_result(content)


def _key(session: str, principal: str) -> bytes:
    return sha256(f"{session}\0{principal}".encode("utf-8", "replace")).digest()
