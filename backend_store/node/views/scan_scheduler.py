"""Scan scheduler: runs long scans of stored messages (peeks, searches) in time slices, so that they do not delay
deliveries.

All scans of a node share one lock, so that many of them take no more time per turn than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from backend_store.node.limits import LOOK_PAUSE_SECONDS, LOOK_SLICE_SECONDS

T = TypeVar("T")

_WORK_SECONDS: Final = 0.00005
"""If one turn of all other tasks takes longer, the loop is busy."""
_CALM_SECONDS: Final = 0.1
"""How long scans pause between slices after the loop was last busy."""

Look = Generator[None, bool, T]
"""Yields after each step and returns its result; the value sent says whether its time is up."""


class ScanScheduler:
    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._crowded_until = 0.0

    async def through(self, look: Look[T], *, seconds_max: float) -> T:
        """Runs a scan to its end; after `seconds_max` it is told to finish."""
        clock = asyncio.get_running_loop().time
        over = clock() + seconds_max
        has_begun = False
        try:
            while True:
                async with self._one:
                    await self._others()
                    now = clock()
                    end = now + LOOK_SLICE_SECONDS
                    while True:
                        if has_begun:
                            look.send(now >= over)
                        else:
                            next(look)
                            has_begun = True
                        if (now := clock()) >= end:
                            break
        except StopIteration as stopped:
            found: T = stopped.value
            return found

    async def _others(self) -> None:
        """Lets all other tasks have a turn, and pauses for longer if they are busy."""
        clock = asyncio.get_running_loop().time
        before = clock()
        await asyncio.sleep(0)
        now = clock()
        if now - before > _WORK_SECONDS:
            self._crowded_until = now + _CALM_SECONDS
        if now < self._crowded_until:
            await asyncio.sleep(LOOK_PAUSE_SECONDS)
