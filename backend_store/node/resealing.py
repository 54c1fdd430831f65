"""Messages on their way to another place: those that were sealed are sealed for it, with its queue's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend_store.core.chunk import Chunk, extract
from backend_store.core.sealing import Seal
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
    """Some of a chunk's messages as blocks of the queue whose `seal` it is; none of them may be unreadable.

    `is_encrypted`: what was not sealed is sealed from now on. What was sealed always is. Raises `Unavailable` while the
    queue has no key.
    """
    blocks = extract(chunk, bits, annexes, partition=partition)
    return seal.seal(blocks) if blocks and seal is not None and (is_encrypted or chunk.is_sealed) else blocks
