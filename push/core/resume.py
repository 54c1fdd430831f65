"""Sessions that were cut and may resume: their leases are kept for them, for a limited time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from push.limits import PARKED_TIMES_FREE
from throttling.room import Room

Held = TypeVar("Held")


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


class ParkingLot(Generic[Held]):
    """Parked sessions by id, oldest first. Bounded: parking one more evicts the oldest, which loses what it held; if
    the tenant has its share already, the oldest of that tenant."""

    def __init__(self, sessions_max: int):
        self._room = Room(sessions_max, times_free=PARKED_TIMES_FREE)
        self._parked: dict[str, Parked[Held]] = {}
        self._of: dict[str, dict[str, Parked[Held]]] = {}
        """The same sessions by tenant."""

    def __len__(self) -> int:
        return len(self._parked)

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
        """Removes and returns the sessions whose time is over. The search ends at the first that may stay: all wait
        equally long, but those restored after a restart, which wait longer and delay the ones behind them."""
        out = []
        for parked in list(self._parked.values()):
            if parked.until_ms > now_ms:
                break
            out.append(self._leave(parked))
        return out

    def next_ms(self) -> int | None:
        return next((p.until_ms for p in self._parked.values()), None)

    def all(self) -> list[Parked[Held]]:
        return list(self._parked.values())
