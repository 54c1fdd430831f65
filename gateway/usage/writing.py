"""Writes usage rows to the files of one folder, as far as that may grow, and counts them."""

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
    """What was written by one or several, since the process began."""

    def __init__(self) -> None:
        self.files: Counter[FileKind] = Counter()
        self.rows: Counter[FileKind] = Counter()
        self.failures = 0
        self.unreadable = 0
        """Rows that do not read and are in no file."""
        self.is_full = False
        """The ledger and the audit fill what the folder may have: their rows wait in the store."""
        self.look: asyncio.Task[bool] | None = None
        """Whether there is room, while that is being found out."""


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
        """Whether it was closed. Raises `OSError`."""
        if self._is_open:
            return False
        await asyncio.to_thread(self._folder.open)
        self._is_open = True
        return True

    async def write(
        self, kind: FileKind, rows: Sequence[msgspec.Struct], first_ms: int, number: int | None = None
    ) -> None:
        """Returns when the file is there for good. Raises `OSError`."""
        await asyncio.to_thread(self._folder.write, kind, rows, first_ms, number)
        self._written.files[kind] += 1
        self._written.rows[kind] += len(rows)

    async def has_room(self) -> bool:
        """Whether the folder may have another file, after the oldest minutes have gone. Those who ask at the same time,
        as leaders of many shards do, have one answer: of a folder with many files each look takes long.

        Raises `OSError`, also where the disk does not say in time. The look goes on, and is the next one's, too: a disk
        that hangs holds one thread.
        """
        if self._written.look is None:
            self._written.look = asyncio.get_running_loop().create_task(self._look(), name="usage room")
            self._written.look.add_done_callback(_seen)
        try:
            async with asyncio.timeout(USAGE_ROOM_SECONDS_MAX):
                return await asyncio.shield(self._written.look)
        except TimeoutError:
            raise TimeoutError(
                f"the disk did not say within {USAGE_ROOM_SECONDS_MAX:g} s whether it has room"
            ) from None

    async def _look(self) -> bool:
        try:
            return await self._is_room_made()
        finally:
            self._written.look = None

    async def _is_room_made(self) -> bool:
        over = await asyncio.to_thread(partial(self._folder.make_room, self._bytes_max))
        if over and not self._written.is_full:
            log.error("the usage folder is full of rows that are never removed: collect them and move them away")
        self._written.is_full = over > 0
        return not over

    def unreadable(self, rows: int) -> None:
        """So many more rows were met that do not read."""
        self._written.unreadable += rows

    def failed(self, error: Exception) -> None:
        self._written.failures += 1
        log.error("usage rows cannot be written, and wait", folder=str(self.path), error=str(error))


def _seen(look: asyncio.Task[bool]) -> None:
    """What is wrong is for those who still wait."""
    if not look.cancelled():
        look.exception()


class Turn(Protocol):
    async def __call__(self) -> object: ...


async def each_period(turn: Turn, stopping: asyncio.Event, *, period_ms: int, clock_ms: Callable[[], int]) -> None:
    """Takes a turn at once, and then at whole periods of the clock, until it is to stop."""
    while not stopping.is_set():
        await turn()
        with suppress(TimeoutError):
            async with asyncio.timeout((period_ms - clock_ms() % period_ms) / 1000):
                await stopping.wait()
