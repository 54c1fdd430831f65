"""Samples the process and the queues to which something happened, every few seconds, with at most a fraction of a core.
A quiet queue costs nothing.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from backend_store.client import Store, Toucher, Touches, definitions, pulses_of
from backend_store.model import QueueDefinition, Unavailable
from gateway.admission.loop_lag import LoopLag
from gateway.admission.memory import used_bytes
from gateway.series.book import Book, Place, Watched, node_series, queue_series
from gateway.series.file import SeriesFile
from gateway.series.limits import (
    QUEUES_PER_TURN_MAX,
    QUEUES_PER_WRITE_MAX,
    SAMPLE_CORE_FRACTION_MAX,
    SAMPLE_SECONDS,
    SAMPLE_SECONDS_MAX,
    SAVE_SECONDS,
)
from gateway.series.packed import Packed, compressed, copied, unpacked
from push.delivery.hub import Hub

log = structlog.get_logger("pushq.series")

T = TypeVar("T")
After = Callable[[int], Awaitable[None]]
"""Called after each round, with its time in ms."""


class Sampler:
    """The sampling task. `book` has the results."""

    def __init__(
        self, store: Store, hub: Hub, lag: LoopLag, *, clock_ms: Callable[[], int], folder: Path | None = None
    ) -> None:
        """Without a folder the series are lost when the process ends."""
        self.book = Book()
        self.after: list[After] = []
        self.looks = 0
        self.looked_at = 0
        """How many queues were sampled, in total."""
        self.seconds = 0.0
        """CPU seconds spent on sampling, in total."""
        self.node_row: tuple[float, ...] = (0.0,) * 7
        """The process: levels as of the last round, rates as of the last round that wrote rows."""
        self._store = store
        self._hub = hub
        self._lag = lag
        self._clock_ms = clock_ms
        self._file = SeriesFile(folder) if folder is not None else None
        self._commits = (0, 0.0)
        self._delivered = 0
        self._at = 0.0
        self._toucher = Toucher(store)
        self._unmet: dict[int, QueueDefinition] = {}
        """By uid: queues that are not loaded yet."""
        self._unmet_uids: dict[tuple[str, str], int] = {}
        self._due: set[Watched] = set()
        """Queues that changed since rows were last written."""
        self._restored: dict[int, Packed] = {}
        """By uid: series of the previous process, until their queue is sampled."""

    async def run(self) -> None:
        """Runs until cancelled, and then writes the series to the disk."""
        if self._file is not None:
            for place, small in await asyncio.to_thread(self._file.read):
                self._take_over(place, small)
        saved = time.monotonic()
        try:
            while True:
                before = self.seconds
                try:
                    await self.look()
                except Unavailable as error:  # of a broken file, too: the finder logged what to do
                    log.warning("queue sampling failed", error=str(error))
                except Exception:
                    log.exception("queue sampling failed")
                pause = min(SAMPLE_SECONDS_MAX, max(SAMPLE_SECONDS, (self.seconds - before) / SAMPLE_CORE_FRACTION_MAX))
                if time.monotonic() - saved > SAVE_SECONDS:
                    await self.save()
                    saved = time.monotonic()
                await asyncio.sleep(pause)
        finally:
            if self._file is not None:
                self._file.write_now(self.book.all())

    def _take_over(self, place: Place, small: Packed) -> None:
        tenant, uid = place
        if uid:
            self._restored[uid] = small
            return
        try:
            series = unpacked(small, queue_series() if tenant else node_series())
        except (ValueError, zlib.error) as error:
            log.warning("a series cannot be read", tenant=tenant, error=str(error))
            return
        if tenant:
            self.book.tenants[tenant] = series
        else:
            self.book.node = series

    async def save(self) -> None:
        if self._file is not None:
            await self._pack()
            await self._file.write(self.book.all())

    async def _pack(self) -> None:
        """Compresses the series of quiet queues, in a thread."""
        for some in _portions(self.book.unused(), QUEUES_PER_WRITE_MAX):
            copies = [copied(one.series) for one in some if one.series is not None]
            small = await asyncio.to_thread(lambda copies=copies: [compressed(one) for one in copies])  # type: ignore[misc]
            for watched, one in zip(some, small, strict=False):
                if not watched.is_used:
                    self.book.pack(watched, one)

    # ------------------------------------------------------------------------------------------------ one round

    async def look(self) -> None:
        """One round over the queues to which something happened; then calls the functions in `after`."""
        now_ms = self._clock_ms()
        keeps = self.book.is_due(now_ms)
        began = time.thread_time()
        touches = self._toucher.take()
        for some in _portions(self._some(touches), QUEUES_PER_TURN_MAX):
            for one in some:
                self._see(one, now_ms)
            self.seconds += time.thread_time() - began
            await asyncio.sleep(0)  # thousands of queues must not delay messages
            began = time.thread_time()
        if touches is None:
            self._forget_deleted()
        if keeps:
            await self._write(now_ms)
        else:
            levels = self._levels()
            self.node_row = (*levels, *self.node_row[len(levels) :])
        self.looks += 1
        self.seconds += time.thread_time() - began
        for tell in self.after:
            await tell(now_ms)

    def _some(self, touches: Touches | None) -> Sequence[QueueDefinition]:
        """The queues to sample, without deleted ones."""
        if touches is None:
            for watched in self.book.watched.values():
                watched.is_seen = False
            self._unmet, self._unmet_uids = {}, {}
            return definitions(self._store)
        for name, definition in touches.defined.items():
            self._redefined(name, definition)
        found: dict[int, QueueDefinition] = {}
        for uid in touches.uids:
            known = self.book.watched.get(uid)
            definition = known.definition if known is not None else self._unmet.get(uid)
            if definition is not None:
                found[uid] = definition
        found.update((one.uid, one) for one in touches.defined.values() if one is not None)
        return list(found.values())

    def _redefined(self, name: tuple[str, str], definition: QueueDefinition | None) -> None:
        """Drops a queue that was deleted or replaced by another of its name."""
        uid = self.book.names.get(name)
        if uid is not None and (definition is None or definition.uid != uid):
            self._forget(uid)
        if (unmet := self._unmet_uids.pop(name, None)) is not None:
            del self._unmet[unmet]

    def _forget(self, uid: int) -> None:
        self._due.discard(self.book.watched[uid])
        self.book.forget(uid)

    async def _write(self, now_ms: int) -> None:
        due, self._due = list(self._due), set()
        steady_ms = self._store.steady_ms()
        for some in _portions(due, QUEUES_PER_TURN_MAX):
            self.book.write(some, now_ms, steady_ms)
            await asyncio.sleep(0)
        self.node_row = self._node()
        self.book.close(now_ms, steady_ms, self.node_row)

    def _see(self, definition: QueueDefinition, now_ms: int) -> None:
        """Takes the pulse of a queue, unless the queue was deleted meanwhile."""
        self.looked_at += 1
        watched = self.book.watched.get(definition.uid)
        if watched is not None and not watched.pulses.queue.deleted:
            self.book.seen(watched, watched.pulses.take(), now_ms)
            watched.is_seen = True
            if watched.pulse is not watched.kept:
                self._due.add(watched)
            return
        pulses = pulses_of(self._store, definition)
        if pulses is None:
            self._unmet[definition.uid] = definition
            self._unmet_uids[definition.tenant, definition.name] = definition.uid
            return
        if self._unmet.pop(definition.uid, None) is not None:
            del self._unmet_uids[definition.tenant, definition.name]
        pulse = pulses.take()
        watched = Watched(definition, pulses, pulse, pulse)
        if self.book.met(watched, self._restored.pop(definition.uid, None), now_ms, self._store.steady_ms()):
            self._due.add(watched)

    def _forget_deleted(self) -> None:
        for uid, watched in list(self.book.watched.items()):
            if not watched.is_seen:
                self._forget(uid)
        if self._restored:
            there = {definition.uid for definition in definitions(self._store)}
            self._restored = {uid: small for uid, small in self._restored.items() if uid in there}

    def _node(self) -> tuple[float, ...]:
        commits, hub, now = self._store.node.writer.commit_seconds, self._hub, time.monotonic()
        seconds = now - self._at if self._at else 0.0
        count, took = commits.count - self._commits[0], commits.sum - self._commits[1]
        delivered = hub.delivered - self._delivered
        self._commits, self._delivered, self._at = (commits.count, commits.sum), hub.delivered, now
        return (
            *self._levels(),
            took / count * 1000 if count else 0.0,
            float(len(hub.sessions) + len(hub.waiting) + len(hub.streams) + len(hub.polls)),
            count / seconds if seconds else 0.0,
            delivered / seconds if seconds else 0.0,
        )

    def _levels(self) -> tuple[float, float, float]:
        return self._lag.worst_seconds * 1000, float(used_bytes()), self._disk_used() * 100

    def _disk_used(self) -> float:
        space = self._store.node.space
        return space.space.used_fraction if space is not None and space.space is not None else 0.0


def _portions(all_of_them: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(all_of_them), count):
        yield all_of_them[start : start + count]
