"""Long looks at stored messages, a slice at a time: peeks and searches must not hold deliveries up.

All looks of a node pass through one turnstile, so that many of them take no more of a turn than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from backend_store.node.limits import LOOK_PAUSE_SECONDS, LOOK_SLICE_SECONDS

T = TypeVar("T")

_WORK_SECONDS: Final = 0.00005
"""When a turn of everybody else takes so long, they are at work."""
_CALM_SECONDS: Final = 0.1
"""For so long after that looks step back between their slices."""

Look = Generator[None, bool, T]
"""Yields after each step and returns what it found; what is sent says whether its time is up."""


class Turnstile:
    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._crowded_until = 0.0

    async def through(self, look: Look[T], *, seconds_max: float) -> T:
        """Runs a look to its end; after `seconds_max` it is told to come to one."""
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
        """Lets everybody else have a turn, and more than one where they need it."""
        clock = asyncio.get_running_loop().time
        before = clock()
        await asyncio.sleep(0)
        now = clock()
        if now - before > _WORK_SECONDS:
            self._crowded_until = now + _CALM_SECONDS
        if now < self._crowded_until:
            await asyncio.sleep(LOOK_PAUSE_SECONDS)
