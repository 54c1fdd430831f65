"""The placement of a queue: each of its partitions in one shard of one cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from backend_store.metadata.changes import Moment, News
from backend_store.metadata.directory.limits import PARTS_PER_QUEUE_MAX
from backend_store.metadata.limits import PAGE_ITEMS_MAX
from backend_store.metadata.service import Read
from backend_store.model import InvalidRequest


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a queue."""

    partition: int
    cluster: str
    shard: int
    """The shard's number within the cluster, from 0."""


class Placement(msgspec.Struct, frozen=True):
    uid: int
    """The queue's uid, which no other queue ever has."""
    tenant: str
    name: str
    parts: tuple[Part, ...]
    """By partition, each once."""
    version: int
    """From 1; each change adds one."""

    def part(self, partition: int = 0) -> Part:
        """Raises `KeyError`."""
        for part in self.parts:
            if part.partition == partition:
                return part
        raise KeyError(partition)


class Directory(Protocol):
    """Queries and writes of placements, for shards and gateways. Every call may raise `Unavailable`."""

    async def get_placement(self, uid: int) -> Read[Placement | None]:
        """None: the queue has not been placed, or no queue has that uid."""

    async def list_placements(self, *, after: int = 0, limit: int = PAGE_ITEMS_MAX) -> list[Placement]:
        """Placements of queues with uids above `after`, in order of uid."""

    async def place(self, tenant: str, name: str, uid: int, parts: Sequence[Part], *, version: int) -> Placement | None:
        """Writes a queue's placement over the version that it is based on; 0: not placed yet. None: the version is
        another one.

        Raises `QueueNotFound` where no queue of that name has that uid, `InvalidRequest`, `OutcomeUnknown`.
        """

    def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """Includes changes of placements: their name is the queue's uid."""


def checked(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Returns the parts in order of partition. Raises `InvalidRequest`."""
    if not 1 <= len(parts) <= PARTS_PER_QUEUE_MAX:
        raise InvalidRequest(f"parts has {len(parts)} entries; 1 to {PARTS_PER_QUEUE_MAX} are taken")
    ordered = tuple(sorted(parts, key=lambda part: part.partition))
    for number, part in enumerate(ordered):
        if part.partition != number:
            raise InvalidRequest(f"parts names partition {part.partition} where {number} is due: each from 0 on, once")
        if part.shard < 0:
            raise InvalidRequest(f"parts[{number}].shard is {part.shard}; shards are numbered from 0")
        if len(part.cluster) > 64:
            raise InvalidRequest(f"parts[{number}].cluster has {len(part.cluster)} characters; at most 64 are taken")
    return ordered
