"""Measures how long messages wait from their acceptance until they are handed to a consumer's connection.

Each message counts once on a work queue, at its first attempt; on a stream, once per reader that subscribed before it
was published. Delayed messages, dead letters and replayed ones are not counted: they waited for something else.
"""

from __future__ import annotations

from bisect import bisect_left
from time import time
from typing import Final

from backend_store.client import Chunk, Lease, is_prompt
from backend_store.histogram import Example, Histogram

SECONDS_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip

_TRACE_ID: Final = slice(3, 35)
_FLAGS: Final = 54
_SAMPLED: Final = "13579bdf"
"""Positions of the trace id and the flags in a `traceparent`, and the flags that say that the trace is sampled."""


class WaitTimes(Histogram):
    """Wait times of one transport. One call a batch, whatever its number of messages."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SECONDS_BOUNDS)

    def of_lease(self, lease: Lease, chunk: Chunk) -> None:
        """Counts messages of a lease that are about to be written. One function: for a single message, calls would cost
        more than the work."""
        bits = lease.bits
        attempts = lease.state.attempts
        if attempts:
            for number in attempts:
                bits &= ~(1 << number)
        if not bits or not is_prompt(chunk.shelf):
            return
        seconds = time() - chunk.time_ms * 0.001
        if seconds < 0.0:
            seconds = 0.0  # a leader's clock may be ahead of ours
        bucket = bisect_left(SECONDS_BOUNDS, seconds)
        messages = bits.bit_count()
        self.buckets[bucket] += messages
        self.sum += seconds * messages
        if chunk.messages.columns is not None:
            self._remember(chunk, (bits & -bits).bit_length() - 1, bucket, seconds)

    def of_chunk(self, chunk: Chunk, messages: int) -> None:
        """Counts deliveries of a stream's chunk to readers that waited for it."""
        if not messages:
            return
        seconds = max(0.0, time() - chunk.time_ms * 0.001)
        bucket = self.add(seconds, messages)
        if chunk.messages.columns is not None:
            self._remember(chunk, 0, bucket, seconds)

    def _remember(self, chunk: Chunk, number: int, bucket: int, seconds: float) -> None:
        """Keeps the trace of one of the messages as the bucket's exemplar, if it is sampled."""
        traces = (chunk.messages.columns or {}).get("trace")
        if traces is not None:
            trace = traces[number]
            if trace and trace[_FLAGS] in _SAMPLED:
                self.examples[bucket] = Example(trace[_TRACE_ID], seconds, time())
