"""Fetches complete lists from a remote metadata service, for requests that page through them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from backend_store.client import unbounded_task
from backend_store.model import PushqError, Unavailable
from gateway.limits import CATALOGUE_LIST_MS
from gateway.metadata.catalog import Flight
from push.delivery.lookup_retry import LookingUp

Page = Callable[[str], Awaitable[list[Any]]]
"""Returns the items after a name; none at the end."""


class Lists:
    """Lists cached for a second. A list serves the requests that asked for it and those that follow, until a change."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._fetched: dict[str, tuple[int, dict[str, Any]]] = {}
        self._flights: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self, what: str, page: Page, name_of: Callable[[Any], str]) -> Mapping[str, Any]:
        """All items by name. Raises `LookingUp`."""
        until_ms, items = self._fetched.get(what, (0, {}))
        if self._clock_ms() < until_ms:
            return items
        raise LookingUp(f"the list of {what}", self._ask(what, page, name_of))

    def changed(self) -> None:
        self._fetched.clear()

    def _ask(self, what: str, page: Page, name_of: Callable[[Any], str]) -> Flight:
        flight = self._flights.get(what)
        if flight is None:
            flight = self._flights[what] = Flight()
            task = unbounded_task(self._fly(what, flight, page, name_of), name="list")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return flight

    async def _fly(self, what: str, flight: Flight, page: Page, name_of: Callable[[Any], str]) -> None:
        error: PushqError | None = None
        try:
            items: dict[str, Any] = {}
            while found := await page(next(reversed(items)) if items else ""):
                items.update((name_of(item), item) for item in found)
                if not flight.is_wanted:
                    raise Unavailable(f"nobody waits for the list of {what} any more", retry_after_ms=100)
            # Serves those who asked, even if there was a change meanwhile: a list shows the moment it was made.
            self._fetched = {**self._alive(), what: (self._clock_ms() + CATALOGUE_LIST_MS, items)}
        except PushqError as failed:
            error = failed
        finally:
            del self._flights[what]
            flight.land(error)

    def _alive(self) -> dict[str, tuple[int, dict[str, Any]]]:
        now_ms = self._clock_ms()
        return {what: fetched for what, fetched in self._fetched.items() if now_ms < fetched[0]}

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
