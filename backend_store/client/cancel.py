"""Cancels a message by id: a scheduled or ready one ends, and is never delivered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from backend_store.client.search import search
from backend_store.model import PushqError
from backend_store.node.limits import PEEK_SECONDS_MAX
from backend_store.node.views.scan_scheduler import ScanScheduler

if TYPE_CHECKING:
    from backend_store.node.views.view import View

CancelOutcome = Literal["cancelled", "in_flight", "unknown"]


async def cancel(view: View, message_id: str, turnstile: ScanScheduler) -> CancelOutcome:
    """Returns when the end of the message is durable, or at once if there is nothing to end."""
    look = search(view.partition, view.number, message_id)
    place = await turnstile.through(look, seconds_max=PEEK_SECONDS_MAX)
    if view.partition.has_retired:
        return "unknown"
    if view.partition.closed:
        raise view.partition.deleted()
    if place is None:
        return "unknown"
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def durable(done: dict[str, int] | PushqError) -> None:
        if ended.done():
            return  # the caller is gone
        if isinstance(done, PushqError):
            ended.set_exception(done)
        else:
            ended.set_result(done)

    if not view.cancel(*place, durable):
        return "in_flight"
    await ended
    return "cancelled"
