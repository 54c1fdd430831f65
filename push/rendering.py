"""A lease's messages as bytes for one consumer; what cannot be made into a message ends as undeliverable."""

from __future__ import annotations

import structlog

from backend_store.client import CorruptEntry, Lease, Queue
from push.encode import leased_messages
from push.ports import Encoding

log = structlog.get_logger("pushq.rendering")


def rendered(queue: Queue, lease: Lease, encoding: Encoding) -> list[bytes]:
    """The messages, each with its receipt; nothing for a lease that is over, or whose messages nobody can read."""
    if not lease.bits:
        return []
    try:
        queue.end_unreadable(lease)
        return leased_messages(lease, encoding) if lease.bits else []
    except CorruptEntry as error:
        # Its checksum is right, so it was written like this: the next consumer would fail on it as well.
        log.error("messages cannot be delivered", queue=queue.name, offset=lease.state.base, reason=str(error))
        queue.undeliverable(lease)
        return []
