"""Tickets that every gateway accepts, once: whoever stores the messages keeps them until they are redeemed.

That is the storage process of several gateway processes, and in a cluster the leader of the first shard, in memory.
If another leader takes over, unredeemed tickets are lost and their clients ask for new ones.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from backend_store.model import Overloaded, Unauthenticated
from backend_store.remote.queues.answers import Flight
from backend_store.remote.store import RemoteBackends
from backend_store.service.tickets import PutTicket, TakeTicket
from gateway.identity.authentication import Clock, Principal
from gateway.identity.authorization import Access, compile_scopes
from gateway.identity.tickets import Ticket, TicketOffice
from gateway.limits import TICKET_SECONDS, TICKETS_MAX
from push.delivery.lookup_retry import LookingUp

_LOOK_SECONDS: Final = 2.0
"""How long the redeemer has to fetch the looked-up content of a ticket."""

_found = msgspec.msgpack.Decoder(bytes | None).decode


class Opens(msgspec.Struct, frozen=True):
    """The content of a ticket: a principal, with the scopes of each narrowing, the widest first."""

    id: str
    tenant: str
    name: str
    scopes: list[tuple[str, ...]]
    valid_until_ms: int
    secret_sha256: bytes
    issuer: str | None
    signed_by: bytes


_opens = msgspec.msgpack.Decoder(Opens).decode


@dataclass(slots=True)
class _Shown:
    """A ticket being redeemed: its look-up, then the answer, for one redeemer."""

    flight: Flight
    opens: bytes | None = None
    has_landed: bool = False


class SharedTickets(TicketOffice):
    """The tickets of one gateway process, stored in the storage process."""

    def __init__(self, store: RemoteBackends, clock_ms: Clock) -> None:
        super().__init__(clock_ms)
        self._store = store
        self._shown: dict[bytes, _Shown] = {}

    async def hand_out(self, principal: Principal) -> Ticket:
        text = secrets.token_urlsafe(24)
        expires_at_ms = self._clock_ms() + TICKET_SECONDS * 1000
        opens = msgspec.msgpack.encode(_packed(principal))
        asked = PutTicket(_digest(text), opens, TICKET_SECONDS * 1000, principal.tenant)
        await self._store.ask(asked, may_repeat=True)
        return Ticket(text, expires_at_ms)

    def redeem(self, text: str) -> Principal:
        """Raises `Unauthenticated`, `Overloaded`, and `LookingUp` until the ticket's content is known."""
        digest = _digest(text)
        shown = self._shown.get(digest)
        if shown is None:
            if len(self._shown) >= TICKETS_MAX:
                raise Overloaded(f"{TICKETS_MAX} tickets are being checked", retry_after_ms=1000)
            flight = Flight(self._store.background(self._take(digest)))
            self._shown[digest] = _Shown(flight)
            raise LookingUp("the ticket", flight)
        if not shown.has_landed:
            raise LookingUp("the ticket", shown.flight)
        opens, shown.opens = shown.opens, None  # a second redeemer gets nothing
        if opens is None:
            raise Unauthenticated(f"the ticket was already used, or is older than {TICKET_SECONDS} s")
        return _principal(_opens(opens))

    async def _take(self, digest: bytes) -> None:
        try:
            found = _found(await self._store.ask(TakeTicket(digest), may_repeat=True))
        except BaseException:
            self._shown.pop(digest, None)
            raise
        shown = self._shown[digest]
        shown.opens, shown.has_landed = found, True
        # Waiting redeemers fetch the answer at once; to later ones the storage answers that the ticket is spent.
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._shown.pop, digest, None)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()


def _packed(principal: Principal) -> Opens:
    scopes: list[tuple[str, ...]] = []
    access: Access | None = principal.access
    while access is not None:
        scopes.insert(0, access.scopes)
        access = access.within
    return Opens(
        principal.id,
        principal.tenant,
        principal.name,
        scopes,
        principal.valid_until_ms,
        principal.secret_sha256,
        principal.issuer,
        principal.signed_by,
    )


def _principal(opens: Opens) -> Principal:
    widest, *narrower = opens.scopes
    access = compile_scopes(widest)
    for scopes in narrower:
        access = access.narrowed(scopes)
    return Principal(
        opens.id,
        opens.tenant,
        opens.name,
        access,
        opens.valid_until_ms,
        opens.secret_sha256,
        opens.issuer,
        opens.signed_by,
    )
