"""How late the event loop is: a wake-up is asked for and its delay measured, ten times a second."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

TICK_SECONDS: Final = 0.1
KEPT_TICKS: Final = 100


class LoopLag:
    """The delays of the last ten seconds."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=KEPT_TICKS)

    @property
    def worst_seconds(self) -> float:
        return max(self._delays, default=0.0)

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._delays.append(max(0.0, loop.time() - due))
