"""A lease's messages as bytes for one consumer; what cannot be made into a message ends as undeliverable."""

from __future__ import annotations

import structlog

from backend_store.client import CorruptEntry, Lease, Queue
from push.encode import leased_messages
from push.ports import Encoding
from push.waits import Waits

log = structlog.get_logger("pushq.rendering")


def rendered(queue: Queue, lease: Lease, encoding: Encoding, waits: Waits) -> list[bytes]:
    """The messages, each with its receipt; nothing for a lease that is over, or whose messages nobody can read."""
    if not lease.bits:
        return []
    try:
        queue.end_unreadable(lease)
        chunk = lease.chunk
        if not lease.bits or chunk is None:
            return []
        messages = leased_messages(lease, encoding)
        waits.of_lease(lease, chunk)
        return messages
    except CorruptEntry as error:
        # Its checksum is right, so it was written like this: the next consumer would fail on it as well.
        log.error("messages cannot be delivered", queue=queue.name, offset=lease.state.base, reason=str(error))
        queue.undeliverable(lease)
        return []
