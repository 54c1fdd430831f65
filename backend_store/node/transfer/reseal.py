"""Seals moving messages again with the key of the queue they move to.

A backend has no keys. There a sealed message can only move within its queue, in its whole block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backend_store.core.leases.nack_reasons import moved_history
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Chunk, clear_column, extract, moved_whole
from backend_store.core.log.sealed_block import Seal
from backend_store.core.partitions.slots import Routing, by_slot
from backend_store.model import Block


def resealed(
    chunk: Chunk,
    bits: int,
    annexes: Mapping[int, Mapping[str, Any]],
    *,
    partition: int,
    seal: Seal | None,
    is_encrypted: bool = False,
) -> list[Block]:
    """Some of a chunk's messages as blocks for the queue that owns `seal`; none of them may be unreadable.

    `is_encrypted`: unsealed messages are sealed from now on. Sealed ones always stay sealed. Raises `Unavailable` while
    the queue has no key.
    """
    if seal is not None and seal is not chunk.seal:
        annexes = _retold(chunk, bits, annexes, seal, is_encrypted=is_encrypted)
    blocks = extract(chunk, bits, annexes, partition=partition)
    return seal.seal(blocks) if blocks and seal is not None and (is_encrypted or chunk.is_sealed) else blocks


def _retold(
    chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], seal: Seal, *, is_encrypted: bool
) -> Mapping[int, Mapping[str, Any]]:
    """Rewrites the recorded ends of the messages so that the other queue can read them."""
    lying = clear_column(chunk, "dead")
    if lying is None and not any(annex.get("dead") for annex in annexes.values()):
        return annexes
    out = dict(annexes)
    for index in indexes(bits):
        annex = annexes.get(index, {})
        dead = annex["dead"] if "dead" in annex else lying[index] if lying is not None else None
        if dead:
            out[index] = {**annex, "dead": moved_history(dead, chunk.seal, seal, is_encrypted=is_encrypted)}
    return out


def unopened(
    chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], *, partition: int, routing: Routing | None
) -> list[Block]:
    """Messages of a chunk that cannot be opened here, as blocks of the queue they were sealed for.

    With `routing`, for a queue with several partitions, each block holds messages of one slot, because it cannot be
    split later.
    """
    if routing is None:
        return moved_whole(chunk, bits, annexes, partition=partition)
    return [
        msgspec.structs.replace(block, slots=slots)
        for slots, own in by_slot(clear_column(chunk, "key"), bits, routing)
        for block in moved_whole(chunk, own, annexes, partition=partition)
    ]
