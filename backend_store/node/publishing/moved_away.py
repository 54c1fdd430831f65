"""Answers publishes to a queue that moves to another cluster, or has some of its slots there: known messages are
repeats, and messages of slots that are not taken here are refused.

The ids of earlier messages are only here until their window is over. So a gateway asks here first, and sends unknown
messages to where their slots are now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from backend_store.core.dedupe.numbered_ids import name_in_call
from backend_store.core.log.bits import indexes
from backend_store.core.log.block import gone_of
from backend_store.core.partitions.routing import message_slots, slot_bits
from backend_store.core.partitions.slots import routing_of, slot_of
from backend_store.model import Offset, OnTheMove, Original, Published, PushqError, QueueConfig
from backend_store.node.commit.publish_call import Call, ids_of
from backend_store.node.publishing.idempotency_claims import Claims, Known
from backend_store.node.publishing.refusals import unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.commit.cycle import Answers
    from backend_store.node.partition import Partition

RETRY_MS = 200


def on_the_move(label: str) -> OnTheMove:
    return OnTheMove(f"queue {label!r} is moving to another cluster; send again", retry_after_ms=RETRY_MS)


def kept(partition: Partition, calls: Sequence[Call], answers: Answers) -> list[Call]:
    """Returns the calls, or the parts of calls, whose slots are taken here, and answers the rest. Messages that were in
    the queue before, such as redriven ones, are taken whatever their slots. A call with an idempotency key is taken
    whole or not at all."""
    goes_on = []
    for call in calls:
        is_stray = not partition.takes or bool(_slots_of(call, partition.config) & ~partition.takes)
        if call.must_fit or call.moves:
            partition.inbox.strays += is_stray
        elif is_stray:
            known = recalled([partition, *partition.elders()], call, partition.config)
            rest = _without_strays(call, partition, known) if call.claim is None else None
            if rest is None:
                answers.append((call.reply, known))
                continue
            call = rest
        goes_on.append(call)
    return goes_on


def _without_strays(call: Call, partition: Partition, known: Published | PushqError) -> Call | None:
    """The call with answers, from `known`, for those of its messages that are not taken here; None if that is all of
    them."""
    first, strays = 0, []
    slots = message_slots(call.blocks, routing_of(partition.config))
    for block in call.blocks:
        there = (1 << block.count) - 1 & ~gone_of(block)
        strays += [first + n for n in indexes(there) if not partition.takes >> slots[first + n] & 1]
        first += block.count
    if len(strays) == call.messages:
        return None
    found = known.others or {} if isinstance(known, Published) else {}
    refusal = known if isinstance(known, PushqError) else on_the_move(partition.label)
    others = {n: found.get(n, refusal) for n in strays}
    return msgspec.structs.replace(call, is_plain=False, others=others) if strays else call


def _slots_of(call: Call, config: QueueConfig) -> int:
    """A call's slots, as bits. A key is bound in its own slot, and wherever its call has messages."""
    if call.claim is not None and not call.messages:
        return call.follows or 1 << slot_of(call.claim.key)
    return call.slots or slot_bits(call.blocks, routing_of(config))


def recalled(places: Sequence[Partition], call: Call, config: QueueConfig) -> Published | PushqError:
    """Answers a call with what these partitions remember of its messages, the rest refused as `OnTheMove`; only
    `OnTheMove` if they remember none. A remembered message may not be durable yet."""
    try:
        return _recalled(places, call, config)
    except StorageCorrupt as corrupt:
        return unreadable_ids(corrupt)


def _recalled(places: Sequence[Partition], call: Call, config: QueueConfig) -> Published | PushqError:
    """Raises `StorageCorrupt`."""
    first = places[0]
    refusal = on_the_move(first.label)
    ids = ids_of(call)
    if call.claim is not None:
        now_ms = first.log_ms()
        claims = Claims(first.ids, places[1:], partition=first.index, now_ms=now_ms, config=config)
        said = claims.find(call.claim)
        if isinstance(said, PushqError):
            return said
        if isinstance(said, Original):
            return claims.repeat(call, said)
        if said is Known.ONE_BY_ONE and not call.messages:  # each partition is asked about its own messages next
            return Published(first.index, Offset(-1), 0, fsynced=config.durability == "fsync")
        # The key is unknown here; it may have been bound in another part of the queue.
        ids = [name_in_call(call.claim, n) if one is None else one for n, one in enumerate(ids)]
    elif config.dedupe == "none" and not call.dedupes:
        return refusal
    known: dict[int, Original | PushqError] = {}
    for place in places:
        left = [None if n in known else one for n, one in enumerate(ids)]
        found = place.ids.lookup(left, now_ms=place.log_ms(), window_ms=config.dedupe_window_ms)
        known |= {n: Original(offset, place.index) for n, offset in found.items()}
    if not known:
        return refusal
    others = known | {n: refusal for n in range(call.messages) if n not in known}
    return Published(
        first.index,
        Offset(-1),
        call.messages,
        fsynced=config.durability == "fsync",
        bases=(-1,) * len(call.blocks),
        others=others,
    )
