"""Names that are not known here: who made one elsewhere and was answered must find it here, too.

News of definitions come by themselves a moment later. Before a name is said not to be there, the backend is asked
whether there are news; its answer comes behind all of them. Who asks in the meantime shares the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from backend_store.remote.known import Background, Flight, LookingUp
from backend_store.remote.limits import UNHEARD_FRESH_SECONDS, UNHEARD_NAMES_MAX


class Unheard:
    def __init__(self, looking_up: LookingUp, background: Background, hear: Callable[[], Awaitable[object]]) -> None:
        """`hear` returns when everything is here that was decided before it was called."""
        self._looking_up = looking_up
        self._background = background
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._heard: dict[Hashable, float] = {}
        """Names that were not there when it was last asked, and when that was."""
        self._next: tuple[Flight, set[Hashable]] | None = None
        """The question that has not been put yet, and for whom."""
        self._asking = asyncio.Lock()

    def check(self, name: Hashable, what: str) -> None:
        """Returns where all is heard of. Raises `LookingUp`: who asked looks again when its flight has landed."""
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
            self._next = None  # who comes from here on needs a later answer
            await self._hear()
        if len(self._heard) + len(names) > UNHEARD_NAMES_MAX:
            self._heard.clear()
        self._heard.update(dict.fromkeys(names, self._loop.time()))
