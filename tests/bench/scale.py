"""The size of a run: that of the published figures, and a small one for the smoke test."""

from __future__ import annotations

from dataclasses import dataclass

BODY_BYTES = 256
STAMP_DIGITS = 16
"""A body starts with its send time: nanoseconds of the monotonic clock as hexadecimal digits."""
WINDOW = 256
WINDOW_WIDE = 1024
PER_FRAME = 100
PER_FRAME_SMALL = 32
WORK_BACKLOG_MAX = 2_000
"""Messages published but not yet received, so that a slow consumer does not turn the run into a publish benchmark."""
CONSUMERS = 4
CREDIT = 256
HTTP_CONNECTIONS = 64
LATENCY_RATE = 1_000
FANOUT_AHEAD_MAX = 32
FANOUT_RATE = 20
CONNECTING_AT_ONCE_MAX = 100
SETTLE_SECONDS_MAX = 30.0
"""How long a run may take to finish what is in flight after the load has stopped."""
CONNECT_SECONDS_MAX = 60.0
START_SECONDS_MAX = 180.0
"""Until a server is ready, which takes long if its instructions are counted."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    seconds: float = 4.0
    warmup_seconds: float = 0.5
    subscribers: int = 500
    idle: int = 10_000
    backlog: int = 1_000_000


SMOKE = Scale(seconds=0.3, warmup_seconds=0.1, subscribers=10, idle=50, backlog=5_000)
