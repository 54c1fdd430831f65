"""Tickets that gateways of one machine share: made at one, spent at any, once.

They are in memory, for they live half a minute. What one opens is the gateways' business; here it is bytes under the
hash of its text, so nothing here can be used as a ticket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Overloaded
from backend_store.service.asked import Asked
from backend_store.service.limits import SHARED_TICKETS_MAX


class PutTicket(Asked, frozen=True):
    """All live equally long, so the first to expire is always in front."""

    digest: bytes
    opens: bytes
    life_ms: int


class TakeTicket(Asked, frozen=True):
    """Spends it. The answer is None for one that is not there, or not any more."""

    digest: bytes


async def _put(store: EmbeddedStore, asked: PutTicket) -> None:
    now_ms, tickets = store.steady_ms(), store.tickets
    while tickets and tickets[first := next(iter(tickets))][1] <= now_ms:
        del tickets[first]
    if len(tickets) >= SHARED_TICKETS_MAX:
        raise Overloaded(f"{SHARED_TICKETS_MAX} tickets wait to be used", retry_after_ms=1000)
    tickets[asked.digest] = asked.opens, now_ms + asked.life_ms


async def _take(store: EmbeddedStore, asked: TakeTicket) -> bytes | None:
    opens, until_ms = store.tickets.pop(asked.digest, (None, 0))
    return opens if store.steady_ms() < until_ms else None


HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {PutTicket: _put, TakeTicket: _take}
