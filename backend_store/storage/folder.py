"""Permissions and lock of a data folder: one process at a time opens it, and a lock file names that process.

LMDB would let a second process write too; two nodes on one log would assign the same offsets.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from backend_store.storage.engine import FolderInUse, StorageCorrupt

LOCK_FILE = "lock"
DATA_FILE = "data.mdb"
BALLAST_FILE = "ballast"
RESTORING_FOLDER = "restoring"
OPEN_FREE_BYTES_MIN = 1 << 20


def make_private(path: Path) -> None:
    """Makes the folder with mode 700. A folder that already has content keeps the mode its owner gave it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not any(path.iterdir()):
        path.chmod(0o700)


@contextmanager
def made_for_work(path: Path) -> Iterator[None]:
    """Makes the folder and its parents as `make_private` does; if the work in it fails, removes those it made and finds
    empty."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_private(path)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def refuse_unfinished_restore(path: Path) -> None:
    """Raises `StorageCorrupt` where a restore was cut off: an empty store must not start there, as its operator expects
    the old messages."""
    if (path / RESTORING_FOLDER).exists():
        raise StorageCorrupt(f'folder "{path}": a restore into it did not finish; run it again')


def create_private(path: Path) -> BinaryIO:
    """A new file with mode 600, open for writing; refuses one that exists, or a link."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return open(fd, "wb")


def write_private(path: Path, content: bytes) -> None:
    """Writes a new file with mode 600 durably to disk."""
    with create_private(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Makes the names in the folder durable; without it a power cut may undo a rename."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_room_to_open(path: Path) -> None:
    """Deletes the ballast on a full disk, so that a folder can be opened again after a crash."""
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < OPEN_FREE_BYTES_MIN:
        (path / BALLAST_FILE).unlink(missing_ok=True)


class FolderLock:
    """Held from open to close; the kernel releases it when the process dies, however it dies."""

    def __init__(self, path: Path):
        """Raises `FolderInUse`, naming the process that holds the folder."""
        self._fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            who = "this process" if owner == str(os.getpid()) else "process"
            raise FolderInUse(f'folder "{path}" is in use by {who} {owner}') from None
        self.was_left = os.fstat(self._fd).st_size > 0
        """The last owner did not close cleanly. May be true after a clean close, too: older programs left their
        number."""
        os.ftruncate(self._fd, 0)
        try:
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except OSError:
            pass  # a full disk: the lock is held all the same, only its owner's number is missing

    def say_goodbye(self) -> None:
        """Marks a clean close."""
        os.ftruncate(self._fd, 0)

    def release(self) -> None:
        """Closing the last descriptor releases the lock. A forked child calls this too, and its parent keeps the
        lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
