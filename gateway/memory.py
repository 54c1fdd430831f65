"""How much memory this process uses, and how much it may: the control group's limit, or what the machine has.

Pages of the database that the system has mapped for us are not counted. They are a cache that gives way by itself, and
a big database would make any process look full.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.limits import GARBAGE_OBJECTS_MIN

ROOT: Final = Path("/")
_UNLIMITED: Final = 1 << 60
"""Version 1 of control groups writes no limit as a number above this."""


def limit_bytes(root: Path = ROOT) -> int:
    """The least of what the process's control groups and the machine allow."""
    limits = [_machine_bytes(root), *_group_limits(root)]
    return min(limit for limit in limits if limit > 0)


def used_bytes(root: Path = ROOT) -> int:
    """Memory that is this process's own."""
    return _kilobytes(root / "proc/self/status", "RssAnon:") + _kilobytes(root / "proc/self/status", "RssShmem:")


def keep_what_is_imported() -> None:
    """Once in a process that serves, before it opens its store: modules are there to stay. To look through them for
    garbage stops everything else for 20 to 80 ms, now and then. What is made later is not exempt, for a queue that is
    deleted is a ring of references; but it is looked at seldom: what lives for a request would be looked at again and
    again where many are under way."""
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
    """Limits of the group the process is in and of all groups around it, in both versions of control groups."""
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
    """0 where there is no limit, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else 0
