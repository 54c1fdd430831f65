"""One host's copy of the directory's records, with its age, and the reads and writes at the coordinator.

One watch brings every change. A heartbeat that the host writes each second comes back through the same watch, which
proves that everything before it has arrived: so the copy's age is known even while the watch is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
import structlog

from backend_store.cluster.coordinator import Compacted, Coordinator, SessionLost, boot_seconds, get
from backend_store.cluster.core.values import (
    NEVER,
    Changes,
    Get,
    Page,
    Put,
    Record,
    Revision,
    Transaction,
    absent,
    changed_at,
)
from backend_store.cluster.session import Session
from backend_store.metadata.directory.core.history import History
from backend_store.metadata.directory.core.holding import Holding
from backend_store.metadata.directory.core.names import (
    HOSTS,
    IDENTITY,
    RING,
    ROOT,
    arc_prefix,
    change_of,
    host_key,
    place_of,
)
from backend_store.metadata.directory.core.ring import NO_RING, Ring, changed
from backend_store.metadata.directory.limits import (
    ARCS,
    BEAT_SECONDS,
    BEATS_IN_FLIGHT_MAX,
    FRESH_SECONDS_MAX,
    HOST_SESSION_SECONDS,
    REWATCH_SECONDS,
    SEEN_SECONDS_MAX,
)
from backend_store.model import PushqError

log = structlog.get_logger("pushq.directory")

EVERY_ARC: Final = frozenset(range(ARCS))
_encode = msgspec.msgpack.Encoder().encode
_ring = msgspec.msgpack.Decoder(Ring).decode
_text = msgspec.msgpack.Decoder(str).decode


class DirectoryStore:
    """Made by `DirectoryStore.open`; `close` ends it."""

    def __init__(
        self, coordinator: Coordinator, host: str, url: str, *, keeps_all: bool, clock: Callable[[], float]
    ) -> None:
        self.coordinator = coordinator
        self.host = host
        self.ring = NO_RING
        self.hosts: dict[str, str] = {}
        """Live hosts, and the addresses where they listen."""
        self.history = History()
        self._url = url
        self._keeps_all = keeps_all
        self._clock = clock
        self._holding = Holding()
        self._ring_at = NEVER
        self._as_of = float("-inf")
        self._asked: deque[tuple[Revision, float]] = deque(maxlen=BEATS_IN_FLIGHT_MAX)
        self._session: Session | None = None
        self._moved = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._fill_now = asyncio.Event()
        self.hits = 0
        """Records that were found in the copy."""
        self.misses = 0
        """Records that were read from the coordinator."""
        self._filled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        coordinator: Coordinator,
        *,
        host: str = "",
        url: str = "",
        keeps_all: bool = True,
        clock: Callable[[], float] = boot_seconds,
    ) -> DirectoryStore:
        """Opens the copy of the arcs that the ring gives to `host`, or of all. Raises `Unavailable`,
        `OutcomeUnknown`."""
        store = cls(coordinator, host or secrets.token_hex(8), url, keeps_all=keeps_all, clock=clock)
        try:
            await store._begin()
        except BaseException:
            await store.close()
            raise
        loop = asyncio.get_running_loop()
        for run, name in ((store._follow, "watch"), (store._beat, "beat"), (store._fill, "fill")):
            store._tasks.append(loop.create_task(run(), name=f"directory {name}"))
        return store

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def announce(self, url: str) -> None:
        """Publishes the address where this host listens, after which the ring includes the host."""
        self._url = url
        self._beat_now.set()

    # ---------------------------------------------------------------------------------------------------- reading

    @property
    def staleness_s(self) -> float:
        """Upper bound of the copy's age in seconds."""
        return self._clock() - self._as_of

    @property
    def is_fresh(self) -> bool:
        return self.staleness_s <= FRESH_SECONDS_MAX

    @property
    def records(self) -> int:
        """The number of records held."""
        return self._holding.count

    @property
    def arcs(self) -> int:
        """The number of arcs that this host keeps, read or still to be read."""
        return len(self._holding.arcs)

    async def wait_filled(self) -> None:
        """Returns when all arcs that this host keeps have been read once."""
        await self._filled.wait()

    def keeps(self, arc: int) -> bool:
        """Whether the arc is answered from memory now."""
        return self._holding.is_whole(arc) and self.is_fresh

    async def get(self, key: bytes) -> Record | None:
        """A record from memory, or from the coordinator where memory does not hold its arc. Raises `Unavailable`."""
        place = place_of(key)
        if place is not None and self.keeps(place.arc):
            self.hits += 1
            return self._holding.get(place.arc, key)
        self.misses += 1
        return (await get(self.coordinator, key))[0]

    async def look(self, *keys: bytes) -> tuple[Record | None, ...]:
        """Records from the coordinator, all at one revision: the base of a write."""
        outcome = await self.coordinator.transact(Transaction(then=[Get(key) for key in keys]))
        return outcome.found

    async def listed(self, prefixes: Sequence[bytes], after: str, limit: int) -> list[Record]:
        """Records below prefixes, one prefix for each arc, with keys after `after`, at most `limit` for each arc; where
        memory holds everything, all records below the prefixes, and the caller selects."""
        if self._holding.is_everything and self.is_fresh:
            return list(self._holding.of_kind(prefixes))
        found: list[Record] = []
        for prefix in prefixes:
            page = await self.coordinator.read(prefix, after=prefix + after.encode() if after else b"", limit=limit)
            found += page.records
            while page.has_more and len(page.records) < limit:
                limit_left = limit - len(page.records)
                page = await self.coordinator.read(prefix, after=page.records[-1].key, limit=limit_left)
                found += page.records
        return found

    async def seen(self, revision: Revision) -> None:
        """Returns when the watch has brought a write of ours, so that later reads here find it; waits
        `SEEN_SECONDS_MAX` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_SECONDS_MAX):
                while self.history.revision < revision:
                    self._moved.clear()
                    await self._moved.wait()

    # -------------------------------------------------------------------------------------------------- the watch

    async def _begin(self) -> None:
        """Starts from a revision after which all changes are watched."""
        identity = await self._identity()
        sent_at = self._clock()
        revision = await self._write_beat()
        pages = await self.coordinator.read(HOSTS)
        self.hosts = {record.key[len(HOSTS) :].decode(): _text(record.value) for record in pages.records}
        self._take_ring((await get(self.coordinator, RING))[0])
        self._as_of = sent_at
        self._asked.clear()
        self._holding.doubt()
        self._wish()
        self.history.begin(f"{identity}/directory", revision)

    async def _identity(self) -> str:
        """The identity of these records, the same at every host."""
        made = secrets.token_hex(8)
        outcome = await self.coordinator.transact(
            Transaction((absent(IDENTITY),), (Put(IDENTITY, _encode(made)),), (Get(IDENTITY),))
        )
        if outcome.succeeded:
            return made
        found = outcome.found[0]
        assert found is not None, "it was not absent"
        return _text(found.value)

    async def _follow(self) -> None:
        while True:
            try:
                after = Revision(self.history.revision)
                async with aclosing(self.coordinator.watch(ROOT, after=after)) as watch:
                    async for changes in watch:
                        self._take(changes)
            except Compacted as error:
                log.warning("the directory was lost sight of and is read anew", reason=error.detail)
                with contextlib.suppress(PushqError):
                    await self._begin()
            except PushqError as error:
                log.info("the watch of the directory ended", reason=error.detail)
            await asyncio.sleep(REWATCH_SECONDS)

    def _take(self, changes: Changes) -> None:
        self._holding.apply(changes.revision, changes.events)
        told = []
        for event in changes.events:
            place = place_of(event.key)
            if place is not None:
                if (change := change_of(place)) is not None:
                    told.append(change)
            elif event.key.startswith(HOSTS):
                self._take_host(event.key[len(HOSTS) :].decode(), event.record)
            elif event.key == RING:
                self._take_ring(event.record)
        self.history.add(changes.revision, told)
        while self._asked and self._asked[0][0] <= changes.revision:
            self._as_of = max(self._as_of, self._asked.popleft()[1])
        self._moved.set()
        if self._holding.unread:
            self._fill_now.set()

    def _take_host(self, name: str, record: Record | None) -> None:
        before = self.hosts.get(name)
        if record is None:
            self.hosts.pop(name, None)
        else:
            self.hosts[name] = _text(record.value)
        if self.hosts.get(name) != before:
            self._beat_now.set()

    def _take_ring(self, record: Record | None) -> None:
        if record is not None and record.changed_at > self._ring_at:
            self.ring, self._ring_at = _ring(record.value), record.changed_at
            self._wish()

    def _wish(self) -> None:
        self._holding.wish(EVERY_ARC if self._keeps_all else self.ring.arcs_of(self.host))
        if self._holding.unread:
            self._filled.clear()
        self._fill_now.set()

    # ----------------------------------------------------------------------------------------------- heartbeats

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._beat_now.wait()
            self._beat_now.clear()
            try:
                sent_at = self._clock()
                revision = await self._write_beat()
                if revision <= self.history.revision:
                    self._as_of = max(self._as_of, sent_at)
                else:
                    self._asked.append((revision, sent_at))
                await self._mend_ring()
            except PushqError as error:
                log.info("a sign of life was not written", error=error.detail)
                await asyncio.sleep(REWATCH_SECONDS)

    async def _write_beat(self) -> Revision:
        if self._session is None or self._session.is_lost:
            self._session = await self.coordinator.open_session(HOST_SESSION_SECONDS)
        beat = Put(host_key(self.host), _encode(self._url), self._session.id)
        try:
            return (await self.coordinator.transact(Transaction(then=(beat,)))).revision
        except SessionLost:
            await self._session.close()
            raise

    async def _mend_ring(self) -> None:
        """Writes a new ring when hosts came or went; the first host that sees it does so."""
        wanted = changed(self.ring, {name: url for name, url in self.hosts.items() if url})
        if wanted is self.ring:
            return
        write = Transaction((changed_at(RING, self._ring_at),), (Put(RING, _encode(wanted)),))
        if (await self.coordinator.transact(write)).succeeded:
            log.info("the ring changed", version=wanted.version, hosts=",".join(wanted.urls))

    # ---------------------------------------------------------------------------------------------------- filling

    async def _fill(self) -> None:
        while True:
            try:
                while unread := self._holding.unread:
                    await self._read_arc(unread[0])
                self._filled.set()
                await self._fill_now.wait()
                self._fill_now.clear()
            except PushqError as error:
                log.info("an arc could not be read", error=error.detail)
                await asyncio.sleep(REWATCH_SECONDS)

    async def _read_arc(self, arc: int) -> None:
        begun = self._holding.reading(arc)
        prefix = arc_prefix(arc)
        pages: list[Page] = [await self.coordinator.read(prefix)]
        while pages[-1].has_more:
            pages.append(await self.coordinator.read(prefix, after=pages[-1].records[-1].key, at=pages[0].revision))
        self._holding.read(arc, pages, begun)
