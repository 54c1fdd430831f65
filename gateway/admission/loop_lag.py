"""Measures event-loop lag: requests a wake-up and measures its delay, forty times a second."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import Final

from throttling.config import LAG_WINDOW_MS

TICK_SECONDS: Final = 0.025
KEPT_TICKS: Final = 400
JUDGED_TICKS: Final = round(LAG_WINDOW_MS / 1000 / TICK_SECONDS)


class LoopLag:
    """The delays of the last ten seconds, in seconds."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=KEPT_TICKS)
        """Latest first."""

    @property
    def worst_seconds(self) -> float:
        return max(self._delays, default=0.0)

    @property
    def p99_seconds(self) -> float:
        """The 99th percentile of the last five seconds; 0 until five seconds were measured, because a start has long
        turns that are not representative."""
        if len(self._delays) < JUDGED_TICKS:
            return 0.0
        return sorted(islice(self._delays, JUDGED_TICKS))[-1 - JUDGED_TICKS // 100]

    def add(self, delay_seconds: float) -> None:
        self._delays.appendleft(delay_seconds)

    async def watch(self) -> None:
        """Measures continuously. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.add(max(0.0, loop.time() - due))
