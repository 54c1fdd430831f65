"""Renders a lease's messages as bytes for one consumer; a message that cannot be rendered ends as undeliverable.

A stream keeps such a message: its readers are sent a gap and go on after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from backend_store.client import Chunk, CorruptEntry, Lease, Queue
from push.delivery.wait_times import WaitTimes
from push.encoding.deliveries import leased_messages
from push.ports import Encoding

log = structlog.get_logger("pushq.rendering")

Shown = TypeVar("Shown")


def rendered(queue: Queue, lease: Lease, encoding: Encoding, waits: WaitTimes) -> list[bytes]:
    """The messages, each with its receipt; empty for a lease that is over, or whose messages cannot be read."""
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
        # Its checksum is right, so it was written like this: every consumer would fail on it.
        log.error("messages cannot be delivered", queue=queue.name, offset=lease.state.base, reason=str(error))
        queue.undeliverable(lease)
        return []


def first_shown(chunk: Chunk, start: int, stop: int, show: Callable[[int], Shown]) -> tuple[int, Shown | None]:
    """Renders the first of messages that could not be rendered together: returns the number after it, and what `show`
    made.

    None if that one, or the whole chunk, cannot be rendered: the number is where a reader goes on.
    """
    try:
        chunk.cut()
    except Exception:
        return chunk.count, None
    if stop - start > 1:
        try:
            return start + 1, show(start + 1)
        except Exception:
            pass
    return start + 1, None


def said_of(queue: Queue, chunk: Chunk, start: int, stop: int, error: Exception) -> dict[str, Any]:
    """Fields of the log line about messages of a stream that cannot be shown to any reader."""
    return {
        "queue": queue.name,
        "partition": chunk.partition,
        "offset": chunk.base + start,
        "messages": stop - start,
        "reason": f"{type(error).__name__}: {error}",
    }
