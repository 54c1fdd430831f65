"""Checks, before anything is decided, whether a queue would take the messages of a transaction.

A transaction is atomic, so whatever publishing would refuse later must be known now. Publishes that were promised room
come first in their cycle, so nothing can come between this check and the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend_store.model import Block, DedupeFull, OutcomeUnknown, Overloaded, PushqError, Stamp, Unavailable
from backend_store.node.publishing.queue_limits import NOTHING, Amount, QueueLimits, has_limits
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.partition import Partition


def why_refused(
    partition: Partition, blocks: Sequence[Block], elsewhere: Sequence[Block], freed: Amount | None = NOTHING
) -> PushqError | None:
    """`elsewhere`: what goes to other partitions of the queue with the same commit. `freed`: what the transaction
    settles; None if messages only move within the queue, which then holds no more than before.
    """
    over = _limits(partition, [*blocks, *elsewhere], freed) if freed is not None else None
    return over or _order(partition, blocks) or _ids(partition, blocks)


def _limits(partition: Partition, blocks: Sequence[Block], freed: Amount) -> PushqError | None:
    """A full queue that makes room makes it for these messages as well, as far as it can."""
    config = partition.config
    if not has_limits(config) or (config.kind == "stream" and config.overflow == "drop_oldest"):
        return None
    siblings = partition.siblings()
    blocks = [*blocks, *(block for other in siblings for block in other.inbox.promised)]
    room = QueueLimits(partition.state, config, partition.main, siblings, freed=freed)
    need = room.need(blocks)
    if room.evicts:
        return None if room.may_fit(need) else room.refusal(need)
    return room.refusal() if any(room.over(need)) and config.overflow == "reject" else None


def _order(partition: Partition, blocks: Sequence[Block]) -> PushqError | None:
    if partition.sorting is None:
        return None
    stamps: list[Stamp | None] = []
    for block in blocks:
        stamps += block.traits.stamps if block.traits and block.traits.stamps is not None else [None] * block.count
    refused = partition.sorting.decide(stamps, partition.log_ms(), None).refused
    return next(iter(refused.values()), None)


def _ids(partition: Partition, blocks: Sequence[Block]) -> PushqError | None:
    if partition.config.dedupe == "none":
        return None
    ids = [one for b in blocks if b.traits and b.traits.ids is not None for one in b.traits.ids]
    try:
        for known in (partition, *partition.elders()):
            known.ids.lookup(ids, now_ms=known.log_ms(), window_ms=partition.config.dedupe_window_ms)
        if not partition.ids.has_room(len(ids)):
            return dedupe_full()
    except StorageCorrupt as corrupt:
        return unreadable_ids(corrupt)
    return None


def dedupe_full() -> DedupeFull:
    return DedupeFull("the deduplication window has reached its limit of ids; retry when older ids have expired")


def unreadable_ids(corrupt: StorageCorrupt) -> Unavailable:
    """The ids must be readable: to take the message as new would be a guess."""
    return Unavailable(f"the ids of earlier messages cannot be read: {corrupt}")


def too_late(label: str) -> Overloaded:
    """The request's time was over before the disk was free."""
    return Overloaded(f"queue {label!r}: the request timed out; nothing was accepted", retry_after_ms=1000)


def outcome_open(label: str) -> OutcomeUnknown:
    """The request's time was over while its messages were being written."""
    return OutcomeUnknown(f"queue {label!r}: the disk did not respond within the request's timeout")
