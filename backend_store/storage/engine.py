"""The interface of storage: tables of sorted rows, one atomic durable commit, short reads.

The event loop builds a batch, the writer thread commits it, and deliveries from a backlog read it. Two engines
implement this contract: `env.LmdbEngine` on disk and `memory.MemoryEngine` for tests.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from backend_store.model import Unavailable

Rows = dict[bytes, bytes | None]
Row = tuple[bytes, bytes]


class Table(enum.Enum):
    """The fixed sub-databases; the value is the name on disk, so it never changes."""

    LOG = "log"
    MARKS = "marks"
    RETRY = "retry"
    META = "meta"
    QUARANTINE = "quarantine"
    LANES = "lanes"
    """Entries beside the main log: priorities, scheduled, dead, late, on their way to another queue."""
    DUE = "due"
    EXPIRY = "expiry"
    ORDER = "order"
    GROUPS = "groups"
    PRODUCERS = "producers"
    IDS = "ids"
    BY_ID = "by_id"
    PARKED = "parked"
    LEASES = "leases"
    USAGE = "usage"
    """Rows of the node and not of one replica: the ledger, the audit, and daily counts."""
    REPLICATION = "replication"
    """The replicated log of a shard, beside the rows that it writes; empty in a store that does not replicate."""

    # Members are singletons; the default hash is a Python call, which each put of the hot path would pay for.
    __hash__ = object.__hash__


class Changes(Protocol):
    """The transaction of one commit, for work that has to read what it changes. It sees its own changes."""

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def put_all(self, table: Table, rows: list[Row]) -> None: ...

    def delete(self, table: Table, key: bytes) -> None:
        """A missing row is no error."""

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, *, reverse: bool = False) -> list[Row]:
        """As `Engine.scan`."""


class Batch:
    """One transaction's changes. The last change of a key wins; `None` deletes."""

    __slots__ = ("before", "rows")

    def __init__(self) -> None:
        self.rows: dict[Table, Rows] = {}
        self.before: Callable[[Changes], None] | None = None
        """Work in the same transaction, before the rows. An exception from it undoes everything and comes out of
        `commit`."""

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        rows = self.rows.get(table)
        if rows is None:
            rows = self.rows[table] = {}
        rows[key] = value

    def delete(self, table: Table, key: bytes) -> None:
        """Deletes the row if it is there; a missing row is no error."""
        rows = self.rows.get(table)
        if rows is None:
            rows = self.rows[table] = {}
        rows[key] = None

    def __bool__(self) -> bool:
        return self.before is not None or any(self.rows.values())


@dataclass(frozen=True, slots=True)
class Space:
    """Space on the disk, in bytes. `disk_total` leaves out what the file system reserves for others."""

    disk_total: int
    disk_free: int
    file_bytes: int
    live_bytes: int

    @property
    def free_inside(self) -> int:
        """Unused pages of the file: the file never shrinks, and new rows go there first."""
        return max(0, self.file_bytes - self.live_bytes)

    @property
    def used_fraction(self) -> float:
        used = self.disk_total - self.disk_free - self.free_inside
        return max(0, used) / self.disk_total if self.disk_total else 1.0


class Engine(Protocol):
    """One environment of a node."""

    disk_id: str
    """Identity of this copy of the data: a UUID made at the first open, and again by a restore."""
    was_clean: bool
    """False when the last process on this folder did not close it: verify before serving."""
    on_broken: Callable[[StorageBroken], None]
    """Called, in the reading thread, for each read that met a broken structure; the read raises all the same."""

    def commit(self, batch: Batch, staged: Callable[[], None]) -> None:
        """Writes all rows in one transaction, durable on return. Writer thread only.

        `staged` is called once, when all rows are in place and only the commit with its fsync remains. Raises
        `StorageFull` (nothing was written, the engine goes on), or `StorageFailed` or `StorageBroken` (the process must
        end).
        """

    def get(self, table: Table, key: bytes) -> bytes | None:
        """A copy of one row, in a read transaction of its own; any thread."""

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, *, reverse: bool = False) -> list[Row]:
        """Up to `limit` rows with start <= key < end, in one short read transaction; `reverse` starts at the end."""

    def first_at_or_above(self, table: Table, start: bytes, end: bytes) -> Row | None:
        """The first row with start <= key < end: the hot read of a backlog."""

    def space(self) -> Space:
        """Space on the disk and inside the file, now."""

    def close(self) -> None:
        """Closes cleanly; a second call does nothing."""


class StorageError(Exception):
    """Base of storage errors; `code` is stable."""

    code = "storage-error"


class StorageFull(StorageError):
    """The batch did not fit and was dropped as a whole before anything was written; smaller ones may fit."""

    code = "storage-full"


class StorageFailed(StorageError):
    """An I/O error inside a commit: what is on disk is unknown until a new process opens and verifies it."""

    code = "storage-failed"


class FolderInUse(StorageError):
    """Another engine has the folder open; the message names its process."""

    code = "folder-in-use"


class ClockAhead(StorageError):
    """The clock is further beyond the last time in the folder than it may be at a start; nothing was changed."""

    code = "clock-ahead"

    def __init__(self, detail: str, *, days: int) -> None:
        """`days`: how many it is ahead, rounded up."""
        super().__init__(detail)
        self.days = days


class EngineClosed(StorageError):
    """The engine was closed, or belongs to the parent of a forked process."""

    code = "engine-closed"


class StorageCorrupt(StorageError):
    """The file is no environment of ours, or its structure is broken; or a row is not what was written."""

    code = "storage-corrupt"


class StorageBroken(StorageCorrupt, Unavailable):
    """The structure of the file is broken, or its end is missing: the process ends before it does harm.

    A caller whose request met this learns only that the request cannot be served. The facts are for the operator.
    """

    code = "unavailable"

    def __init__(self, facts: str) -> None:
        super().__init__("stored messages cannot be read, so the server exits; nothing of this request was done")
        self.facts = facts

    def __str__(self) -> str:
        return self.facts


def nothing_more(why: BaseException, said: str) -> StorageError:
    """The error of a commit after the last one. A broken file stays broken: the process is already ending, and a later
    commit must not kill it while it still answers requests."""
    return StorageBroken(why.facts) if isinstance(why, StorageBroken) else StorageFailed(f"{said}: {why}")
