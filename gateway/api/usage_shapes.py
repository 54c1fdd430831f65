"""What `/v1/usage` and `/v1/audit` answer."""

from __future__ import annotations

import msgspec

from gateway.usage.live import LiveMinute, LiveQueue, State
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
    unreadable: int
    """Rows of these days that do not read and were passed over, whosoever they were: the counts may lack what they
    said."""


class LiveUsageView(msgspec.Struct):
    """The last hour that the job `live_usage` has of a tenant."""

    tenant: str
    state: State
    """`live`; `stale`: the job has said nothing for a minute; `absent`: it has written nothing yet; `unreadable`."""
    looked_at: str | None
    """When the job last said that it is at work."""
    last_minute: str | None
    """The latest minute that the job counted anything of, of any tenant."""
    minutes: list[LiveMinute]
    """Those in which the tenant did something."""
    queues: list[LiveQueue]
    """Those with most requests."""


class AuditPage(msgspec.Struct):
    items: list[AuditRow]
    """The newest first."""
    next: str | None
    unreadable: int
    """Rows that do not read and were passed over on the way to these, whosoever they were."""
