"""Reads the live usage of a tenant's last hour, as written by the job `live_usage`, while the job replaces it.

The folder may be on a network file system. One thread reads, and callers wait within a bound: a disk that hangs delays
no message.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from gateway.api.validate import wrong_name
from gateway.limits import (
    USAGE_LIVE_BYTES_MAX,
    USAGE_LIVE_FILES_MAX,
    USAGE_LIVE_POINTER_BYTES_MAX,
    USAGE_LIVE_READ_SECONDS_MAX,
    USAGE_LIVE_STALE_MS,
    USAGE_LIVE_TENANTS_KEPT,
)

log = structlog.get_logger("pushq.usage")

PLACE: Final = "console"
"""The subfolder of the job's folder."""
VERSION: Final = 1
_NOW: Final = "now.json"
_FOLDER: Final = re.compile(r"page-[0-9a-f]{32}")
_LOOKS_MAX: Final = 3
"""The current folder may be replaced while it is read."""


class LiveMinute(msgspec.Struct, tag_field="row", tag="minute"):
    """What a tenant used in a minute."""

    minute: str
    requests: int
    messages: int
    bytes_in: int
    bytes_out: int
    seconds: float


class LiveQueue(msgspec.Struct, tag_field="row", tag="queue"):
    """What a tenant used of a queue in the last hour, with one operation and outcome."""

    queue: str
    operation: str
    outcome: str
    requests: int
    messages: int
    bytes_in: int
    bytes_out: int
    seconds: float
    rows: int
    """How many rows of this kind there are; the file has those with the most requests."""


State = Literal["live", "stale", "absent", "unreadable"]
"""`stale`: the job has written nothing for too long. `absent`: it never wrote to the folder."""


@dataclass(frozen=True, slots=True)
class Live:
    state: State
    looked_at_ms: int | None = None
    """When the job last wrote that it is at work."""
    last_minute: str | None = None
    """The latest minute for which the job counted anything, of any tenant."""
    minutes: list[LiveMinute] = field(default_factory=list)
    queues: list[LiveQueue] = field(default_factory=list)


class _Now(msgspec.Struct):
    version: int
    folder: str | None
    last_minute: str | None


class _Unreadable(Exception):
    """The folder's content is not what it should be; the text is the reason."""


_now: Final = msgspec.json.Decoder(_Now)
_row: Final = msgspec.json.Decoder(LiveMinute | LiveQueue)


class LiveUsage:
    """Reads the output of one job; owned by the API."""

    def __init__(self, folder: Path):
        self._folder = folder / PLACE
        self._kept: OrderedDict[str, tuple[str, list[LiveMinute], list[LiveQueue]]] = OrderedDict()
        """Tenant → the folder that was read, and its rows."""
        self._reader = ThreadPoolExecutor(1, "live-usage")
        self._told = ""

    async def of(self, tenant: str, now_ms: int) -> Live:
        """A tenant's last hour. Problems with the folder are returned as a state, not raised."""
        try:
            async with asyncio.timeout(USAGE_LIVE_READ_SECONDS_MAX):
                found = await asyncio.get_running_loop().run_in_executor(self._reader, self._look, tenant, now_ms)
        except FileNotFoundError:
            return Live("absent")
        except TimeoutError:
            return self._unreadable(f"no response within {USAGE_LIVE_READ_SECONDS_MAX:g} s")
        except (OSError, msgspec.MsgspecError, _Unreadable) as error:
            return self._unreadable(str(error))
        self._told = ""
        return found

    def _unreadable(self, why: str) -> Live:
        if why != self._told:
            log.warning("live usage cannot be read", folder=str(self._folder), error=why)
        self._told = why
        return Live("unreadable")

    def _look(self, tenant: str, now_ms: int) -> Live:
        now, at_ms = self._pointer()
        for _ in range(_LOOKS_MAX):
            minutes, queues = self._rows(now, tenant)
            again, at_ms = self._pointer()
            if again.folder == now.folder:
                state: State = "live" if now_ms - at_ms <= USAGE_LIVE_STALE_MS else "stale"
                return Live(state, at_ms, now.last_minute, minutes, queues)
            now = again
        raise _Unreadable("it changes faster than it can be read")

    def _pointer(self) -> tuple[_Now, int]:
        with (self._folder / _NOW).open("rb") as file:
            now = _now.decode(_bounded(file.read(USAGE_LIVE_POINTER_BYTES_MAX + 1), USAGE_LIVE_POINTER_BYTES_MAX))
            at_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        if now.version != VERSION:
            raise _Unreadable(f"{_NOW} has version {now.version}, but this server reads version {VERSION}")
        if now.folder is not None and not _FOLDER.fullmatch(now.folder):
            raise _Unreadable(f"{_NOW} names a folder that the job did not create")
        return now, at_ms

    def _rows(self, now: _Now, tenant: str) -> tuple[list[LiveMinute], list[LiveQueue]]:
        if now.folder is None or wrong_name(tenant) is not None:
            return [], []
        kept = self._kept.get(tenant)
        if kept is None or kept[0] != now.folder:
            kept = (now.folder, *_read(self._folder / now.folder / "tenants", tenant))
            self._kept[tenant] = kept
            while len(self._kept) > USAGE_LIVE_TENANTS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(tenant)
        return kept[1], kept[2]


def _read(folder: Path, tenant: str) -> tuple[list[LiveMinute], list[LiveQueue]]:
    """The rows of a tenant's files; none where nothing was counted for the tenant, or the folder has been replaced."""
    minutes: list[LiveMinute] = []
    queues: list[LiveQueue] = []
    room = USAGE_LIVE_BYTES_MAX
    try:
        paths = list(islice((folder / f"tenant={tenant}").glob("part-*.json"), USAGE_LIVE_FILES_MAX + 1))
        if len(paths) > USAGE_LIVE_FILES_MAX:
            raise _Unreadable(f"a tenant has more than {USAGE_LIVE_FILES_MAX} files")
        for path in paths:
            with path.open("rb") as file:
                data = _bounded(file.read(room + 1), room)
            room -= len(data)
            for line in data.splitlines():
                row = _row.decode(line)
                if isinstance(row, LiveMinute):
                    minutes.append(row)
                else:
                    queues.append(row)
    except FileNotFoundError:
        return [], []
    minutes.sort(key=lambda row: row.minute)
    queues.sort(key=lambda row: (-row.requests, row.queue, row.operation, row.outcome))
    return minutes, queues


def _bounded(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise _Unreadable(f"a file is larger than {bytes_max} bytes")
    return data
