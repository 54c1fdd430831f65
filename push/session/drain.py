"""How a drain closes sockets: in even waves, with a time to come back that spreads reconnects to a rate the server can
take.

Reconnects are spread over a window: the number of sockets divided by the rate at which a server accepts them. Each
client gets a time of its own in the window, so that even clients that obey exactly do not come at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from push.limits import BYE_RETRY_MS_MIN, DRAIN_WAVE_SECONDS, STREAM_RETRY_MS_MAX, STREAM_RETRY_MS_MIN

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Plan:
    """One drain. `window_ms`: over how long the clients are asked to spread their return."""

    waves_max: int
    pause_s: float
    window_ms: int
    chance: Callable[[], float]

    def waves(self, leaving: Sequence[One]) -> Iterator[Sequence[One]]:
        """Splits `leaving` into equal parts, in order."""
        size = max(1, -(-len(leaving) // self.waves_max))
        for start in range(0, len(leaving), size):
            yield leaving[start : start + size]

    def retry_ms(self) -> int:
        return BYE_RETRY_MS_MIN + round(self.chance() * self.window_ms)

    def stream_retry_ms(self) -> int:
        """The retry time for SSE: browsers keep it for every later reconnect, so it is never short."""
        longest = max(STREAM_RETRY_MS_MAX, self.window_ms)
        return STREAM_RETRY_MS_MIN + round(self.chance() * (longest - STREAM_RETRY_MS_MIN))


@dataclass(frozen=True, slots=True)
class DrainWaves:
    """The rule: sockets are closed evenly over `window_s`, or faster if there are few."""

    window_s: int
    accepts_per_s: int
    chance: Callable[[], float] = random.random

    def plan(self, sockets: int) -> Plan:
        returns_s = sockets / self.accepts_per_s
        closing_s = min(self.window_s, returns_s)
        waves = max(1, round(closing_s / DRAIN_WAVE_SECONDS))
        window_ms = max(1000, round(returns_s * 1000))
        return Plan(waves, closing_s / waves, window_ms, self.chance)
