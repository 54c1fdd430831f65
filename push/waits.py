"""How long messages wait from the moment they are accepted until they are handed to a consumer's connection.

Each message counts once: at its first attempt, and over a stream to readers that were there before it. What was
published for a later time, died, or is read again after the fact waited for something else.
"""

from __future__ import annotations

import time
from typing import Final

from backend_store.client import Chunk, Lease, indexes, is_prompt
from backend_store.histogram import Example, Histogram

SECONDS_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip

_TRACE_ID: Final = slice(3, 35)
_FLAGS: Final = 54
_SAMPLED: Final = "13579bdf"
"""Where a `traceparent` has what, and its flags where somebody keeps the trace."""


class Waits(Histogram):
    """Of one transport. One call a batch, whatever the number of its messages."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SECONDS_BOUNDS)

    def of_lease(self, lease: Lease, chunk: Chunk) -> None:
        """Messages of a lease that are about to leave."""
        if not is_prompt(chunk.shelf):
            return
        attempts = lease.state.attempts
        if attempts:
            first = [number for number in indexes(lease.bits) if number not in attempts]
            if first:
                self._waited(chunk, len(first), first[0])
        else:
            self._waited(chunk, lease.bits.bit_count(), (lease.bits & -lease.bits).bit_length() - 1)

    def of_chunk(self, chunk: Chunk, messages: int) -> None:
        """Deliveries of a stream's chunk to those who waited for it."""
        if messages:
            self._waited(chunk, messages, 0)

    def _waited(self, chunk: Chunk, messages: int, first: int) -> None:
        now = time.time()
        seconds = now - chunk.time_ms / 1000
        if seconds < 0.0:
            seconds = 0.0  # a leader's clock may be ahead of ours
        bucket = self.add(seconds, messages)
        columns = chunk.messages.columns
        if columns is not None and (traces := columns.get("trace")) is not None:
            trace = traces[first]
            if trace and trace[_FLAGS] in _SAMPLED:
                self.examples[bucket] = Example(trace[_TRACE_ID], seconds, now)
