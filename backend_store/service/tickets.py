"""Tickets that gateways share: made at one gateway, spent at any, once.

They are kept in memory, for they live half a minute. Only gateways know what a ticket opens; here that is bytes under
the hash of the ticket's text, so nothing stored here can be used as a ticket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Overloaded
from backend_store.service.asked import Asked
from backend_store.service.limits import SHARED_TICKETS_MAX


class PutTicket(Asked, frozen=True):
    """See `client.tickets`."""

    digest: bytes
    opens: bytes
    life_ms: int
    tenant: str = ""
    """The tenant that it belongs to."""


class TakeTicket(Asked, frozen=True):
    """Spends a ticket. The answer is None for an unknown or expired one."""

    digest: bytes


async def _put(store: EmbeddedStore, asked: PutTicket) -> None:
    now_ms, tickets = store.steady_ms(), store.tickets
    if not tickets.has_room(asked.tenant, now_ms, most=SHARED_TICKETS_MAX):
        raise Overloaded(f"{len(tickets)} tickets are waiting to be used", retry_after_ms=1000)
    tickets.put(asked.digest, asked.tenant, asked.opens, now_ms + asked.life_ms)


async def _take(store: EmbeddedStore, asked: TakeTicket) -> bytes | None:
    return store.tickets.take(asked.digest, store.steady_ms())


HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {PutTicket: _put, TakeTicket: _take}
