"""Finds the holder of a message in flight, as far as this gateway knows: its own connections and answered receives.

Nothing is stored for this: a lease knows its holder while it lasts.
"""

from __future__ import annotations

from backend_store.client import Queue, timestamp
from gateway.api.shapes.bodies import HeldView, HolderView
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from gateway.identity.authorization import may_administer
from push.transports.longpoll import Poll


def held(gateway: Gateway, asking: Principal, queue: Queue, partition: int, offset: int) -> HeldView:
    """The lease of a message; only callers that may close connections see the consumer."""
    lease = queue.held_by(partition, offset)
    if lease is None:
        return HeldView(None, None)
    expires_at = timestamp(lease.deadline_ms) if lease.deadline_ms > 0 else None
    return HeldView(
        expires_at, _holder(gateway, lease.holder) if may_administer(asking.access, "connections") else None
    )


def _holder(gateway: Gateway, holder: object) -> HolderView | None:
    if isinstance(holder, Poll):
        by, address = holder.asker or (None, "")
        return HolderView(by.id, by.name, "poll", address, None, None) if isinstance(by, Principal) else None
    for connection in gateway.hub.open:
        if any(one is holder for one in connection.holder.reading()):
            by, since = connection.holder.principal, timestamp(connection.connected_at_ms)
            assert isinstance(by, Principal)
            return HolderView(by.id, by.name, connection.transport, connection.holder.remote, connection.id, since)
    return None
