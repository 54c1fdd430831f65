"""The writer and the environment that a node gets while it leads a shard.

A batch becomes one entry of the log; it is done when the log is confirmed up to it. A batch that the log does not take
now, because too few replicas are in sync or a handover is in progress, is held until the log takes it: what a node has
decided cannot be taken back, only given up with the whole node.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from backend_store.model import PushqError
from backend_store.shard.entry_rows import payload_of
from backend_store.shard.limits import ENTRY_BYTES_MAX
from backend_store.storage.engine import Batch, Engine, Row, Space, StorageBroken, StorageFailed, Table
from backend_store.storage.writer import CommitSeconds, Done


class Deposed(PushqError):
    """This process does not lead the shard any more; operations in progress may have been done."""

    code = "not-leader"


class LeaderWriter:
    """See `storage.writer.CommitWriter`."""

    def __init__(self, append: Callable[[Batch, bytes, Done], bool]) -> None:
        """`append`: appends a batch with its payload to the log. Returns False where the log takes nothing now."""
        self.busy = False
        self.commit_seconds = CommitSeconds()
        self._append = append
        self._held: tuple[Batch, bytes, Done] | None = None
        self._flight: Done | None = None
        self._error: PushqError | None = None

    def submit(self, batch: Batch, done: Done) -> None:
        """Raises `StorageFailed` for a batch that is too big for an entry, and after `depose` the error given there."""
        assert not self.busy, "one batch in flight at a time"
        if self._error is not None:
            raise self._error
        payload = payload_of(batch)
        if len(payload) > ENTRY_BYTES_MAX:
            raise StorageFailed(f"a commit of {len(payload)} bytes is beyond {ENTRY_BYTES_MAX}")
        self.busy = True
        began = time.perf_counter()

        def landed(error: BaseException | None) -> None:
            if self._flight is not landed:
                return  # it was called already, when this leadership ended
            self._flight = None
            self.busy = False
            self.commit_seconds.add(time.perf_counter() - began)
            done(error)

        self._flight = landed
        if not self._append(batch, payload, landed):
            self._held = (batch, payload, landed)

    def retry(self) -> None:
        """Tries the held batch again, as something may have changed."""
        held = self._held
        if held is not None:
            self._held = None
            if not self._append(*held):
                self._held = held

    def depose(self, error: PushqError) -> None:
        """Refuses further batches, and answers the batch in progress, whose outcome will not be known here, with
        `error`."""
        self._error = error
        self._held = None
        if self._flight is not None:
            self._flight(error)

    async def close(self) -> None:
        """Does nothing: the writer thread belongs to the replica."""


class LeaderEngine:
    """The replica's environment, for reading; the replica commits to it and closes it. See `engine.Engine`."""

    was_clean = True
    """A replica that returns after a crash follows first, and every entry is verified whenever it is read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.disk_id = engine.disk_id
        self.on_broken: Callable[[StorageBroken], None] = lambda error: None
        """Never called: the replica's own engine reports errors to the replica's writer."""

    def commit(self, batch: Batch, staged: Callable[[], None]) -> None:
        raise StorageFailed("a shard commits through its log")

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._engine.get(table, key)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, *, reverse: bool = False) -> list[Row]:
        return self._engine.scan(table, start, end, limit, reverse=reverse)

    def first_at_or_above(self, table: Table, start: bytes, end: bytes) -> Row | None:
        return self._engine.first_at_or_above(table, start, end)

    def space(self) -> Space:
        return self._engine.space()

    def close(self) -> None:
        """Does nothing: the replica keeps its environment open."""
