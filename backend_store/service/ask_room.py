"""Admission of requests other than publishes and receipts, at a gateway's connection and at its backend: limits how
many are in progress.

Tenants share the room, so that a tenant whose requests are slow, or many, delays its own. The gateway's own requests
have room beside the tenants', and so have operators': a request that mends something must get through.
"""

from __future__ import annotations

from backend_store.model import Overloaded
from backend_store.words import counted
from throttling.room import Room


class AskRoom:
    def __init__(self, where: str, asks_max: int, *, own_max: int) -> None:
        """`where`: what the requests do there, for error messages."""
        self._where = where
        self._room = Room(asks_max)
        self._own_max = own_max
        self._own = 0

    def take(self, whose: str | None) -> None:
        """Counts one request until `give`. `whose`: a tenant; "": callers that are not authenticated yet; None: the
        gateway itself or an operator. Raises `Overloaded`."""
        if whose is None:
            if self._own >= self._own_max:
                what = f"{counted(self._own, 'request')} of operators and of this gateway itself"
                raise Overloaded(f"{what} {self._where}, the most that may; try again later", retry_after_ms=500)
            self._own += 1
        elif not self._room.take(whose, 1):
            raise Overloaded(self._refusal(whose), retry_after_ms=500)

    def give(self, whose: str | None) -> None:
        if whose is None:
            self._own -= 1
        else:
            self._room.give(whose, 1)

    def _refusal(self, whose: str) -> str:
        used, most = self._room.used, self._room.bytes_max
        if used >= most:
            return f"{counted(used, 'request')} of all tenants {self._where}, the most that may; try again later"
        of = f"of tenant {whose!r}" if whose else "of those who have not said who they are"
        held = counted(self._room.held(whose), "request")
        return (
            f"{held} {of} {self._where}, as many as there is room for beside all others; "
            "wait for an answer before you ask more"
        )
