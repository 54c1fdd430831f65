"""Numbers of queues at backends: fetched on demand, cached for a moment, and fetched anew after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from backend_store.client.since import ASKED
from backend_store.model import PushqError, QueueStats
from backend_store.remote.limits import LOOK_FRESH_MS, NEWS_WAIT_SECONDS_MAX
from backend_store.remote.queues.answers import Background, Flight, LookingUp
from backend_store.remote.queues.parted import whole_look
from backend_store.remote.queues.queue import Look, RemoteQueue
from backend_store.service.operations import Look as LookAt
from backend_store.wire.store_frames import Place

if TYPE_CHECKING:
    from backend_store.remote.home import Home

_looks = msgspec.msgpack.Decoder(list[Look]).decode


class Looks:
    """Other gateways change the numbers, too, and callers must not be able to tell them apart."""

    def __init__(self, looking_up: LookingUp, background: Background) -> None:
        self._looking_up = looking_up
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._known: dict[Place, tuple[float, Look | None]] = {}
        self._tenants: dict[str, float] = {}
        self._pinned: dict[Place, tuple[float, Look]] = {}
        self._flights: dict[Any, Flight] = {}

    def of(self, queue: RemoteQueue) -> Look | None:
        """Fresh numbers of a queue; None if its shards have none. Raises `LookingUp`."""
        place, since = queue.place_there, self._fresh_since()
        for known in (self._known.get(place), self._pinned.get(place)):
            if known is not None and known[0] >= since:
                return known[1]
        raise self._look_up(f"queue {queue.name!r}", place, LookAt([place]), queue.homes)

    def check_tenant(self, tenant: str, homes: Sequence[Home]) -> None:
        """Returns if fresh numbers of all queues of a tenant are here. Raises `LookingUp`."""
        if self._tenants.get(tenant, 0.0) < self._fresh_since():
            raise self._look_up(f"the queues of {tenant!r}", tenant, LookAt([], tenant), homes)

    def holds(self, place: Place) -> bool:
        """Whether the last look found numbers of a place."""
        return self._known.get(place, (0.0, None))[1] is not None

    async def pin(self, queue: RemoteQueue, *, is_new: bool = False) -> None:
        """Fetches the numbers of a queue that was just changed, and keeps them even if another queue changes, so that
        the handler that answers need not start again for want of them. `is_new`: takes zeros instead of asking."""
        found = [Look(queue.place_there, QueueStats(), {}, None, 0)] if is_new else []
        if all(home.line.is_open for home in queue.homes) and not is_new:
            try:
                found = await _looks_at(LookAt([queue.place_there]), queue.homes)
            except PushqError:
                found = []
        self._pinned = {look.place: (self._loop.time(), look) for look in found}

    def forget(self, place: Place | None = None) -> None:
        """Drops all numbers after a change made here, and what `pin` keeps of `place`."""
        if self._pinned and place is not None:
            self._pinned.pop(place, None)
        if self._known:
            self._known.clear()
            self._tenants.clear()

    def _look_up(self, what: str, key: Any, operation: LookAt, homes: Sequence[Home]) -> PushqError:
        away = next((home for home in homes if home.line.is_away), None)
        if away is not None and operation.tenant is None:
            return away.line.unavailable()
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(self._background(self._looked(key, operation, homes)))
        return self._looking_up(what, flight)

    def _fresh_since(self) -> float:
        """From when on numbers count: those from before the request came do not."""
        asked = ASKED.get()
        return max(self._loop.time() - LOOK_FRESH_MS / 1000, 0.0 if asked is None else asked.at)

    async def together(self, queues: Iterable[RemoteQueue]) -> dict[Place, Look]:
        """Fetches the numbers of many queues, with one request to each home for all queues at the same homes. Leaves
        out queues whose homes do not answer soon; a caller that asks for such a queue alone gets the error."""
        of_homes: dict[tuple[Home, ...], list[Place]] = {}
        for queue in queues:
            with suppress(PushqError):
                homes = tuple(queue.homes)
                if not any(home.line.is_away for home in homes):
                    of_homes.setdefault(homes, []).append(queue.place_there)
        found = await asyncio.gather(*(self._seen(LookAt(places), homes) for homes, places in of_homes.items()))
        return {look.place: look for looks in found for look in looks}

    async def _seen(self, operation: LookAt, homes: Sequence[Home]) -> list[Look]:
        try:
            async with asyncio.timeout(NEWS_WAIT_SECONDS_MAX):
                return await self._look_at(operation, homes)
        except (PushqError, TimeoutError):
            return []

    async def _looked(self, key: Any, operation: LookAt, homes: Sequence[Home]) -> None:
        try:
            await self._look_at(operation, homes)
        finally:
            del self._flights[key]

    async def _look_at(self, operation: LookAt, homes: Sequence[Home]) -> list[Look]:
        asked_at = self._loop.time()
        found = await _looks_at(operation, homes)
        self._known.update(dict.fromkeys(operation.places, (asked_at, None)))
        self._known.update({look.place: (asked_at, look) for look in found})
        if operation.tenant is not None:
            self._tenants[operation.tenant] = asked_at
        return found


async def _looks_at(operation: LookAt, homes: Sequence[Home]) -> list[Look]:
    """Returns one look for each place. For a whole tenant, leaves out further clusters that do not answer, or belong to
    another home cluster. Raises `PushqError`."""
    answers = await asyncio.gather(*(_asked(home, operation) for home in homes))
    found: dict[Place, list[Look]] = {}
    for answer in answers:
        for look in answer:
            found.setdefault(look.place, []).append(look)
    return [whole_look(looks) for looks in found.values()]


async def _asked(home: Home, operation: LookAt) -> list[Look]:
    if operation.tenant is not None and not home.is_ours:
        return []
    try:
        return _looks(await home.ask(operation, may_repeat=True))
    except PushqError:
        if operation.tenant is None or home.cluster.is_home:
            raise
        return []
