"""Tickets let a browser open a stream without its token in the URL. Each is valid once, for 30 s, on this server."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from backend_store.model import Overloaded, Unauthenticated
from gateway.identity.authentication import Clock, Principal
from gateway.limits import TICKET_SECONDS, TICKETS_MAX
from throttling.room import Room


@dataclass(frozen=True, slots=True)
class Ticket:
    text: str
    expires_at_ms: int


class TicketOffice:
    """The issued tickets, oldest first: all live equally long, so the first one expires first."""

    def __init__(self, clock_ms: Clock, *, steady_ms: Clock | None = None, tickets_max: int = TICKETS_MAX) -> None:
        """`steady_ms` measures a ticket's age; `clock_ms` gives the expiry that its holder is told. By default one
        clock serves for both."""
        self._clock_ms = clock_ms
        self._steady_ms = clock_ms if steady_ms is None else steady_ms
        self._room = Room(tickets_max)
        self._issued: dict[str, tuple[Principal, int]] = {}

    def issue(self, principal: Principal) -> Ticket:
        """Makes a ticket. Raises `Overloaded` if too many are waiting to be used, of the tenant or in all."""
        now_ms = self._steady_ms()
        self._drop_expired(now_ms)
        if not self._room.take(principal.tenant, 1):
            raise Overloaded(f"{self._room.used} tickets are waiting to be used", retry_after_ms=1000)
        ticket = Ticket(secrets.token_urlsafe(24), self._clock_ms() + TICKET_SECONDS * 1000)
        self._issued[ticket.text] = principal, now_ms + TICKET_SECONDS * 1000
        return ticket

    async def hand_out(self, principal: Principal) -> Ticket:
        """Makes a ticket that is valid before it is returned. Raises `Overloaded`."""
        return self.issue(principal)

    def redeem(self, text: str) -> Principal:
        """Spends a ticket and returns its principal. Raises `Unauthenticated`."""
        principal, until_ms = self._issued.pop(text, (None, 0))
        if principal is not None:
            self._room.give(principal.tenant, 1)
        if principal is None or self._steady_ms() >= until_ms:
            raise Unauthenticated(f"the ticket was already used, or is older than {TICKET_SECONDS} s")
        return principal

    def _drop_expired(self, now_ms: int) -> None:
        while self._issued:
            oldest = next(iter(self._issued))
            principal, until_ms = self._issued[oldest]
            if until_ms > now_ms:
                return
            del self._issued[oldest]
            self._room.give(principal.tenant, 1)
