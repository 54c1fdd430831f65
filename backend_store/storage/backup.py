"""Backup: a copy of a live folder, taken from its own process or from another, while commits go on.

The copy is one read transaction of LMDB, streamed without free pages. Copying by key ranges in short reads would pin
less, but each range would be from another moment: a chunk gone here, its settled bits not yet there. One snapshot is a
prefix of what was committed, and needs no log to be made consistent. Its cost is that pages freed meanwhile are not
reused until it ends; so it is bounded, in time and by the room left on the source's disk, and gives up beyond that.
"""

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from backend_store.storage.engine import StorageError
from backend_store.storage.env import copy_environment, count_rows
from backend_store.storage.folder import (
    BALLAST_FILE,
    DATA_FILE,
    create_private,
    made_for_work,
    sync_folder,
    write_private,
)
from backend_store.storage.space import BALLAST_BYTES_MAX, BALLAST_DISK_FRACTION

MANIFEST_FILE = "manifest.json"
BACKUP_SECONDS_MAX = 1800.0
_PIECE_BYTES = 1 << 20


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a backup; written last, so a folder without it is no backup."""

    version: Literal[1]
    disk_id: str
    taken_at: str
    file_bytes: int
    sha256: str
    rows: dict[str, int]
    files: dict[str, str] = {}
    """Names of further files of the folder that were asked for → their SHA-256."""


class BackupFailed(StorageError):
    """The backup failed and nothing of it was kept; the folder itself is untouched."""

    code = "backup-failed"


def backup(
    path: Path, target: Path, *, beside: Sequence[str] = (), seconds_max: float = BACKUP_SECONDS_MAX
) -> Manifest:
    """Copies the folder at `path` into `target`, which must be missing or empty. Blocks: call it from a thread.

    `beside`: names of further small files of the folder to copy. They must not change meanwhile: the copy would be of
    two moments.
    """
    if not (path / DATA_FILE).exists():
        raise BackupFailed(f'folder "{path}" contains no store')
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupFailed(f'target "{target}" is not an empty folder')
    with made_for_work(target):
        try:
            return _copy(path, target, beside, time.monotonic() + seconds_max)
        except BaseException:
            for name in (DATA_FILE, *beside, MANIFEST_FILE):
                (target / name).unlink(missing_ok=True)
            raise


def _copy(path: Path, target: Path, beside: Sequence[str], deadline: float) -> Manifest:
    data = target / DATA_FILE
    others = {name: _read(path / name) for name in beside}
    digest = _stream(path, data, deadline)
    disk_id, rows = count_rows(target)
    for name, content in others.items():
        if _read(path / name) != content:
            raise BackupFailed(f'"{path / name}" was changed while the backup ran: run it again')
        write_private(target / name, content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in others.items()}
    manifest = Manifest(1, disk_id, _now(), data.stat().st_size, digest, rows, digests)
    write_private(target / MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    sync_folder(target)
    return manifest


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BackupFailed(f'"{file}" cannot be copied: {error.strerror}') from None


def _stream(path: Path, data: Path, deadline: float) -> str:
    source, sink = os.pipe()
    copier = _Copier(path, sink)
    copier.start()
    try:
        digest = _receive(source, data, path, deadline)
    finally:
        # If it is we who gave up, closing our end before the join ends the copy.
        os.close(source)
        copier.join()
    if copier.error is not None:
        raise copier.error
    return digest


class _Copier(threading.Thread):
    """Feeds the pipe; the read transaction lives as long as this thread."""

    def __init__(self, path: Path, sink: int):
        super().__init__(name="backup", daemon=True)
        self.error: StorageError | None = None
        self._path = path
        self._sink = sink

    def run(self) -> None:
        try:
            copy_environment(self._path, self._sink)
        except StorageError as error:
            self.error = error
        finally:
            os.close(self._sink)


def _receive(source: int, data: Path, path: Path, deadline: float) -> str:
    """Writes the pipe's bytes durably to disk, and returns their SHA-256."""
    digest = hashlib.sha256()
    with create_private(data) as file:
        while piece := os.read(source, _PIECE_BYTES):
            file.write(piece)
            digest.update(piece)
            _check_bounds(path, deadline)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _check_bounds(path: Path, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise BackupFailed(f'backup of "{path}" took too long: the pages it pins would make the file grow')
    disk = os.statvfs(path)
    floor = _ballast_bytes(path, disk) // 2
    free = disk.f_bavail * disk.f_frsize
    if free < floor:
        raise BackupFailed(f'backup of "{path}" stopped: its disk has {free} bytes left, but {floor} must stay free')


def _ballast_bytes(path: Path, disk: os.statvfs_result) -> int:
    """The size of the ballast file that a server made in the folder, or would make by default."""
    try:
        return (path / BALLAST_FILE).stat().st_size
    except FileNotFoundError:
        return min(BALLAST_BYTES_MAX, int(disk.f_blocks * disk.f_frsize * BALLAST_DISK_FRACTION))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
