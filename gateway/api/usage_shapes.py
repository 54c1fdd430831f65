"""What `/v1/usage` and `/v1/audit` answer."""

from __future__ import annotations

import msgspec

from gateway.usage.schema import AuditRow


class UsageView(msgspec.Struct):
    """What was counted of one queue."""

    queue: str
    queue_uid: int
    """Tells apart queues that had one name, one after the other."""
    published: int
    published_bytes: int
    delivered: int
    """Messages that were acknowledged, by each consumer group of a stream."""
    counts: dict[str, int]
    """Everything the ledger has of it, by kind."""


class UsagePage(msgspec.Struct):
    items: list[UsageView]
    next: str | None
    tenant: str
    from_: str = msgspec.field(name="from")
    to: str


class AuditPage(msgspec.Struct):
    items: list[AuditRow]
    """The newest first."""
    next: str | None
