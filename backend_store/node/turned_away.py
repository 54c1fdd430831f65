"""Answers publishes to a queue that moves to another cluster: what is known here is a repeat, and nothing is taken.

The ids of what came before lie here until their window is over, and nobody else has them. So a gateway asks here first,
and brings what is not known to where the queue lies now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend_store.core.names import name_in_call
from backend_store.model import Offset, OnTheMove, Original, Published, PushqError
from backend_store.node.calls import Call, ids_of
from backend_store.node.claims import Claims, Known
from backend_store.node.refusals import unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.cycle import Answers
    from backend_store.node.partition import Partition

RETRY_MS = 200


def on_the_move(label: str) -> OnTheMove:
    return OnTheMove(f"queue {label!r} moves to another cluster; send again", retry_after_ms=RETRY_MS)


def kept(partition: Partition, calls: Sequence[Call], answers: Answers) -> list[Call]:
    """The calls that may go on: messages that were in the queue before, redriven ones among them, find room here. All
    others have their answer."""
    goes_on = []
    for call in calls:
        if call.must_fit or call.moves:
            goes_on.append(call)
        else:
            answers.append((call.reply, _answer(partition, call)))
    return goes_on


def _answer(partition: Partition, call: Call) -> Published | PushqError:
    try:
        return _repeat(partition, call)
    except StorageCorrupt as corrupt:
        return unreadable_ids(corrupt)


def _repeat(partition: Partition, call: Call) -> Published | PushqError:
    """Raises `StorageCorrupt`."""
    config, refusal = partition.config, on_the_move(partition.label)
    ids = ids_of(call)
    if call.claim is not None:
        claims = Claims(
            partition.ids, partition.elders(), partition=partition.index, now_ms=partition.log_ms(), config=config
        )
        said = claims.find(call.claim)
        if said is None:
            return refusal
        if isinstance(said, PushqError):
            return said
        if isinstance(said, Original):
            return claims.repeat(call, said)
        assert said is Known.ONE_BY_ONE
        if not call.messages:  # of several partitions each is asked about its own next
            return Published(partition.index, Offset(-1), 0, fsynced=config.durability == "fsync")
        ids = [name_in_call(call.claim, n) if one is None else one for n, one in enumerate(ids)]
    elif config.dedupe == "none" and not call.dedupes:
        return refusal
    known: dict[int, Original | PushqError] = {}
    for place in (partition, *partition.elders()):
        found = place.ids.lookup(ids, now_ms=place.log_ms(), window_ms=config.dedupe_window_ms)
        known |= {n: Original(offset, place.index) for n, offset in found.items() if n not in known}
    if not known:
        return refusal
    others = known | {n: refusal for n in range(call.messages) if n not in known}
    return Published(
        partition.index,
        Offset(-1),
        call.messages,
        fsynced=config.durability == "fsync",
        bases=(-1,) * len(call.blocks),
        others=others,
    )
