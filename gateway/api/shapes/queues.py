"""Answers of the API about queues: their config, their stats, and their partitions."""

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
    """One partition of a queue. `slots`: number of slots whose messages it takes; `slots_arriving`: moving to it."""

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
    """The partitions of a queue now. The number of open ones approaches that of its config, or of `auto_expand`."""

    open: int
    draining: int
    slots_moving: int
    items: list[PartitionView] | msgspec.UnsetType = msgspec.UNSET
    """Left out in lists of queues."""


class QueueView(msgspec.Struct):
    name: str
    config: QueueConfig
    created_at: str
    owner: str
    stats: QueueStatsView | msgspec.UnsetType = msgspec.UNSET
    """Left out in a list while the queue's cluster is away."""
    partitions: PartitionsView | msgspec.UnsetType = msgspec.UNSET
    """Only for a queue that has several, had several, or expands automatically."""
    cluster: str | msgspec.UnsetType = msgspec.UNSET
    """The cluster of its messages; left out if the server stores them itself."""


class QueuePage(msgspec.Struct):
    items: list[QueueView]
    next: str | None = None
