"""Vocabulary for tests of the one shard of a split queue: which slots it takes, and which it holds back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.log.block import KIND_JSON, Columns, column_blocks, with_names
from backend_store.core.partitions.slots import ALL_SLOTS, packed, slot_of
from backend_store.model import Block, Claim, Published, PushqError, QueueDefinition
from backend_store.service.defining import AdoptQueues
from backend_store.service.operations import perform
from tests.support.node_world import TENANT, NodeWorld

HERE = ALL_SLOTS >> 128
"""Half of the slots; the others are `THERE`."""
THERE = ALL_SLOTS & ~HERE


def text_of(slots: int, number: int = 0) -> str:
    """A key, or an id, in one of these slots."""
    texts = (f"t{n}" for n in range(100_000))
    return next(text for n, text in enumerate(text for text in texts if slots >> slot_of(text) & 1) if n == number)


def as_told(known: QueueDefinition, *, takes: int = ALL_SLOTS, holds: int = 0) -> QueueDefinition:
    return msgspec.structs.replace(
        known,
        version=known.version + 1,
        takes_none=not takes,
        takes=packed(takes) if takes != ALL_SLOTS else b"",
        holds=packed(holds),
    )


def told(world: NodeWorld, name: str = "q", *, takes: int = ALL_SLOTS, holds: int = 0) -> QueueDefinition:
    """Tells the shard the new state of its queue."""
    definition = as_told(world.node.metadata.find(TENANT, name), takes=takes, holds=holds)
    world.do(perform(world.store, AdoptQueues([definition])))
    return definition


def id_of(slots: int, number: int = 0) -> bytes:
    """An id, as seen by the leader, in one of these slots."""
    ids = (b"id %013d" % n for n in range(100_000))
    return next(one for n, one in enumerate(one for one in ids if slots >> slot_of(one) & 1) if n == number)


def claim_of(slots: int, number: int = 0, payload: int = 0) -> Claim:
    """A claim whose key is in one of these slots."""
    return Claim(id_of(slots, number), b"payload %08d" % payload)


def blocks(
    count: int,
    *,
    keys: Sequence[str | None] | None = None,
    ids: Sequence[bytes | None] | None = None,
    claim: Claim | None = None,
) -> list[Block]:
    """Messages as a gateway encodes them for a split queue: under a claim, each has its own identity."""
    columns = Columns(
        KIND_JSON, [b"%d" % n for n in range(count)], {"key": keys} if keys else {}, hashes=ids, claim=claim
    )
    return column_blocks(with_names(columns)).blocks


def publish(
    world: NodeWorld, queue: EmbeddedQueue, made: list[Block], claim: Claim | None = None
) -> list[Published | PushqError]:
    """Publishes; the list receives the response."""
    answers: list[Published | PushqError] = []
    world.tell(lambda: queue.publish(made, answers.append, claim))
    world.settle()
    return answers


def stored(queue: EmbeddedQueue) -> int:
    return sum(partition.state.published_total for partition in queue.partitions)


def raised(world: NodeWorld, work: Any) -> Any:
    """What an operation returns or raises."""

    async def outcome() -> Any:
        try:
            return await work
        except PushqError as error:
            return error

    return world.do(outcome())
