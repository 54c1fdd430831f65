"""The state of a backend's storage for its gateways: disk and commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend_store.client.embedded import EmbeddedStore
from backend_store.node.meter import Load
from backend_store.service.asked import Asked


class TakeReport(Asked, frozen=True):
    """The answer is a `Report`."""


class Report(msgspec.Struct, frozen=True):
    publishes_allowed: bool
    why_no_publishes: str
    waited_ms: float
    """How long the last committed batch had waited for the disk."""
    commit_buckets: list[int]
    commit_sum: float
    commit_last: float
    quarantined: int
    broken_rows: int
    disk_used: float
    """The part of the disk that is in use, 0…1."""
    missing: int = 0
    why_not_durable: str = ""
    """Why nothing is confirmed now; "" where it is."""
    load: Load = Load()
    """The load of the process; `load.node` is "" where the process does not measure its load."""


async def _report(store: EmbeddedStore, asked: TakeReport) -> Report:
    node = store.node
    seconds = node.writer.commit_seconds
    return Report(
        publishes_allowed=node.publishes_allowed(),
        why_no_publishes=node.why_no_publishes(),
        waited_ms=node.committer.waited_ms,
        commit_buckets=list(seconds.buckets),
        commit_sum=seconds.sum,
        commit_last=seconds.last,
        quarantined=node.quarantined,
        broken_rows=node.broken_rows,
        disk_used=node.space.space.used_fraction if node.space is not None else 0.0,
        missing=node.missing,
        why_not_durable=node.why_not_durable(),
        load=store.load(),
    )


HANDLERS: dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]] = {TakeReport: _report}
