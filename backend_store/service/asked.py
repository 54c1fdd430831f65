"""The base classes of gateways' requests, and the look-up of the queue that a request is about."""

from __future__ import annotations

import msgspec

from backend_store.client.embedded import OUTBOX_SUFFIX, EmbeddedStore
from backend_store.client.groups import used_group
from backend_store.client.queue import EmbeddedQueue
from backend_store.model import QueueNotFound
from backend_store.wire.store_frames import Place


class Asked(msgspec.Struct, frozen=True, tag=True):
    """One request."""

    @property
    def whose(self) -> str | None:
        """The tenant whose room the request takes; None: the gateway's own."""
        return None


class OfTenant(Asked, frozen=True):
    """A request about a tenant."""

    tenant: str

    @property
    def whose(self) -> str | None:
        return self.tenant


class AtPlace(Asked, frozen=True):
    """A request about a queue or a group."""

    place: Place

    @property
    def whose(self) -> str | None:
        return self.place.tenant


def queue_at(store: EmbeddedStore, place: Place) -> EmbeddedQueue:
    """The queue at a place, its outbox, or the group. Raises `QueueNotFound`, also where a newer queue has the name;
    `NotFound` for a group that is gone, and `InvalidRequest` for a group of a work queue."""
    if place.name.endswith(OUTBOX_SUFFIX):
        queue = store.outbox(place.tenant, place.name.removesuffix(OUTBOX_SUFFIX))
    else:
        queue = store.here(place.tenant, place.name)
    if queue.uid != place.uid:
        raise QueueNotFound(f"queue {place.name!r} was deleted")
    return queue if place.group is None else used_group(queue, place.group)
