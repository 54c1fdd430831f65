"""Looks at every queue and at the process itself, every few seconds, and never for more than a part of a core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import structlog

from backend_store.client import Store, definitions, pulses_of
from backend_store.model import QueueDefinition
from gateway.loop_lag import LoopLag
from gateway.memory import used_bytes
from gateway.series.book import Book, Place, Watched
from gateway.series.core.ring import TIERS, Series
from gateway.series.file import SeriesFile
from gateway.series.limits import (
    QUEUES_PER_TURN_MAX,
    SAMPLE_CORE_FRACTION_MAX,
    SAMPLE_SECONDS,
    SAMPLE_SECONDS_MAX,
    SAVE_SECONDS,
)
from push.hub import Hub

log = structlog.get_logger("pushq.series")

After = Callable[[int], Awaitable[None]]
"""Called after each look, with the time of it in ms."""


class Sampler:
    """See the file's first sentence. `book` has what it found."""

    def __init__(
        self, store: Store, hub: Hub, lag: LoopLag, *, clock_ms: Callable[[], int], folder: Path | None = None
    ) -> None:
        """Without a folder the series end with the process."""
        self.book = Book()
        self.after: list[After] = []
        self.looks = 0
        self.seconds = 0.0
        """Time of the core that looking has taken, all in all."""
        self.node_row: tuple[float, ...] = (0.0,) * 7
        """The process at the last look, as its series has it."""
        self._store = store
        self._hub = hub
        self._lag = lag
        self._clock_ms = clock_ms
        self._file = SeriesFile(folder) if folder is not None else None
        self._commits = (0, 0.0)
        self._delivered = 0
        self._at = 0.0
        self._restored: dict[int, Series] = {}
        """By uid: series of the process before, until their queue is met."""

    async def run(self) -> None:
        """For as long as the process serves; what was found is on the disk when it is cancelled."""
        if self._file is not None:
            for place, series in await asyncio.to_thread(self._file.read):
                self._take_over(place, series)
        saved = time.monotonic()
        try:
            while True:
                before = self.seconds
                try:
                    await self.look()
                except Exception:
                    log.exception("a look at the queues failed")
                pause = min(SAMPLE_SECONDS_MAX, max(SAMPLE_SECONDS, (self.seconds - before) / SAMPLE_CORE_FRACTION_MAX))
                if time.monotonic() - saved > SAVE_SECONDS:
                    await self.save()
                    saved = time.monotonic()
                await asyncio.sleep(pause)
        finally:
            if self._file is not None:
                self._file.write_now(self.book.all())

    def _take_over(self, place: Place, series: Series) -> None:
        tenant, uid = place
        if not tenant:
            self.book.node = series
        elif not uid:
            self.book.tenants[tenant] = series
        else:
            self._restored[uid] = series

    async def save(self) -> None:
        if self._file is not None:
            await self._file.write(self.book.all())

    # ------------------------------------------------------------------------------------------------- one look

    async def look(self) -> None:
        """One round over all queues. What listens is told afterwards."""
        now_ms = self._clock_ms()
        keeps = now_ms // TIERS[0].step_ms > self.book.written_ms // TIERS[0].step_ms
        totals: dict[str, list[float]] = {}
        for some in _portions(definitions(self._store)):
            began = time.thread_time()
            found = [watched for one in some if (watched := self._watched(one, now_ms)) is not None]
            if keeps:
                self.book.write(found, now_ms, self._store.steady_ms(), totals)
            self.seconds += time.thread_time() - began
            await asyncio.sleep(0)  # thousands of queues must not hold everybody's messages up
        began = time.thread_time()
        self._forget_deleted()
        if keeps:
            self.node_row = self._node()
            self.book.close(now_ms, totals, self.node_row)
        self.looks += 1
        self.seconds += time.thread_time() - began
        for tell in self.after:
            await tell(now_ms)

    def _watched(self, definition: QueueDefinition, now_ms: int) -> Watched | None:
        """The queue's pulse, taken now. None for one that was deleted meanwhile."""
        watched = self.book.watched.get(definition.uid)
        if watched is not None and not watched.pulses.queue.deleted:
            watched.pulse = watched.pulses.take()
            watched.is_seen = True
            return watched
        pulses = pulses_of(self._store, definition)
        if pulses is None:
            return None
        pulse = pulses.take()
        series = self._restored.pop(definition.uid, None)
        # What the process before saw may have been a moment ago.
        watched = Watched(
            definition, pulses, pulse, pulse, series=series, changed_ms=now_ms if series is not None else 0
        )
        self.book.watched[definition.uid] = watched
        self.book.version += 1
        self.book.names[definition.tenant, definition.name] = definition.uid
        return watched

    def _forget_deleted(self) -> None:
        for uid, watched in list(self.book.watched.items()):
            if not watched.is_seen:
                self.book.forget(uid)
            watched.is_seen = False

    def _node(self) -> tuple[float, ...]:
        commits, hub, now = self._store.node.writer.commit_seconds, self._hub, time.monotonic()
        seconds = now - self._at if self._at else 0.0
        count, took = commits.count - self._commits[0], commits.sum - self._commits[1]
        delivered = hub.delivered - self._delivered
        self._commits, self._delivered, self._at = (commits.count, commits.sum), hub.delivered, now
        return (
            self._lag.worst_seconds * 1000,
            float(used_bytes()),
            self._disk_used() * 100,
            took / count * 1000 if count else 0.0,
            float(len(hub.sessions) + len(hub.waiting) + len(hub.streams) + len(hub.polls)),
            count / seconds if seconds else 0.0,
            delivered / seconds if seconds else 0.0,
        )

    def _disk_used(self) -> float:
        space = self._store.node.space
        return space.space.used_fraction if space is not None and space.space is not None else 0.0


def _portions(all_of_them: Sequence[QueueDefinition]) -> Iterator[Sequence[QueueDefinition]]:
    for start in range(0, len(all_of_them), QUEUES_PER_TURN_MAX):
        yield all_of_them[start : start + QUEUES_PER_TURN_MAX]
