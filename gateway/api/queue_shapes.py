"""What the API tells of queues: their config, their numbers, and how they lie in partitions."""

from __future__ import annotations

from typing import Literal

import msgspec

from backend_store.model import QueueConfig


class QueueStatsView(msgspec.Struct):
    ready: int
    in_flight: int
    delayed: int
    dead: int
    oldest_age_ms: int
    consumers: int
    bytes: int
    published_total: int
    acked_total: int


class PartitionView(msgspec.Struct):
    """One partition of a queue. `slots` are those whose messages it takes, `slots_arriving` are on their way to it."""

    partition: int
    state: Literal["open", "draining"]
    slots: int
    slots_arriving: int
    ready: int
    in_flight: int
    delayed: int
    dead: int
    bytes: int


class PartitionsView(msgspec.Struct):
    """How many partitions a queue has now. It gets as many open ones as its config says, or `auto_expand` asks for."""

    open: int
    draining: int
    slots_moving: int
    items: list[PartitionView] | msgspec.UnsetType = msgspec.UNSET
    """Left out where queues are listed."""


class QueueView(msgspec.Struct):
    name: str
    config: QueueConfig
    created_at: str
    owner: str
    stats: QueueStatsView | msgspec.UnsetType = msgspec.UNSET
    """Left out in a list while the cluster where the queue lies is away."""
    partitions: PartitionsView | msgspec.UnsetType = msgspec.UNSET
    """Of a queue that has several, had several, or gets more by itself."""
    cluster: str | msgspec.UnsetType = msgspec.UNSET
    """Where its messages lie; left out where the server keeps them itself."""


class QueuePage(msgspec.Struct):
    items: list[QueueView]
    next: str | None = None
