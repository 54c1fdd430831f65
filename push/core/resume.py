"""Sessions that were cut and may resume: their leases are kept for them, for a limited time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from push.limits import PARKED_TIMES_FREE
from throttling.room import Room

Held = TypeVar("Held")

_VOID_TIMES_FREE = 64
"""Void entries of the heap that are kept however few sessions are parked."""


@dataclass(slots=True)
class Parked(Generic[Held]):
    """A session without a socket: its principal, and what it holds by (tenant, the queue's place)."""

    session: str
    principal_id: str
    until_ms: int
    held: dict[tuple[str, str], Held] = field(default_factory=dict)
    lost: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Receipts that it held when it was cut and that were lost since; sent to the client when it resumes."""
    tenant: str = ""


class Absent:
    """The holder of leases whose session is on its way here from another gateway. Receipts of leases that end meanwhile
    are collected for its client."""

    gateway = ""

    def __init__(self, lost: list[str]):
        self._lost = lost

    def released(self, count: int) -> None:
        """Does nothing: no credit waits for it."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        self._lost += receipts

    def sendable(self) -> None:
        """Does nothing: there is no consumer to send to."""


class ParkingLot(Generic[Held]):
    """Parked sessions by id, oldest first. Bounded: parking one more evicts the oldest, which loses what it held; if
    the tenant has its share already, the oldest of that tenant."""

    def __init__(self, sessions_max: int):
        self._room = Room(sessions_max, times_free=PARKED_TIMES_FREE)
        self._parked: dict[str, Parked[Held]] = {}
        self._of: dict[str, dict[str, Parked[Held]]] = {}
        """The same sessions by tenant."""
        self._times: list[tuple[int, str]] = []
        """A heap of (`until_ms`, session). An entry is void if the session has left, or was parked anew until later."""

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, session: str) -> bool:
        return session in self._parked

    def park(self, parked: Parked[Held]) -> Parked[Held] | None:
        """Keeps a session; returns the one that was evicted for it."""
        if (before := self._parked.get(parked.session)) is not None:
            self._leave(before)
        gone: Parked[Held] | None = None
        if not self._room.take(parked.tenant, 1):
            gone = self._leave(next(iter(self._of.get(parked.tenant, self._parked).values())))
            self._room.hold(parked.tenant, 1)
        self._parked[parked.session] = parked
        self._of.setdefault(parked.tenant, {})[parked.session] = parked
        heapq.heappush(self._times, (parked.until_ms, parked.session))
        if len(self._times) > 2 * len(self._parked) + _VOID_TIMES_FREE:
            self._times = sorted((one.until_ms, one.session) for one in self._parked.values())
        return gone

    def take(self, session: str, principal_id: str) -> Parked[Held] | None:
        """Removes and returns the session, if it belongs to the principal."""
        parked = self._parked.get(session)
        if parked is None or parked.principal_id != principal_id:
            return None
        return self._leave(parked)

    def _leave(self, parked: Parked[Held]) -> Parked[Held]:
        own = self._of[parked.tenant]
        del self._parked[parked.session], own[parked.session]
        if not own:
            del self._of[parked.tenant]
        self._room.give(parked.tenant, 1)
        return parked

    def expired(self, now_ms: int) -> list[Parked[Held]]:
        """Removes and returns the sessions whose time is over. Those restored after a restart wait longer."""
        out = []
        while self._times and self._times[0][0] <= now_ms:
            until_ms, session = heapq.heappop(self._times)
            parked = self._parked.get(session)
            if parked is not None and parked.until_ms == until_ms:
                out.append(self._leave(parked))
        return out

    def all(self) -> list[Parked[Held]]:
        return list(self._parked.values())
