"""A copy of a coordinator's prefix in memory: listed once, then updated by a watch, and checked so that its age is
known.

A silent watch looks like a dead one. So once a second the mirror also asks whether anything changed that it does not
have; the answer dates the copy. When history was compacted, or the mirror stays behind, it lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType

import structlog

from backend_store.cluster.coordinator import Compacted, Coordinator, boot_seconds
from backend_store.cluster.core.image import Image
from backend_store.cluster.core.values import Event, Record, Revision
from backend_store.cluster.limits import (
    CAMPAIGN_PAUSE_SECONDS,
    MIRROR_BEHIND_SECONDS_MAX,
    MIRROR_CHECK_SECONDS,
    MIRROR_RECORDS_MAX,
)
from backend_store.model import OutcomeUnknown, Overloaded, Unavailable

log = structlog.get_logger("pushq.mirror")


class _Behind(Exception):
    """The watch does not bring what the coordinator has."""


class Mirror:
    """The caller runs `run` in a task of its own, and may read `records` at any time."""

    def __init__(
        self,
        coordinator: Coordinator,
        prefix: bytes,
        *,
        told: Callable[[tuple[Event, ...]], None] = lambda events: None,
        clock: Callable[[], float] = boot_seconds,
        records_max: int = MIRROR_RECORDS_MAX,
    ):
        """`told` is called on the loop with what changed, after `records` did; from a new list, with the differences
        only."""
        self.prefix = prefix
        self.lists = 0
        """How often everything was read."""
        self._coordinator = coordinator
        self._told = told
        self._clock = clock
        self._records_max = records_max
        self._image = Image()
        self._filled = asyncio.Event()
        self._moved = asyncio.Event()

    @property
    def records(self) -> Mapping[bytes, Record]:
        return MappingProxyType(self._image.records)

    @property
    def revision(self) -> Revision:
        """The revision of the records."""
        return self._image.revision

    @property
    def staleness_s(self) -> float:
        """Upper bound of the copy's age in seconds. Infinite before the first list."""
        return self._clock() - self.as_of

    @property
    def as_of(self) -> float:
        """The records were the coordinator's at this time, in seconds of the clock, or later."""
        return float("-inf") if self._image.as_of is None else self._image.as_of

    async def wait_filled(self) -> None:
        """Returns when everything was read once."""
        await self._filled.wait()

    async def wait_revision(self, revision: Revision) -> None:
        """Returns when everything up to that revision is here: the caller's own write, for example."""
        while self._image.revision < revision:
            self._moved.clear()
            await self._moved.wait()

    async def run(self) -> None:
        """Keeps the mirror until it is cancelled. Raises `Overloaded` where the prefix has too many records."""
        while True:
            try:
                await self._list()
                await self._keep()
            except (Compacted, _Behind, Unavailable, OutcomeUnknown) as error:
                log.info("a mirror is read anew", prefix=self.prefix.decode(errors="replace"), reason=str(error))
                await asyncio.sleep(CAMPAIGN_PAUSE_SECONDS)

    async def _keep(self) -> None:
        """Runs the watch and the check until one of them fails."""
        tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._check())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _list(self) -> None:
        sent_at = self._clock()
        page = await self._coordinator.read(self.prefix)
        self._check_count(page.count)
        records = list(page.records)
        while page.has_more:
            page = await self._coordinator.read(self.prefix, after=records[-1].key, at=page.revision)
            records += page.records
        self.lists += 1
        self._tell(self._image.replace(records, page.revision, sent_at=sent_at))
        self._filled.set()

    async def _follow(self) -> None:
        async with aclosing(self._coordinator.watch(self.prefix, after=self._image.revision)) as watch:
            async for changes in watch:
                self._tell(self._image.apply(changes))
                self._check_count(len(self._image.records))

    def _check_count(self, count: int) -> None:
        if count > self._records_max:
            raise Overloaded(
                f"{count} records begin with {self.prefix!r}, a mirror holds {self._records_max}: "
                "mirror a longer prefix"
            )

    def _tell(self, events: tuple[Event, ...]) -> None:
        self._moved.set()
        if events:
            self._told(events)

    async def _check(self) -> None:
        unproven_since = 0.0
        while True:
            await asyncio.sleep(MIRROR_CHECK_SECONDS)
            known, sent_at = self._image.revision, self._clock()
            try:
                page = await self._coordinator.read(self.prefix, limit=1)
                if page.revision > known:
                    # Costlier, as it scans all records of the prefix; mostly nothing at all has changed.
                    page = await self._coordinator.read(self.prefix, limit=1, changed_after=known)
            except Unavailable:
                continue  # the mirror grows older, and says so
            if page.revision < known:
                raise _Behind(f"the coordinator is at revision {page.revision}, behind {known}: its data were replaced")
            if self._image.confirm(page, sent_at=sent_at):
                unproven_since = 0.0
                self._moved.set()
            elif not unproven_since or self.as_of > unproven_since:
                unproven_since = sent_at
            elif self._clock() - unproven_since > MIRROR_BEHIND_SECONDS_MAX:
                raise _Behind(f"the watch stays behind revision {page.revision}")
