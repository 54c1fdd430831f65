"""Paces replays: readers that catch up on a stream get time slices, as many as live traffic leaves room for.

All readers that replay in this process take turns here. While there is no other work, one slice follows the other; when
turns of the loop become long, which live consumers would notice, there is a pause between two slices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from push.limits import (
    CATCH_UP_CALM_SECONDS,
    CATCH_UP_CHUNKS_PER_TURN,
    CATCH_UP_PAUSE_SECONDS,
    CATCH_UP_SLICE_SECONDS,
    CATCH_UP_WORK_SECONDS,
    HELD_REPLAY_SECONDS,
)

log = structlog.get_logger("pushq.hub")

Step = Callable[[], bool]
"""Hands on one chunk; True if there is another one to come."""


class Pacer:
    """The replays of a process, in turn. Its `Hub` owns it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, is_held: Callable[[], bool] = lambda: False):
        """`is_held`: whether no reader may replay at the moment, because the process is overloaded."""
        self._loop = loop
        self._is_held = is_held
        self._steps: deque[Step] = deque()
        self._is_running = False
        self._asked = 0.0
        self._crowded_until = 0.0

    def add(self, step: Step) -> None:
        """Puts a reader in line; its first chunk goes in a later turn of the loop."""
        self._steps.append(step)
        if not self._is_running:
            self._is_running = True
            self._ask()

    def _ask(self) -> None:
        self._asked = self._loop.time()
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Measures how long the rest of the loop's turn took, and starts the next slice at once or after a pause."""
        if self._is_held():
            self._loop.call_later(HELD_REPLAY_SECONDS, self._ask)
            return
        now = self._loop.time()
        if now - self._asked > CATCH_UP_WORK_SECONDS:
            self._crowded_until = now + CATCH_UP_CALM_SECONDS
        if now < self._crowded_until:
            self._loop.call_later(CATCH_UP_PAUSE_SECONDS, self._slice)
        else:
            self._slice()

    def _slice(self) -> None:
        steps, clock = self._steps, self._loop.time
        end = clock() + CATCH_UP_SLICE_SECONDS
        for _ in range(CATCH_UP_CHUNKS_PER_TURN):
            if not steps:
                break
            step = steps.popleft()
            if self._goes_on(step):
                steps.append(step)
            if clock() >= end:
                break
        self._is_running = bool(steps)
        if steps:
            self._ask()

    def _goes_on(self, step: Step) -> bool:
        try:
            return step()
        except Exception:
            # A bug in one reader must not stop all the others.
            log.exception("replay for a reader failed")
            return False
