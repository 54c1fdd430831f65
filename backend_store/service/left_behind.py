"""Counts and drops what a queue, or some of its slots, left in a shard after a move to another cluster."""

from __future__ import annotations

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.partitions.slots import slots_taken
from backend_store.model import Conflict, QueueDefinition, Unavailable
from backend_store.node.log.slot_remains import SlotRemains
from backend_store.node.publishing.moved_away import RETRY_MS
from backend_store.service.limits import LEFT_CHUNKS_PER_ASK_MAX, LEFT_SECONDS_MAX
from backend_store.storage.engine import Batch
from backend_store.words import counted


class Left(msgspec.Struct, frozen=True):
    """Numbers of messages. `unsettled`: ready, leased or delayed. `beside`: dead letters, and messages bound for other
    queues."""

    unsettled: int
    beside: int


def left_of(store: EmbeddedStore, own: QueueDefinition) -> Left:
    """Counts what is left; a message whose ack is not durable yet still counts."""
    unsettled = beside = 0
    for partition in store.node.queues.of(own).all:
        states = (partition.state, partition.decided)
        unsettled += max(state.live for state in states)
        beside += max(sum(tally.live for tally in state.views.values()) for state in states)
    return Left(unsettled, beside)


async def left_of_slots(store: EmbeddedStore, own: QueueDefinition, slots: int) -> Left:
    """Counts what is left of slots that lie elsewhere. Raises `Unavailable` if this shard takes publishes of them."""
    queue = store.node.queues.of(own)
    remains, partitions = queue.remains, queue.all
    if remains is None or remains.slots != slots:
        remains = SlotRemains(slots)
    if slots & slots_taken(queue.definition):
        raise _taken(own)
    queue.remains = remains
    look = remains.look(partitions, chunks_max=LEFT_CHUNKS_PER_ASK_MAX)
    unsettled = await store.node.turnstile.through(look, seconds_max=LEFT_SECONDS_MAX)
    if slots & slots_taken(queue.definition):
        raise _taken(own)
    if queue.all is not partitions:
        unsettled = max(unsettled, 1)  # messages may have gone from a partition not yet counted to a new one
    if not unsettled:
        await store.node.committer.write(Batch())  # makes what was settled just now durable
    return Left(unsettled, 0)


def _taken(own: QueueDefinition) -> Unavailable:
    return Unavailable(f"queue {own.name!r} takes publishes here", retry_after_ms=RETRY_MS)


async def drop_left(store: EmbeddedStore, own: QueueDefinition) -> None:
    """Deletes this shard's part of a queue that lies elsewhere. Raises `Conflict` if it has messages left here."""
    left = left_of(store, own)
    if left.unsettled or left.beside:
        raise Conflict(f"queue {own.name!r} still has {counted(left.unsettled + left.beside, 'message')} here")
    await store.delete_part(own.tenant, own.name)
