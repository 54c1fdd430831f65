"""Looks up names that are unknown here: a client that created one through another gateway must find it here, too.

News of definitions arrive by themselves a moment later. Before the gateway answers that a name does not exist, it asks
the backend for news; the answer comes after all of them. Callers that come meanwhile share the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from backend_store.remote.limits import UNHEARD_FRESH_SECONDS, UNHEARD_NAMES_MAX
from backend_store.remote.queues.answers import Background, Flight, LookingUp


class Unheard:
    def __init__(self, looking_up: LookingUp, background: Background, hear: Callable[[], Awaitable[object]]) -> None:
        """`hear` returns once everything decided before the call is known here."""
        self._looking_up = looking_up
        self._background = background
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._heard: dict[Hashable, float] = {}
        """Names that did not exist when last asked → when that was."""
        self._next: tuple[Flight, set[Hashable]] | None = None
        """The question that has not been sent yet, and the names it is for."""
        self._asking = asyncio.Lock()

    def check(self, name: Hashable, what: str) -> None:
        """Returns if the backend was asked just now. Else raises `LookingUp`, and the caller looks again when the
        answer has come."""
        if self._heard.get(name, 0.0) > self._loop.time() - UNHEARD_FRESH_SECONDS:
            return
        if self._next is None:
            names: set[Hashable] = set()
            self._next = Flight(self._background(self._ask(names))), names
        flight, waiting = self._next
        waiting.add(name)
        raise self._looking_up(what, flight)

    async def _ask(self, names: set[Hashable]) -> None:
        async with self._asking:
            self._next = None  # callers from here on need a later answer
            await self._hear()
        if len(self._heard) + len(names) > UNHEARD_NAMES_MAX:
            self._heard.clear()
        self._heard.update(dict.fromkeys(names, self._loop.time()))
