"""Sessions that were cut and may come back: what they still hold waits for them, for a limited time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(slots=True)
class Parked(Generic[Held]):
    """A session without a socket: who it belongs to, and what it holds by (tenant, the queue's place)."""

    session: str
    principal_id: str
    until_ms: int
    held: dict[tuple[str, str], Held] = field(default_factory=dict)
    lost: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The receipts of what it held when it was cut and holds no more, for it to be told when it is back."""


class ParkingLot(Generic[Held]):
    """Parked sessions by id, oldest first. Bounded: the oldest makes room and loses what it held."""

    def __init__(self, sessions_max: int):
        self._sessions_max = sessions_max
        self._parked: dict[str, Parked[Held]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, parked: Parked[Held]) -> Parked[Held] | None:
        """Keeps a session; answers with the one that had to go for it."""
        self._parked.pop(parked.session, None)
        self._parked[parked.session] = parked
        if len(self._parked) > self._sessions_max:
            return self._parked.pop(next(iter(self._parked)))
        return None

    def take(self, session: str, principal_id: str) -> Parked[Held] | None:
        """The session, if it is the caller's own."""
        parked = self._parked.get(session)
        if parked is None or parked.principal_id != principal_id:
            return None
        return self._parked.pop(session)

    def expired(self, now_ms: int) -> list[Parked[Held]]:
        """Takes out the sessions whose time is over. All wait equally long, so the first that may stay ends the
        search.
        """
        out = []
        for parked in list(self._parked.values()):
            if parked.until_ms > now_ms:
                break
            out.append(self._parked.pop(parked.session))
        return out

    def next_ms(self) -> int | None:
        return next((p.until_ms for p in self._parked.values()), None)

    def all(self) -> list[Parked[Held]]:
        return list(self._parked.values())
