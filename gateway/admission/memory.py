"""Reads how much memory this process uses, and its limit: the control group's, or the machine's memory.

Mapped pages of the database are not counted. They are a cache that the system reclaims by itself, and a big database
would make any process look full.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.limits import GARBAGE_OBJECTS_MIN

ROOT: Final = Path("/")
_UNLIMITED: Final = 1 << 60
"""Version 1 of control groups writes "no limit" as a number above this."""


def limit_bytes(root: Path = ROOT) -> int:
    """Memory limit in bytes: the minimum of the process's control groups and the machine."""
    limits = [_machine_bytes(root), *_group_limits(root)]
    return min(limit for limit in limits if limit > 0)


def used_bytes(root: Path = ROOT) -> int:
    """Memory of this process in bytes, without mapped files."""
    return _kilobytes(root / "proc/self/status", "RssAnon:") + _kilobytes(root / "proc/self/status", "RssShmem:")


def keep_what_is_imported() -> None:
    """Exempts imported modules from garbage collection, and makes collections rarer. Call it once in a serving process,
    before the store is opened. Modules are permanent, and scanning them would stop the process for 20 to 80 ms now and
    then. Later objects are still collected, because a deleted queue is a cycle of references; but rarely, because
    objects that live for one request would be scanned again and again while many requests are in progress."""
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS_MIN)


def _machine_bytes(root: Path) -> int:
    return _kilobytes(root / "proc/meminfo", "MemTotal:")


def _kilobytes(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _group_limits(root: Path) -> list[int]:
    """Limits of the process's control group and of all its parents, in both versions of control groups."""
    found = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            group = base / path.lstrip("/")
            while True:
                found.append(_limit_in(group / name))
                if group == base or base not in group.parents:
                    break
                group = group.parent
    return found


def _limit_in(path: Path) -> int:
    """The limit in a file; 0 without a limit or without the file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else 0
