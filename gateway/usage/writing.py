"""Writes usage rows to the files of one folder, within a size limit, and counts them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from gateway.limits import USAGE_ROOM_SECONDS_MAX
from gateway.usage.files import UsageFolder
from gateway.usage.schema import FileKind

log = structlog.get_logger("pushq.usage")


class Written:
    """Counters since the process began, shared by the writers of a folder."""

    def __init__(self) -> None:
        self.files: Counter[FileKind] = Counter()
        self.rows: Counter[FileKind] = Counter()
        self.failures = 0
        self.unreadable = 0
        """Rows that cannot be decoded and are in no file."""
        self.is_full = False
        """The folder is full of rows of the ledger and the audit: further rows wait in the store."""
        self.look: asyncio.Task[bool] | None = None
        """The check for room, while it runs."""


class UsageWriter:
    """One writer's files. `open` before use."""

    def __init__(self, folder: UsageFolder, *, bytes_max: int, written: Written):
        self._folder = folder
        self._bytes_max = bytes_max
        self._written = written
        self._is_open = False

    @property
    def path(self) -> Path:
        return self._folder.path

    async def open(self) -> bool:
        """Opens the folder. Returns False if it was open already. Raises `OSError`."""
        if self._is_open:
            return False
        await asyncio.to_thread(self._folder.open)
        self._is_open = True
        return True

    async def write(
        self, kind: FileKind, rows: Sequence[msgspec.Struct], first_ms: int, number: int | None = None
    ) -> None:
        """Writes one file; returns when it is durable. Raises `OSError`."""
        await asyncio.to_thread(self._folder.write, kind, rows, first_ms, number)
        self._written.files[kind] += 1
        self._written.rows[kind] += len(rows)

    async def has_room(self) -> bool:
        """Whether the folder has room for another file, after removing the oldest minutes. Concurrent callers, as
        leaders of many shards are, share one answer: checking a folder with many files takes long.

        Raises `OSError`, also if the disk does not answer in time. The check then goes on, and the next caller waits
        for it: a disk that hangs occupies one thread.
        """
        if self._written.look is None:
            self._written.look = asyncio.get_running_loop().create_task(self._look(), name="usage room")
            self._written.look.add_done_callback(_seen)
        try:
            async with asyncio.timeout(USAGE_ROOM_SECONDS_MAX):
                return await asyncio.shield(self._written.look)
        except TimeoutError:
            raise TimeoutError(f"the disk did not report its free space within {USAGE_ROOM_SECONDS_MAX:g} s") from None

    async def _look(self) -> bool:
        try:
            return await self._is_room_made()
        finally:
            self._written.look = None

    async def _is_room_made(self) -> bool:
        over = await asyncio.to_thread(partial(self._folder.make_room, self._bytes_max))
        if over and not self._written.is_full:
            log.error("the usage folder is full of rows that are never deleted: collect them and move them away")
        self._written.is_full = over > 0
        return not over

    def unreadable(self, rows: int) -> None:
        """Adds to the count of rows that cannot be decoded."""
        self._written.unreadable += rows

    def failed(self, error: Exception) -> None:
        self._written.failures += 1
        log.error("usage rows cannot be written and are waiting", folder=str(self.path), error=str(error))


def _seen(look: asyncio.Task[bool]) -> None:
    """Retrieves the exception: the callers that still wait get it."""
    if not look.cancelled():
        look.exception()


class Turn(Protocol):
    async def __call__(self) -> object: ...


async def each_period(turn: Turn, stopping: asyncio.Event, *, period_ms: int, clock_ms: Callable[[], int]) -> None:
    """Calls `turn` at once and then at whole periods of the clock, until `stopping` is set."""
    while not stopping.is_set():
        await turn()
        with suppress(TimeoutError):
            async with asyncio.timeout((period_ms - clock_ms() % period_ms) / 1000):
                await stopping.wait()
