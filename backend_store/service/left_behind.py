"""What a queue that moved to another cluster left in a shard, and what it finds there when it comes back."""

from __future__ import annotations

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Conflict, QueueDefinition
from backend_store.words import counted


class Left(msgspec.Struct, frozen=True):
    """`unsettled`: ready, leased or waiting for their time. `beside`: dead letters, and what is to go elsewhere."""

    unsettled: int
    beside: int


def left_of(store: EmbeddedStore, own: QueueDefinition) -> Left:
    """What an ack settles that is not durable yet is left."""
    unsettled = beside = 0
    for partition in store.node.queues.of(own).all:
        states = (partition.state, partition.decided)
        unsettled += max(state.live for state in states)
        beside += max(sum(tally.live for tally in state.views.values()) for state in states)
    return Left(unsettled, beside)


async def drop_left(store: EmbeddedStore, own: QueueDefinition) -> None:
    """The queue lies here no more. Raises `Conflict` where it has something left."""
    left = left_of(store, own)
    if left.unsettled or left.beside:
        raise Conflict(f"queue {own.name!r} still has {counted(left.unsettled + left.beside, 'message')} here")
    await store.delete_queue(own.tenant, own.name)
