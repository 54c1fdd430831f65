"""Checks whether a data file is as long as it should be, from its first two pages alone, before it is mapped.

LMDB maps the file: a read behind the end of a truncated one kills the process by SIGBUS, without a message. So the
length is checked before the file is opened, and again each second while it is used.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from backend_store.storage.folder import DATA_FILE

_HEADER_BYTES: Final = 16
"""Header of a page: its number, padding, flags, and two bounds."""
_MAGIC: Final = 0xBEEFC0DE
_PAGE_BYTES_MAX: Final = 0x8000
_META_HEAD: Final = struct.Struct("=I20xI")
"""Magic; version, address and size of the map; page size, which is in the record of the free pages."""
_META_TAIL: Final = struct.Struct("=QQ")
"""Number of the last page in use, and of the commit."""
_TAIL_AT: Final = 24 + 2 * 48
_META_BYTES: Final = _TAIL_AT + _META_TAIL.size


STRUCTURE_CHECKED_BYTES_MAX: Final = 1 << 30
"""The pages of a bigger file are not all checked after an unclean shutdown: a gigabyte takes 5 s."""
KEYS_COUNTED_BYTES_MAX: Final = 1 << 30
"""The rows of a bigger file are not counted at a clean start."""


class Head(NamedTuple):
    """The facts in a file's first two pages. `problem`: why it is not what was written, where that is certain."""

    sizes: str
    problem: str | None = None
    is_short: bool = False
    is_long: bool = False
    """Something was written behind the last page in use, perhaps by a commit that a crash ended."""


def look_at(path: Path) -> Head:
    """The head of the folder's file. For an unknown kind of file it is empty: opening the file decides."""
    data = path / DATA_FILE
    with data.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return Head("", f'"{data}" is empty (if nothing was ever stored here, remove it)')
        first = _meta(file.read(_HEADER_BYTES + _META_BYTES))
        if first is None:
            return Head("")
        file.seek(first.page_bytes)
        second = _meta(file.read(_HEADER_BYTES + _META_BYTES))
    if second is None or second.page_bytes != first.page_bytes:
        return Head("", f'the second page of "{data}" does not belong to a store')
    if (first.commit or second.commit) and not _follow(first.commit, second.commit):
        return Head("", f'the heads of "{data}" are of commits {first.commit} and {second.commit}, and one is wrong')
    whole = (max(first, second, key=_Meta.age).last + 1) * first.page_bytes
    return Head(
        f'"{data}" has {size} bytes but should have {whole}: it was truncated',
        None,
        is_short=size < whole,
        is_long=size > whole,
    )


def _follow(even: int, odd: int) -> bool:
    """Commits write the two pages in turn, those with an even number the first."""
    return not even % 2 and odd % 2 == 1 and abs(even - odd) == 1


class _Meta(NamedTuple):
    page_bytes: int
    last: int
    commit: int

    def age(self) -> int:
        return self.commit


def _meta(page: bytes) -> _Meta | None:
    if len(page) < _HEADER_BYTES + _META_BYTES:
        return None
    magic, page_bytes = _META_HEAD.unpack_from(page, _HEADER_BYTES)
    if magic != _MAGIC or not 256 <= page_bytes <= _PAGE_BYTES_MAX or page_bytes & (page_bytes - 1):
        return None
    return _Meta(page_bytes, *_META_TAIL.unpack_from(page, _HEADER_BYTES + _TAIL_AT))


class Length:
    """The length of a file in use, which only grows."""

    def __init__(self, path: Path):
        self._file = path / DATA_FILE
        self._seen = self._file.stat().st_size

    def cut(self, size: int) -> str | None:
        """`size`: its present size. Returns the problem, when that is less than before."""
        if size >= self._seen:
            self._seen = size
            return None
        return (
            f'"{self._file}" was truncated while in use: it had {self._seen} bytes and now has {size}; find what '
            "writes to it, and restore the folder from a backup"
        )
