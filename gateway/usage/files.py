"""Files of usage rows: written under a temporary name, made durable, then renamed.

A name has the kind, the node, the time of the first row and a number: `ledger-<node>-20261122T080000000Z-00000001`. So
several processes can write to one folder, and its files can be sorted without opening them. For a log with successive
leaders the node is the log with the leader's epoch: `<log>-e00000012`.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.usage.schema import ROWS, FileKind

SUFFIX: Final = ".ndjson.gz"
PART: Final = ".part"
_NAME = re.compile(r"(ledger|minutes|audit)-([A-Za-z0-9-]{1,64})-(\d{8}T\d{9}Z)-(\d{8})(-[0-9a-f]{12})?\.ndjson\.gz")
_GZIP_LEVEL: Final = 5
_FIRST_FILE_MODE: Final = 0o600
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""The errors of a file system without locks."""


class UsageFile(NamedTuple):
    path: Path
    kind: FileKind
    node: str
    first: str
    """The time of the file's first row; its text sorts in time order."""
    number: int
    size: int


class Damaged(Exception):
    """A file is damaged: which, where, and what to do about it."""


class UsageFolder:
    """One folder of usage files that one process writes. Every call blocks on the disk."""

    def __init__(self, path: Path, node: str, *, epoch: int | None = None):
        """`epoch`: of the leader that writes, if the node is a log with successive leaders."""
        self.path = path
        self._log = node
        self._node = node if epoch is None else f"{node}-e{epoch:08d}"
        self._numbers: dict[FileKind, int] = {}

    def open(self) -> None:
        """Creates the folder, and removes unfinished files of this node's earlier processes or of earlier leaders,
        unless they are still being written."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(self.path, self._log)
        for file in self.files():
            if file.node == self._node:
                self._numbers[file.kind] = max(self._numbers.get(file.kind, 0), file.number)

    def write(self, kind: FileKind, rows: Sequence[msgspec.Struct], first_ms: int, number: int | None = None) -> Path:
        """Writes one file, durable on return. Without a number it gets the folder's next one. Replaces a file of the
        same name, which an earlier process wrote. Raises `OSError`."""
        if number is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        path = self.path / f"{kind}-{self._node}-{stamp(first_ms)}-{number:08d}{SUFFIX}"
        write_durably(path, packed(rows))
        return path

    def files(self) -> list[UsageFile]:
        """The finished files, sorted by kind, node and time."""
        return sorted(found(self.path))

    def make_room(self, bytes_max: int, wanted: int = 0) -> int:
        """Removes the oldest minute rows until the folder and `wanted` more bytes fit. Returns by how many bytes they
        do not: rows of the ledger and the audit are never removed."""
        files = self.files()
        over = sum(file.size for file in files) + wanted - bytes_max
        for file in sorted((f for f in files if f.kind == "minutes"), key=lambda f: (f.first, f.number)):
            if over <= 0:
                break
            file.path.unlink(missing_ok=True)
            over -= file.size
        return max(0, over)


def stamp(time_ms: int) -> str:
    """A time as it appears in a name."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{time_ms % 1000:03d}Z"


def parse_name(name: str) -> tuple[FileKind, str, str, int] | None:
    """(kind, node, first, number); None for a foreign name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind: FileKind = match[1]  # type: ignore[assignment]
    return kind, match[2], match[3], int(match[4])


def found(folder: Path) -> Iterator[UsageFile]:
    """The finished files of a folder, in no order."""
    with os.scandir(folder) as entries:
        for entry in entries:
            parsed = parse_name(entry.name)
            if parsed is not None:
                kind, node, first, number = parsed
                yield UsageFile(Path(entry.path), kind, node, first, number, entry.stat().st_size)


def packed(rows: Sequence[msgspec.Struct]) -> bytes:
    """The compressed bytes of a file. Equal rows give equal bytes."""
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0, filename="") as file:
        encode = msgspec.json.Encoder().encode
        file.write(b"".join(encode(row) + b"\n" for row in rows))
    return data.getvalue()


def write_durably(path: Path, data: bytes) -> None:
    """After a crash the file is whole or absent. Raises `OSError`, also while another process writes it."""
    part = path.with_name(path.name + PART)
    with os.fdopen(_opened(part), "wb") as file:
        file.truncate()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        part.rename(path)  # under the lock, so that `unlink_if_left` does not remove it
    sync_folder(path.parent)


def _opened(part: Path) -> int:
    """Opens and locks the file; repeats if another process removed it in between as unfinished."""
    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT, _FIRST_FILE_MODE)
        try:
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def remove_unfinished(folder: Path, node: str) -> None:
    """Removes files that a node began and no process writes any more."""
    for path in folder.glob(f"*-{node}-*{PART}"):
        unlink_if_left(path)


def unlink_if_left(path: Path) -> bool:
    """Removes a file unless a process holds its lock, which ends with the process, or the lock cannot be checked, as
    for a file of another user. Returns whether it was removed."""
    try:
        descriptor = os.open(path, os.O_RDWR)  # opened for writing: NFS locks only such files
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in (*_NO_LOCKS, errno.EWOULDBLOCK):
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(file: UsageFile) -> Iterator[Any]:
    """A file's rows, one after the other. Raises `Damaged`."""
    decode = msgspec.json.Decoder(ROWS[file.kind]).decode
    number = 0
    try:
        if not file.path.stat().st_size:
            raise EOFError("the file is empty")  # gzip would read it as a file without lines
        with gzip.open(file.path, "rb") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007 - the error names it
                yield decode(line)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        detail = "delete it and collect it again from its source"
        raise Damaged(f"{file.path}: line {number}: {error}; {detail}") from None
