"""One replica's storage: its environment, its writer thread, and a snapshot that may replace its state.

Changes are committed in the order in which the replica asked for them, together with the log's row, as one transaction.
A snapshot is written to an environment of its own, which replaces the current one when the snapshot is complete.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from backend_store.core.replication.entries import Entry
from backend_store.core.replication.log import StoredLog
from backend_store.core.replication.messages import Row
from backend_store.model import Offset
from backend_store.shard import entry_rows, quarantine
from backend_store.shard.entry_rows import Keeping, Step, Stored
from backend_store.shard.folder import ShardFolder
from backend_store.shard.pages import parse_row, read_page
from backend_store.storage.engine import Batch, Changes, StorageCorrupt, Table
from backend_store.storage.env import LmdbEngine, open_engine
from backend_store.storage.writer import Done, Writer


class StageRows(NamedTuple):
    """A page of a snapshot."""

    rows: tuple[Row, ...]
    is_first: bool


class Switch(NamedTuple):
    """Replaces the state by the snapshot; of the log, the part between `start` and `end` stays. Quarantined messages
    that `base` has are dropped from the quarantine."""

    start: Offset
    end: Offset
    keeping: Keeping | None
    base: quarantine.Base
    tally: quarantine.Tally


Work = Step | StageRows | Switch


class _Undone(Exception):
    """Rolls back a transaction that only reads."""


class ShardStore:
    """The storage of one replica, which opens and closes it. Methods must be called on the loop's thread."""

    def __init__(self, path: Path, number: int, *, on_fatal: Callable[[BaseException], None]) -> None:
        """Opens or makes the folder. Raises storage errors, `OSError`."""
        self._folder = ShardFolder(path)
        self._number = number
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self.engine = open_engine(self._folder.current)
        self._next: LmdbEngine | None = None
        self._slow: asyncio.Task[None] | None = None
        self.disk = self.engine.look(entry_rows.disk_of) or self._name()
        self.writer = Writer(self.engine, self._loop, on_fatal=on_fatal)
        self._began = 0.0

    def _name(self) -> str:
        """Gives a new, empty copy a name that no copy had before."""
        name = str(uuid.uuid4())
        batch = Batch()
        batch.before = partial(entry_rows.put_disk, name=name)
        self.engine.commit(batch, lambda: None)
        return name

    def rename(self) -> str:
        """Sets a new name for this copy and returns it; the caller writes it in its next commit."""
        self.disk = str(uuid.uuid4())
        return self.disk

    # ------------------------------------------------------------------------------------------------------ reading

    def stored(self) -> tuple[StoredLog, list[Entry]]:
        """(the log's row, the entries that are not final). Raises `StorageCorrupt`, `CorruptEntry`."""

        def read(changes: Changes) -> tuple[StoredLog, list[Entry]]:
            stored = entry_rows.stored_of(changes)
            size = 1 << 62
            tail = entry_rows.entries_from(changes, stored.base.end, stored.end, size, partition=self._number)
            return stored, tail

        return self.engine.look(read)

    def entries(self, start: Offset, end: int, bytes_max: int) -> list[Entry]:
        """Verified entries from the disk, at least one. Raises `StorageCorrupt` where there is none."""
        found = self.engine.look(
            partial(entry_rows.entries_from, start=start, end=end, bytes_max=bytes_max, partition=self._number)
        )
        if not found or found[0].offset != start:
            raise StorageCorrupt(f"the log of shard {self._number} has no entry at {start}")
        return found

    def has_below(self, start: Offset) -> bool:
        """Whether part of the log below `start` is still there."""
        return self.engine.look(partial(entry_rows.has_below, start=start))

    def page(self, after: bytes, applied: Offset) -> tuple[tuple[Row, ...], bool]:
        """See `pages.read_page`."""
        return self.engine.look(partial(read_page, after=after, applied=applied))

    # ------------------------------------------------------------------------------------------------------ commits

    @property
    def is_busy(self) -> bool:
        return self.writer.busy or self._slow is not None

    @property
    def busy_seconds(self) -> float:
        """How long the current commit has taken so far; 0 without one."""
        return self._loop.time() - self._began if self.is_busy else 0.0

    def commit(self, work: Sequence[Work], stored: StoredLog, done: Callable[[], None]) -> None:
        """Commits as one transaction. `done` is called on the loop when it is durable; a failure ends the process."""
        self._began = self._loop.time()
        if all(callable(step) for step in work):
            self.writer.submit(_batch(work, stored), self._told(done))
            return
        self._slow = self._loop.create_task(self._install(list(work), stored, done), name=f"shard {self._number}")

    def _told(self, done: Callable[[], None]) -> Done:
        def tell(error: BaseException | None) -> None:
            if error is None:
                done()
            else:
                self._on_fatal(error)

        return tell

    async def _install(self, work: list[Work], stored: StoredLog, done: Callable[[], None]) -> None:
        before = self.engine
        try:
            await asyncio.to_thread(self._commit_slowly, work, stored)
            if self.engine is not before:
                await self.writer.close()
                self.writer = Writer(self.engine, self._loop, on_fatal=self._on_fatal)
                await asyncio.to_thread(_remove, before)
        except Exception as error:
            self._on_fatal(error)
            return
        finally:
            self._slow = None
        done()

    def _commit_slowly(self, work: list[Work], stored: StoredLog) -> None:
        steps: list[Work] = []
        for number, one in enumerate(work):
            if isinstance(one, StageRows):
                self._stage(one)
            elif isinstance(one, Switch):
                self._switch(steps, one, work[number + 1 :], stored)
                return
            else:
                steps.append(one)
        self.engine.commit(_batch(steps, stored), lambda: None)

    def _stage(self, page: StageRows) -> None:
        if page.is_first or self._next is None:
            if self._next is not None:
                self._next.close()
            self._folder.clear_next()
            self._next = open_engine(self._folder.next)
        batch = Batch()
        for row in page.rows:
            table, (key, value) = parse_row(row)
            batch.put(table, key, value)
        self._next.commit(batch, lambda: None)

    def _switch(self, steps: list[Work], switch: Switch, later: list[Work], stored: StoredLog) -> None:
        """Rewrites the part of the log that this copy shares with the leader, on top of the snapshot's rows."""
        assert self._next is not None, "a snapshot has a page at least"
        common: list[Entry] = []
        aside: list[Row] = []

        def look(changes: Changes) -> None:
            for step in steps:
                assert callable(step)
                step(changes)
            common.extend(
                entry_rows.entries_from(changes, switch.start, switch.end, 1 << 62, partition=self._number)
                if switch.start < switch.end
                else ()
            )
            if switch.keeping is not None:
                entry_rows.truncate(changes, switch.end, switch.keeping)
            aside.extend(quarantine.rows_from(changes, 1 << 30))
            raise _Undone

        batch = Batch()
        batch.before = look
        try:
            self.engine.commit(batch, lambda: None)
        except _Undone:
            pass

        def begin(changes: Changes) -> None:
            entry_rows.put_disk(changes, self.disk)
            if kept := quarantine.still_lacked(aside, switch.base, switch.tally):
                changes.put_all(Table.REPLICATION, kept)
            for entry in common:
                entry_rows.append(changes, Stored(entry))

        self._next.commit(_batch([begin, *later], stored), lambda: None)
        self._folder.switch()
        self.engine, self._next = self._next, None

    async def close(self) -> None:
        """Waits for commits in progress."""
        if self._slow is not None:
            await asyncio.wait([self._slow])
        await self.writer.close()
        if self._next is not None:
            self._next.close()
        self.engine.close()


def _batch(work: Sequence[Work], stored: StoredLog) -> Batch:
    def write(changes: Changes) -> None:
        for step in work:
            assert callable(step)
            step(changes)
        entry_rows.put_stored(changes, stored)

    batch = Batch()
    batch.before = write
    return batch


def _remove(engine: LmdbEngine) -> None:
    engine.close()
    shutil.rmtree(engine.path, ignore_errors=True)
