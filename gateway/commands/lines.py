"""Reads lines of a file or pipe in batches, as they arrive: `publish --lines` sends each batch in one call."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO, NamedTuple

from gateway.commands.exits import Failure

LINES_PER_BATCH = 1_000
READ_BYTES_MAX = 256 * 1024
LINE_BYTES_MAX = 4 * 1024 * 1024
"""More than the server accepts as one message: a longer line cannot be one, and must not fill the memory."""


class Line(NamedTuple):
    """One line without its line ending, and its number in the file, from 1."""

    number: int
    text: bytes


class Lines:
    """`async for batch in Lines(source)`: whole lines, at most a thousand per batch; blank lines are skipped."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._fd = _descriptor(source)
        self._partial = b""
        self._number = 0
        self.bytes_read = 0
        self.bytes_total = None if self._fd is None else _regular_size(self._fd)

    async def __aiter__(self) -> AsyncIterator[list[Line]]:
        while chunk := await self._read():
            self.bytes_read += len(chunk)
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            if len(self._partial) > LINE_BYTES_MAX:
                raise Failure(f"line {self._number + len(whole) + 1} is longer than {LINE_BYTES_MAX} bytes")
            for start in range(0, len(whole), LINES_PER_BATCH):
                if batch := self._numbered(whole[start : start + LINES_PER_BATCH]):
                    yield batch
        if batch := self._numbered([self._partial]):
            yield batch

    def _numbered(self, texts: list[bytes]) -> list[Line]:
        first = self._number + 1
        self._number += len(texts)
        return [Line(number, text.removesuffix(b"\r")) for number, text in enumerate(texts, first) if text.strip()]

    async def _read(self) -> bytes:
        if self._fd is not None:
            await _until_readable(self._fd)
        if isinstance(self._source, io.BufferedReader | io.BytesIO):
            return self._source.read1(READ_BYTES_MAX)
        return self._source.read(READ_BYTES_MAX)


async def _until_readable(fd: int) -> None:
    """Waits on the event loop: a thread that blocks in `read` cannot be interrupted. A regular file is always ready."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(fd, _resolve, ready)
    except PermissionError:
        return
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _descriptor(source: BinaryIO) -> int | None:
    try:
        return source.fileno()
    except (OSError, ValueError):
        return None


def _regular_size(fd: int) -> int | None:
    """The size of a regular file, for the progress bar; None for a pipe."""
    found = os.fstat(fd)
    return found.st_size if stat.S_ISREG(found.st_mode) else None
