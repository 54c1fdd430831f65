"""How long to wait between a lost connection and the next one, counted over connections that did not last."""

from __future__ import annotations

import math
from collections.abc import Callable

from push.client.config import Limits
from push.client.core.backoff import delay_s


class Reconnects:
    """The waits of one session. `chance` returns numbers from 0 to 1 for the jitter."""

    def __init__(self, limits: Limits, chance: Callable[[], float]) -> None:
        self._limits = limits
        self._chance = chance
        self._tries = 0
        self._opened_at = math.inf

    def opened(self, now: float) -> None:
        """A connection was established."""
        self._opened_at = now

    def next_wait(self, asked_s: float, now: float) -> float:
        """The wait in seconds before the next connection, at a server that asks for `asked_s`. A connection that lasted
        resets it."""
        if now - self._opened_at >= self._limits.stable_after_s:
            self._tries = 0
        self._opened_at = math.inf
        wait = delay_s(self._tries, asked_s, self._chance(), self._limits)
        self._tries += 1
        return wait
