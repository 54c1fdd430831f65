"""What every request of a gateway is made of, and the queue that one is about."""

from __future__ import annotations

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.groups import used_group
from backend_store.client.queue import EmbeddedQueue
from backend_store.model import QueueNotFound
from backend_store.wire.store_frames import Place


class Asked(msgspec.Struct, frozen=True, tag=True):
    """One request."""

    @property
    def whose(self) -> str | None:
        """The tenant that it is for; None: the gateway's own."""
        return None


class OfTenant(Asked, frozen=True):
    """One that is about a tenant."""

    tenant: str

    @property
    def whose(self) -> str | None:
        return self.tenant


class AtPlace(Asked, frozen=True):
    """One that is about a queue or a group."""

    place: Place

    @property
    def whose(self) -> str | None:
        return self.place.tenant


def queue_at(store: EmbeddedStore, place: Place) -> EmbeddedQueue:
    """The queue of a place, or the group. Raises `QueueNotFound`, also for a newer queue of that name; `NotFound` for a
    group that is gone, and `InvalidRequest` for one of a work queue."""
    queue = store.here(place.tenant, place.name)
    if queue.uid != place.uid:
        raise QueueNotFound(f"queue {place.name!r} was deleted")
    return queue if place.group is None else used_group(queue, place.group)
