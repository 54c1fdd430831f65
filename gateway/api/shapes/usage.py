"""Answers of `/v1/usage` and `/v1/audit`."""

from __future__ import annotations

import msgspec

from gateway.usage.live import LiveMinute, LiveQueue, State
from gateway.usage.schema import AuditRow


class UsageView(msgspec.Struct):
    """The usage of one queue."""

    queue: str
    queue_uid: int
    """Distinguishes queues that had the same name one after the other."""
    published: int
    published_bytes: int
    delivered: int
    """Messages that were acknowledged, by each consumer group of a stream."""
    counts: dict[str, int]
    """All counts of the ledger, by kind."""


class UsagePage(msgspec.Struct):
    items: list[UsageView]
    next: str | None
    tenant: str
    from_: str = msgspec.field(name="from")
    to: str
    unreadable: int
    """Unreadable rows of these days, of any tenant, that were skipped: the counts may be too low."""


class LiveUsageView(msgspec.Struct):
    """A tenant's last hour, as the job `live_usage` has it."""

    tenant: str
    state: State
    """`live`; `stale`: no sign of life of the job for a minute; `absent`: it has written nothing yet; `unreadable`."""
    looked_at: str | None
    """The job's last sign of life."""
    last_minute: str | None
    """The latest minute with counts of any tenant."""
    minutes: list[LiveMinute]
    """Minutes in which the tenant was active."""
    queues: list[LiveQueue]
    """The queues with the most requests."""


class AuditPage(msgspec.Struct):
    items: list[AuditRow]
    """Acts, newest first."""
    next: str | None
    unreadable: int
    """Unreadable rows, of any tenant, that were skipped before these items."""
