"""Sessions of the console. No I/O: time and randomness are arguments.

A cookie holds a secret; the session is found by its hash. The credential stays on the server, and each page checks with
the server that it is still valid, so a session ends with its key.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256

from throttling.census import network_of
from web_console.limits import (
    LOGIN_ADDRESSES_MAX,
    LOGINS_PER_MINUTE_MAX,
    SESSION_IDLE_SECONDS_MAX,
    SESSION_SECONDS_MAX,
    SESSIONS_MAX,
    SESSIONS_PER_CALLER_MAX,
)
from web_console.server import Caller


@dataclass(slots=True)
class Session:
    caller: Caller
    credential: str = field(repr=False)
    form_token: str = field(repr=False)
    """Included in each form of this session, so that no other site can send one."""
    began_s: float
    seen_s: float
    notice: tuple[str, str] | None = None
    """What the next page reports first, and whether it is good or bad."""
    streams: int = 0
    """The session's open live pages."""


class Sessions:
    """Open sessions, bounded in all and by caller."""

    def __init__(self) -> None:
        self._open: OrderedDict[bytes, Session] = OrderedDict()
        """By the hash of the cookie's secret, the one used last at the end."""

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, caller: Caller, credential: str, *, secret: str, form_token: str, now_s: float) -> Session:
        mine = [digest for digest, one in self._open.items() if one.caller.id == caller.id]
        for digest in mine[: max(0, len(mine) - SESSIONS_PER_CALLER_MAX + 1)]:
            del self._open[digest]
        while len(self._open) >= SESSIONS_MAX:
            self._open.popitem(last=False)
        session = self._open[_digest(secret)] = Session(caller, credential, form_token, now_s, now_s)
        return session

    def find(self, secret: str, now_s: float, *, is_seen: bool = True) -> Session | None:
        """The session of a cookie. `is_seen`: a person asked; the requests of a live page do not prolong a session."""
        digest = _digest(secret)
        session = self._open.get(digest)
        if session is None:
            return None
        if now_s - session.seen_s >= SESSION_IDLE_SECONDS_MAX or now_s - session.began_s >= SESSION_SECONDS_MAX:
            del self._open[digest]
            return None
        if is_seen:
            session.seen_s = now_s
            self._open.move_to_end(digest)
        return session

    def end(self, secret: str) -> Session | None:
        return self._open.pop(_digest(secret), None)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


class Attempts:
    """Refused sign-ins by address, in the present minute. Addresses of one IPv6 network count as one."""

    def __init__(self) -> None:
        self._minute = 0
        self._refused: Counter[str] = Counter()

    def may_try(self, address: str, now_s: float) -> bool:
        self._turn(now_s)
        return self._refused[self._place(address)] < LOGINS_PER_MINUTE_MAX

    def refused(self, address: str, now_s: float) -> None:
        """Counts a refusal. If more addresses try than are remembered, the others share one count."""
        self._turn(now_s)
        self._refused[self._place(address)] += 1

    def _place(self, address: str) -> str:
        place = network_of(address)
        return place if place in self._refused or len(self._refused) < LOGIN_ADDRESSES_MAX else ""

    def _turn(self, now_s: float) -> None:
        minute = int(now_s // 60)
        if minute != self._minute:
            self._minute = minute
            self._refused.clear()
