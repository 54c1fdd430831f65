"""The disk under a commit: one LMDB environment, opened here and nowhere else.

Default flags always: each weaker one (`nosync`, `nometasync`, `writemap`) loses confirmed data in a power cut or kills
the process when the disk is full. A read transaction pins the pages it sees, so reads here last microseconds.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import lmdb
import lmdb.verify

from backend_store.storage.engine import (
    Batch,
    Changes,
    EngineClosed,
    Row,
    Space,
    StorageBroken,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
    Table,
    nothing_more,
)
from backend_store.storage.folder import (
    DATA_FILE,
    FolderLock,
    make_private,
    make_room_to_open,
    refuse_unfinished_restore,
)
from backend_store.storage.keys import META_DISK_ID, META_FORMAT, META_RUNNING
from backend_store.storage.whole import KEYS_COUNTED_BYTES_MAX, STRUCTURE_CHECKED_BYTES_MAX, Length, look_at

FORMAT_VERSION = 1
"""Changes when rows of any table change so that the version before would misread them."""
MAP_BYTES = 1 << 40
"""Address space, not disk: opening costs nothing. A store beyond 1 TiB needs a larger one."""
_TABLES_MAX = 32
_SPARE_READS_MAX = 8

_BROKEN = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.BadTxnError,
)
"""LMDB's errors for a broken structure, including a transaction whose first step met a broken root."""

Tables = dict[Table, lmdb._Database]
T = TypeVar("T")


class LmdbEngine:
    """See `engine.Engine`. Made by `open_engine`."""

    def __init__(self, path: Path, env: lmdb.Environment, lock: FolderLock, tables: Tables, disk_id: str, clean: bool):
        self.path = path
        self.disk_id = disk_id
        self.was_clean = clean
        self._env = env
        self._lock = lock
        self._tables = tables
        self._log = tables[Table.LOG]
        self._failed: StorageFailed | StorageBroken | None = None
        self._copying = threading.Lock()
        self.on_broken: Callable[[StorageBroken], None] = lambda error: None
        self._length = Length(path)
        self._closed = False
        _open_engines.add(self)

    def commit(self, batch: Batch, staged: Callable[[], None]) -> None:
        if self._failed is not None:
            raise nothing_more(self._failed, "an earlier commit failed")
        try:
            txn = self._env.begin(write=True)
            try:
                self._stage(txn, batch)
                staged()
                txn.commit()
            except BaseException:
                txn.abort()
                raise
        except lmdb.MapFullError as error:
            # Raised before a page is written, at a put or when the free list is saved: the old state stands.
            raise StorageFull(f'folder "{self.path}": the map is full, nothing was written ({error})') from error
        except lmdb.Error as error:
            # After a failed write or fsync the disk's content is unknown, and a second fsync may wrongly succeed.
            what = f'folder "{self.path}": a commit failed: {error}'
            self._failed = StorageBroken(what) if isinstance(error, _BROKEN) else StorageFailed(what)
            raise self._failed from error

    def _stage(self, txn: lmdb.Transaction[bytes], batch: Batch) -> None:
        if batch.before is not None:
            batch.before(_Changes(txn, self._tables))
        for table, rows in batch.rows.items():
            db = self._tables[table]
            puts = [(key, value) for key, value in rows.items() if value is not None]
            if puts:
                # One call per table: each call releases the GIL, and a busy loop is slow to release it again.
                txn.cursor(db).putmulti(puts)
            if len(puts) < len(rows):
                for key, value in rows.items():
                    if value is None:
                        txn.delete(key, db=db)

    def get(self, table: Table, key: bytes) -> bytes | None:
        try:
            with self._env.begin(self._tables[table]) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def first_at_or_above(self, table: Table, start: bytes, end: bytes) -> Row | None:
        try:
            # LMDB keeps spare transactions: `begin` renews one and costs a third of a microsecond.
            with self._env.begin(self._tables[table]) as txn:
                cursor = txn.cursor()
                if not cursor.set_range(start):
                    return None
                key = cursor.key()
                return (key, cursor.value()) if key < end else None
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, *, reverse: bool = False) -> list[Row]:
        with self._reading(), self._env.begin(self._tables[table]) as txn:
            return _scan(txn.cursor(), start, end, limit, reverse=reverse)

    def look(self, work: Callable[[Changes], T]) -> T:
        """Several reads of one moment; a change in `work` is an error. Keep it short."""
        with self._reading(), self._env.begin() as txn:
            return work(_Changes(txn, self._tables))

    def space(self) -> Space:
        """Also frees the reader slots of dead processes, which would still pin pages. Raises `StorageBroken` where the
        file was truncated: a read behind its end would kill the process without a message."""
        file = os.stat(self.path / DATA_FILE)
        if (cut := self._length.cut(file.st_size)) is not None:
            raise self._broken(cut)
        self._env.reader_check()
        with self._reading(), self._env.begin() as txn:
            live = sum(_pages(txn.stat(db)) for db in self._tables.values()) + _pages(self._env.stat())
            page_bytes = self._env.stat()["psize"]
        disk = os.statvfs(self.path)
        free = disk.f_bavail * disk.f_frsize
        return Space(
            disk_total=(disk.f_blocks - disk.f_bfree) * disk.f_frsize + free,
            disk_free=free,
            # Holes in the file do not count: the disk has yet to provide these blocks.
            file_bytes=min(file.st_size, file.st_blocks * 512),
            live_bytes=live * page_bytes,
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: lmdb.Error) -> StorageError:
        what = f'folder "{self.path}" cannot be read: {error}'
        return self._broken(what) if isinstance(error, _BROKEN) else StorageCorrupt(what)

    def _broken(self, what: str) -> StorageBroken:
        error = StorageBroken(what)
        self.on_broken(error)
        return error

    def copy_to(self, fd: int) -> None:
        """Writes one consistent snapshot without free pages to the descriptor. Blocks: call it from a thread."""
        with self._copying:
            _copy(self.path, self._env, fd)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._copying:
            try:
                if self._failed is None:
                    self._say_goodbye()
            finally:
                env = self._env
                self._env = _gone(f'folder "{self.path}" was closed')
                env.close()
                self._lock.release()

    def _say_goodbye(self) -> None:
        try:
            with self._env.begin(self._tables[Table.META], write=True) as txn:
                txn.delete(META_RUNNING)
            self._lock.say_goodbye()
        except (lmdb.Error, OSError):
            # The marker stays, and the next start verifies, which is its purpose.
            return

    def _abandon_in_child(self) -> None:
        # LMDB would let the child read and even commit through the inherited map, against its own documentation.
        _inherited.append(self._env)
        self._env = _gone(f'folder "{self.path}" was opened before the fork, by process {os.getppid()}')
        self._copying = threading.Lock()
        self._closed = True
        self._lock.release()


class _Changes:
    """See `engine.Changes`."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: Tables):
        self._txn = txn
        self._tables = tables

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._txn.get(key, db=self._tables[table])

    def put_all(self, table: Table, rows: list[Row]) -> None:
        self._txn.cursor(self._tables[table]).putmulti(rows)

    def delete(self, table: Table, key: bytes) -> None:
        self._txn.delete(key, db=self._tables[table])

    def scan(self, table: Table, start: bytes, end: bytes, limit: int, *, reverse: bool = False) -> list[Row]:
        return _scan(self._txn.cursor(self._tables[table]), start, end, limit, reverse=reverse)


def _scan(cursor: lmdb.Cursor[bytes], start: bytes, end: bytes, limit: int, *, reverse: bool) -> list[Row]:
    rows: list[Row] = []
    here = _seek_last_below(cursor, end) if reverse else cursor.set_range(start)
    step = cursor.prev if reverse else cursor.next
    while here and len(rows) < limit:
        key = cursor.key()
        if not start <= key < end:
            break
        rows.append((key, cursor.value()))
        here = step()
    return rows


_open_engines: weakref.WeakSet[LmdbEngine] = weakref.WeakSet()
_inherited: list[lmdb.Environment] = []
"""Environments that a forked child must neither use nor close; kept so that they are not freed."""


def _abandon_all_in_child() -> None:
    for engine in list(_open_engines):
        if not engine._closed:
            engine._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all_in_child)


class _Gone:
    """Replaces a closed environment; each use raises the reason."""

    def __init__(self, reason: str):
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise EngineClosed(self._reason)


def _gone(reason: str) -> lmdb.Environment:
    return cast(lmdb.Environment, _Gone(reason))


def open_engine(path: Path, *, map_size: int = MAP_BYTES) -> LmdbEngine:
    """Opens the folder, making it when it is missing, and marks it as running.

    Raises `FolderInUse`, `StorageCorrupt` (no environment of ours) or `StorageFailed` (the disk refuses).
    """
    path = path.resolve()
    make_private(path)
    refuse_unfinished_restore(path)
    lock = FolderLock(path)
    env: lmdb.Environment | None = None
    try:
        make_room_to_open(path)
        is_walked = _refuse_broken(path, was_left=lock.was_left)
        env = _open_env(path, map_size)
        if not is_walked:
            _refuse_miscounted(path, env)
        tables, disk_id, clean = _mark_running(path, env)
    except BaseException as error:
        if env is not None:
            env.close()
        lock.release()
        if isinstance(error, lmdb.Error):
            raise _unopened(path, error) from error
        raise
    return LmdbEngine(path, env, lock, tables, disk_id, clean)


def _refuse_broken(path: Path, *, was_left: bool) -> bool:
    """Checks the file before it is mapped. Returns whether all of its pages were checked. Raises `StorageCorrupt` for a
    broken structure: nothing of it is served, because what is missing would be unknown."""
    try:
        size = os.stat(path / DATA_FILE).st_size
    except FileNotFoundError:
        return False
    head = look_at(path)
    if head.problem is not None:
        raise _damaged(path, head.problem)
    # A page behind the end may be a free one, which was never written.
    if head.is_short or ((was_left or head.is_long) and size <= STRUCTURE_CHECKED_BYTES_MAX):
        if problems := structure_problems(path):
            raise _damaged(path, head.sizes if head.is_short else problems[0], len(problems))
        return True
    return False


def _refuse_miscounted(path: Path, env: lmdb.Environment) -> None:
    """After a clean shutdown: checks that each table has as many rows as it says. A lost page loses its rows
    silently."""
    if os.stat(path / DATA_FILE).st_size > KEYS_COUNTED_BYTES_MAX:
        return
    with env.begin() as txn:
        names = env.dbs(txn)
        for table in Table:
            if (name := table.value.encode()) not in names:
                continue
            db = env.open_db(name, txn=txn, create=False)
            told = txn.stat(db)["entries"]
            found = sum(1 for _ in txn.cursor(db).iternext(keys=True, values=False))
            if found != told:
                raise _damaged(path, f'of {told} rows of the table "{table.value}" {found} are found')


def _damaged(path: Path, what: str, problems: int = 1) -> StorageCorrupt:
    more = f", and {problems - 1} problems more" if problems > 1 else ""
    return StorageCorrupt(
        f'folder "{path}" is corrupt: {what}{more}; messages may be missing, so it is not served. Restore it from a '
        "backup"
    )


def _other_format(path: Path, version: int) -> str:
    of = f'folder "{path}" has format {version}, but this version of Pushq reads format {FORMAT_VERSION}'
    if version > FORMAT_VERSION:
        return f"{of}: it was written by a newer version; start that one, or restore a backup from before the upgrade"
    return f"{of}: it was written by an older version that is no longer supported"


def _open_env(path: Path, map_size: int) -> lmdb.Environment:
    env = lmdb.open(str(path), map_size=map_size, mode=0o600, max_dbs=_TABLES_MAX, max_spare_txns=_SPARE_READS_MAX)
    env.reader_check()
    return env


def _mark_running(path: Path, env: lmdb.Environment) -> tuple[Tables, str, bool]:
    with env.begin(write=True) as txn:
        tables = {table: env.open_db(table.value.encode(), txn=txn) for table in Table}
        meta = tables[Table.META]
        version = txn.get(META_FORMAT, db=meta)
        if version is None:
            txn.put(META_FORMAT, bytes([FORMAT_VERSION]), db=meta)
            txn.put(META_DISK_ID, str(uuid.uuid4()).encode(), db=meta)
        elif version != bytes([FORMAT_VERSION]):
            raise StorageCorrupt(_other_format(path, int.from_bytes(version)))
        clean = txn.get(META_RUNNING, db=meta) is None
        txn.put(META_RUNNING, str(os.getpid()).encode(), db=meta)
        disk_id = txn.get(META_DISK_ID, b"", db=meta).decode()
    return tables, disk_id, clean


def copy_environment(path: Path, fd: int) -> None:
    """Writes a consistent snapshot of the folder's environment to the descriptor, whichever process has it open."""
    path = path.resolve()
    for engine in list(_open_engines):
        if engine.path == path and not engine._closed:
            return engine.copy_to(fd)
    with _open_readonly(path) as env:
        _copy(path, env, fd)


def count_rows(path: Path) -> tuple[str, dict[str, int]]:
    """(disk id, rows of each table) of a copy that no process writes to."""
    with _open_readonly(path, lock=False) as env, _reading(path), env.begin() as txn:
        # A copy made by an older program lacks the tables that came later.
        names = [table.value for table in Table if table.value.encode() in env.dbs(txn)]
        tables = {name: env.open_db(name.encode(), txn=txn, create=False) for name in names}
        meta = tables.get(Table.META.value)
        disk_id = txn.get(META_DISK_ID, b"", db=meta).decode() if meta is not None else ""
        return disk_id, {name: txn.stat(db)["entries"] for name, db in tables.items()}


def structure_problems(path: Path) -> list[str]:
    """The faults in the pages of a file at rest; values are not checked. About 5 s per GB."""
    try:
        problems: list[str] = lmdb.verify.verify(str(path / DATA_FILE))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        return [str(error)]
    return problems


@contextmanager
def _open_readonly(path: Path, *, lock: bool = True) -> Iterator[lmdb.Environment]:
    try:
        env = lmdb.open(str(path), map_size=MAP_BYTES, readonly=True, create=False, lock=lock, max_dbs=_TABLES_MAX)
    except lmdb.Error as error:
        raise _unopened(path, error) from error
    try:
        yield env
    finally:
        env.close()


def _copy(path: Path, env: lmdb.Environment, fd: int) -> None:
    try:
        env.copyfd(fd, compact=True)
    except lmdb.Error as error:
        raise StorageError(f'cannot copy folder "{path}": {error}') from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise _unreadable(path, error) from error


def _seek_last_below(cursor: lmdb.Cursor[bytes], end: bytes) -> bool:
    return cursor.prev() if cursor.set_range(end) else cursor.last()


def _pages(stat: Any) -> int:
    pages: int = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return pages


def _unopened(path: Path, error: lmdb.Error) -> StorageError:
    if isinstance(error, _BROKEN):
        return StorageCorrupt(f'cannot open folder "{path}": {error}; restore it from a backup')
    return StorageFailed(f'cannot open folder "{path}": {error}')


def _unreadable(path: Path, error: lmdb.Error) -> StorageError:
    return StorageCorrupt(f'folder "{path}" cannot be read: {error}')
