"""Files of usage rows: written whole under a name nobody reads, made durable, then given the name that says what they
are.

A name has the kind, the node, the time of the first row and a number: `ledger-<node>-20261122T080000000Z-00000001`. So
several processes can write to one folder, and a folder's files can be sorted without opening them. Where leaders of one
log follow each other, the node is the log with the epoch of the leader: `<log>-e00000012`.
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
"""A file system that has no locks says so."""


class UsageFile(NamedTuple):
    path: Path
    kind: FileKind
    node: str
    first: str
    """When its first row is from; as text the names sort by it."""
    number: int
    size: int


class Damaged(Exception):
    """A file is not what it should be: which, where, and what to do about it."""


class UsageFolder:
    """One folder of usage files, as one process writes to it. Every call blocks on the disk."""

    def __init__(self, path: Path, node: str, *, epoch: int | None = None):
        """`epoch`: of the leader who writes, where the node is a log that several lead one after the other."""
        self.path = path
        self._log = node
        self._node = node if epoch is None else f"{node}-e{epoch:08d}"
        self._numbers: dict[FileKind, int] = {}

    def open(self) -> None:
        """Makes the folder, and removes what an earlier life of this node, or an earlier leader, had not finished and
        is not at any more."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_unfinished(self.path, self._log)
        for file in self.files():
            if file.node == self._node:
                self._numbers[file.kind] = max(self._numbers.get(file.kind, 0), file.number)

    def write(self, kind: FileKind, rows: Sequence[msgspec.Struct], first_ms: int, number: int | None = None) -> Path:
        """Writes one file; when this returns it is there for good. Without a number it gets the next one of the folder.
        One of the same name, which an earlier life wrote, gives way. Raises `OSError`."""
        if number is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        path = self.path / f"{kind}-{self._node}-{stamp(first_ms)}-{number:08d}{SUFFIX}"
        write_durably(path, packed(rows))
        return path

    def files(self) -> list[UsageFile]:
        """The finished files, in the order of their kinds, nodes and times."""
        return sorted(found(self.path))

    def make_room(self, bytes_max: int, wanted: int = 0) -> int:
        """Removes the oldest minute rows until what is there, and `wanted` bytes more, fit. Returns by how many bytes
        they do not: rows of the ledger and the audit are never removed."""
        files = self.files()
        over = sum(file.size for file in files) + wanted - bytes_max
        for file in sorted((f for f in files if f.kind == "minutes"), key=lambda f: (f.first, f.number)):
            if over <= 0:
                break
            file.path.unlink(missing_ok=True)
            over -= file.size
        return max(0, over)


def stamp(time_ms: int) -> str:
    """A time as it stands in a name."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{time_ms % 1000:03d}Z"


def parse_name(name: str) -> tuple[FileKind, str, str, int] | None:
    """(kind, node, first, number); None for a name that is not ours."""
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
    """Rows as a file's bytes. The same rows are the same bytes."""
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0, filename="") as file:
        encode = msgspec.json.Encoder().encode
        file.write(b"".join(encode(row) + b"\n" for row in rows))
    return data.getvalue()


def write_durably(path: Path, data: bytes) -> None:
    """A crash leaves the whole file or none of that name. Raises `OSError`, also while another process writes it."""
    part = path.with_name(path.name + PART)
    with os.fdopen(_opened(part), "wb") as file:
        file.truncate()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        part.rename(path)  # while it is locked: whoever removes what nobody finishes must not meet it
    sync_folder(path.parent)


def _opened(part: Path) -> int:
    """Open and locked, and still there: whoever removed it meanwhile took it for one that nobody writes."""
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
    """Removes files that a node began and nobody writes any more."""
    for path in folder.glob(f"*-{node}-*{PART}"):
        unlink_if_left(path)


def unlink_if_left(path: Path) -> bool:
    """Removes a file unless a process has it locked, or nobody can say so, as of one that another user's process made:
    a lock ends with its process."""
    try:
        descriptor = os.open(path, os.O_RDWR)  # in a network only such a file can be locked
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
            raise EOFError("it is empty")  # to gzip that is a file of no lines
        with gzip.open(file.path, "rb") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007 - the error names it
                yield decode(line)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        detail = "remove it and collect it again from where it was written"
        raise Damaged(f"{file.path}: line {number}: {error}; {detail}") from None
