"""The quarantine of one backend: of the copies that it has, and of those that it let go of.

A *piece* is what was confirmed in one leadership of a shard, for one queue. On every backend its name is the shard, the
epoch and the queue, and its chunks have the same places, so copies of one message are recognized as one.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from backend_store.node.node import wall_clock_ms
from backend_store.shard import quarantine
from backend_store.shard.departures import ASIDE, GONE
from backend_store.shard.folder import ShardFolder
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import ShardNumber
from backend_store.shard.limits import QUARANTINE_ROWS_PER_READ
from backend_store.shard.quarantine import Kept, Place, Tally
from backend_store.storage.engine import Batch, Changes, StorageError
from backend_store.storage.env import open_engine
from backend_store.storage.folder import sync_folder

log = structlog.get_logger("pushq.backend")

_COPY: Final = re.compile(r"\d+-.+")
"""The name of a copy that was put aside: its shard, and its disk."""
T = TypeVar("T")


class Piece(msgspec.Struct, array_like=True):
    """What one backend keeps of a piece. Times are wall-clock milliseconds."""

    shard: int
    epoch: int
    tenant: str
    queue: str
    uid: int
    messages: int = 0
    bytes: int = 0
    in_doubt: int = 0
    """Messages that the leader's log may have, too."""
    begun: int = 0
    """Messages that an operator began to publish again."""
    first_ms: int = 0
    """When the first of them was confirmed."""
    last_ms: int = 0
    aside_ms: int = 0
    """When the messages were truncated from the log."""

    def add(self, kept: Kept) -> None:
        messages = kept.number_of_messages
        self.messages += messages
        self.bytes += len(kept.data)
        self.in_doubt += messages if kept.is_in_doubt else 0
        self.begun += messages if kept.begun_ms else 0
        self.first_ms = min(self.first_ms or kept.confirmed_ms, kept.confirmed_ms)
        self.last_ms = max(self.last_ms, kept.confirmed_ms)
        self.aside_ms = max(self.aside_ms, kept.aside_ms)


class Source(Protocol):
    """One copy's quarantine."""

    def look(self, work: Callable[[Changes], T]) -> T: ...

    async def change(self, step: Callable[[Changes, Tally], None]) -> None: ...


class _Live:
    """The quarantine of a copy that this backend has."""

    def __init__(self, shard: HostedShard) -> None:
        self._replicated = shard.replicated

    def look(self, work: Callable[[Changes], T]) -> T:
        return self._replicated.store.engine.look(work)

    async def change(self, step: Callable[[Changes, Tally], None]) -> None:
        tally = self._replicated.quarantined
        await self._replicated.change_quarantine(lambda changes: step(changes, tally))


class _Aside:
    """The quarantine of a copy that this backend let go of. The folder is deleted when nothing is left."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self, work: Callable[[Changes], T]) -> T:
        engine = open_engine(ShardFolder(self._path).current)
        try:
            return engine.look(work)
        finally:
            engine.close()

    async def change(self, step: Callable[[Changes, Tally], None]) -> None:
        def change(changes: Changes) -> None:
            step(changes, quarantine.Tally())

        engine = open_engine(ShardFolder(self._path).current)
        try:
            batch = Batch()
            batch.before = change
            await asyncio.to_thread(engine.commit, batch, lambda: None)
            is_empty = not engine.look(lambda changes: quarantine.rows_from(changes, 1))
        finally:
            engine.close()
        if is_empty:
            gone = self._path.parent.parent / f"{self._path.name}{GONE}"
            self._path.rename(gone)
            sync_folder(gone.parent)
            await asyncio.to_thread(shutil.rmtree, gone)


class Recovery:
    """The quarantine of one backend. One request at a time reads or changes a copy that was let go of."""

    def __init__(self, shards: Mapping[ShardNumber, HostedShard], folder: Path) -> None:
        self._shards = shards
        self._aside = folder / ASIDE
        self._lock = asyncio.Lock()
        self._counted: dict[str, int] = {}
        """Folder of a copy that was let go of → messages in it."""

    async def messages(self) -> dict[int, int]:
        """Number of messages kept, by shard. Raises storage errors, `OSError`."""
        found: Counter[int] = Counter()
        for number, shard in self._shards.items():
            found[number] += shard.replicated.quarantined.messages
        async with self._lock:
            for folder in self._folders():
                if folder.name not in self._counted:
                    self._counted[folder.name] = _count(folder)
                found[_shard_of(folder)] += self._counted[folder.name]
        return {shard: messages for shard, messages in found.items() if messages}

    def _folders(self) -> list[Path]:
        """The folders of copies; other folders here are not ours."""
        if not self._aside.is_dir():
            return []
        return sorted(path for path in self._aside.iterdir() if _COPY.fullmatch(path.name) and path.is_dir())

    def _sources(self, shard: int | None = None) -> list[tuple[int, Source]]:
        live: list[tuple[int, Source]] = [
            (number, _Live(one)) for number, one in self._shards.items() if one.replicated.quarantined.messages
        ]
        aside: list[tuple[int, Source]] = [(_shard_of(folder), _Aside(folder)) for folder in self._folders()]
        return [(number, source) for number, source in (*live, *aside) if shard in (None, number)]

    async def pieces(self) -> list[Piece]:
        """All pieces, in order of shard, epoch and queue. Raises storage errors, `OSError`."""
        async with self._lock:
            found: dict[tuple[int, int, int], Piece] = {}
            for shard, source in self._sources():
                async for place, kept in _all(source):
                    key = shard, place.epoch, kept.uid
                    if key not in found:
                        found[key] = Piece(shard, place.epoch, kept.tenant, kept.queue, kept.uid)
                    found[key].add(kept)
            return [found[key] for key in sorted(found)]

    async def some(
        self, shard: int, epoch: int, uid: int, after: Place | None, bytes_max: int
    ) -> list[tuple[Place, Kept]]:
        """Chunks of a piece after a place, in order; at least one, where there is one. Raises storage errors."""
        async with self._lock:
            return await self._some(shard, epoch, uid, after, bytes_max)

    async def _some(
        self, shard: int, epoch: int, uid: int, after: Place | None, bytes_max: int
    ) -> list[tuple[Place, Kept]]:
        found: dict[Place, Kept] = {}
        ends: list[Place] = []
        """Where a source stopped: what other sources have from there on comes with the next request."""
        for _, source in self._sources(shard):
            size = taken_here = 0
            async for place, kept in _all(source, after, epoch):
                if kept.uid == uid:
                    size += len(kept.data)
                    if taken_here and size > bytes_max:
                        ends.append(place)
                        break
                    taken_here += 1
                    found[place] = kept
        end = min(ends, default=None)
        taken: list[tuple[Place, Kept]] = []
        size = 0
        for place in sorted(found):
            if end is not None and place >= end:
                break
            size += len(found[place].data)
            if taken and size > bytes_max:
                break
            taken.append((place, found[place]))
        return taken

    async def begin(self, shard: int, places: Sequence[Place], *, is_begun: bool) -> None:
        """Records that these chunks are being published again; with `is_begun` false, that they were not after all."""
        now_ms = wall_clock_ms() if is_begun else 0

        def step(changes: Changes, tally: Tally) -> None:
            quarantine.begin(changes, places, now_ms)

        async with self._lock:
            for _, source in self._sources(shard):
                await source.change(step)

    async def forget(self, shard: int, places: Sequence[Place]) -> None:
        """Returns when the chunks are gone from the disk, in all copies here."""

        def step(changes: Changes, tally: Tally) -> None:
            quarantine.forget(changes, places, tally)

        async with self._lock:
            self._counted.clear()
            for _, source in self._sources(shard):
                await source.change(step)
        log.info("quarantined messages were let go of", shard=shard, chunks=len(places))


def _count(folder: Path) -> int:
    """0 where the copy cannot be read: the rest of this backend's report must not wait for it."""
    try:
        return _Aside(folder).look(quarantine.tally_of).messages
    except (StorageError, OSError) as error:
        log.error("a copy that was put aside cannot be read", folder=str(folder), error=str(error))
        return 0


def _shard_of(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


async def _all(
    source: Source, after: Place | None = None, epoch: int | None = None
) -> AsyncIterator[tuple[Place, Kept]]:
    """Reads a few rows at a time, so that the loop is not blocked."""

    def read(changes: Changes) -> list[tuple[Place, Kept]]:
        return list(islice(quarantine.kept_from(changes, after, epoch=epoch), QUARANTINE_ROWS_PER_READ))

    while found := source.look(read):
        for one in found:
            yield one
        after = found[-1][0]
        await asyncio.sleep(0)
