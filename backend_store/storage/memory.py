"""The engine without a disk, for tests: the same contract, and switches for the failures a disk has."""

import threading
import uuid
from bisect import bisect_left, insort
from collections.abc import Callable

from backend_store.storage.engine import (
    Batch,
    EngineClosed,
    Row,
    Space,
    StorageBroken,
    StorageFailed,
    StorageFull,
    Table,
)

_DISK_BYTES = 1 << 30


class MemoryEngine:
    """See `engine.Engine`."""

    def __init__(self, *, disk_bytes: int = _DISK_BYTES):
        self.disk_id = str(uuid.uuid4())
        self.was_clean = True
        self.on_broken: Callable[[StorageBroken], None] = lambda error: None
        self.full = False
        """While true, every commit raises `StorageFull`."""
        self.before_sync: Callable[[], None] | None = None
        """Called in the writer thread after `staged`, where the fsync would be: a test may block or count there."""
        self.disk_bytes = disk_bytes
        self.commits = 0
        self._rows: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        self._keys: dict[Table, list[bytes]] = {table: [] for table in Table}
        self._lock = threading.Lock()
        self._next_failure: tuple[StorageFailed, bool] | None = None
        self._failed: StorageFailed | None = None
        self._closed = False

    def fail_next_commit(self, *, kept: bool = False) -> None:
        """The next commit raises `StorageFailed`; `kept`: after its rows became durable, as a late I/O error may."""
        self._next_failure = (StorageFailed("the disk failed, as the test asked"), kept)

    def crash(self) -> "MemoryEngine":
        """The engine as the next process finds it: all that was committed, and no clean close. This engine is
        closed."""
        reborn = MemoryEngine(disk_bytes=self.disk_bytes)
        reborn.disk_id = self.disk_id
        with self._lock:
            reborn.was_clean = self._closed
            reborn._rows = {table: dict(rows) for table, rows in self._rows.items()}
            reborn._keys = {table: list(keys) for table, keys in self._keys.items()}
            self._closed = True
        return reborn

    def commit(self, batch: Batch, staged: Callable[[], None]) -> None:
        self._check_open()
        if self._failed is not None:
            raise StorageFailed(f"an earlier commit failed: {self._failed}")
        if self.full:
            raise StorageFull("the map is full, nothing was written")
        assert batch.before is None, "work inside a transaction needs the engine on disk"
        staged()
        if self.before_sync is not None:
            self.before_sync()
        failure, self._next_failure = self._next_failure, None
        if failure is not None:
            self._failed, kept = failure
            if not kept:
                raise self._failed
        with self._lock:
            self._check_open()
            for table, rows in batch.rows.items():
                for key, value in rows.items():
                    self._set(table, key, value)
            self.commits += 1
        if failure is not None:
            raise failure[0]

    def _set(self, table: Table, key: bytes, value: bytes | None) -> None:
        rows, keys = self._rows[table], self._keys[table]
        if value is not None:
            if key not in rows:
                insort(keys, key)
            rows[key] = bytes(value)
        elif rows.pop(key, None) is not None:
            del keys[bisect_left(keys, key)]

    def get(self, table: Table, key: bytes) -> bytes | None:
        self._check_open()
        return self._rows[table].get(key)

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, *, reverse: bool = False) -> list[Row]:
        self._check_open()
        with self._lock:
            rows, keys = self._rows[table], self._keys[table]
            found = keys[bisect_left(keys, start) : bisect_left(keys, end)]
            chosen = found[::-1][:limit] if reverse else found[:limit]
            return [(key, rows[key]) for key in chosen]

    def first_at_or_above(self, table: Table, start: bytes, end: bytes) -> Row | None:
        self._check_open()
        with self._lock:
            rows, keys = self._rows[table], self._keys[table]
            at = bisect_left(keys, start)
            return (keys[at], rows[keys[at]]) if at < len(keys) and keys[at] < end else None

    def space(self) -> Space:
        self._check_open()
        with self._lock:
            live = sum(len(key) + len(value) for rows in self._rows.values() for key, value in rows.items())
        return Space(
            disk_total=self.disk_bytes,
            disk_free=max(0, self.disk_bytes - live),
            file_bytes=live,
            live_bytes=live,
        )

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed("the memory engine was closed")
