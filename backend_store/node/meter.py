"""How full this process is: its CPU, and how long commits let others wait, over the last seconds.

One thread of an interpreter runs at a time, so however many cores a machine has, a process is full when it keeps one
busy; on less than one, by its control group, when it keeps that. Commits come one after the other, and each takes all
that waits: that one is always under way says little, and how long publishes wait for the next one says how full it is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from backend_store.node.node import Node

METER_SECONDS: Final = 10.0
"""The figures are of so long a time."""
METER_LOOK_SECONDS: Final = 0.5
WAITED_MS_FULL: Final = 50.0
"""Publishes that wait so long for a commit wait behind a disk that is full: gateways refuse new ones then."""
COMMITS_MAX: Final = 1.5
"""More counts as so much, at each look: publishes that wait for a replica may wait for hours, and one stall of the disk
says little of ten seconds."""
INTERPRETER_CORES: Final = 1.0


class Load(msgspec.Struct, frozen=True):
    """What a process says of itself."""

    node: str = ""
    """Its name in the cluster; "" of one that is in none, or too old to say."""
    cores: float = 0.0
    """How many cores its control group and its affinity let it use; 0: it has not said."""
    cpu: float = 0.0
    """The busy part of what it can use of them."""
    commits_busy: float = 0.0
    """The part of the time in which a commit was under way, of the shard with most of it."""
    commits_waited: float = 0.0
    """How long publishes waited for a commit, as a part of `WAITED_MS_FULL`."""
    others: dict[str, float | None] = {}
    """How full the other backends that live are, as they wrote down last; None: they have not."""
    nodes_needed: int = 0
    """With fewer backends the cluster cannot have as many copies of each shard, or lanes, as it is told."""
    copies_missing: int = 0
    """Of all its shards: copies that shall be there, and are not or are behind."""

    def fullest(self, disk: float) -> float:
        return max(self.cpu, self.commits_waited, disk)


class _Look(NamedTuple):
    at: float
    cpu_seconds: float
    commit_seconds: float
    """Added up over all looks, of the busiest shard of each."""
    waited_ms: float


class Meter:
    """Run `run` in a task of yours."""

    def __init__(self, nodes: Callable[[], Iterable[Node]], *, cores: float | None = None) -> None:
        """`nodes`: the stores that are served here now."""
        self.cores = cores_allowed() if cores is None else cores
        self._nodes = nodes
        self._commits: dict[Node, float] = {}
        self._looks: deque[_Look] = deque()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self.look(time.monotonic(), time.process_time())
            await asyncio.sleep(METER_LOOK_SECONDS)

    def look(self, now: float, cpu_seconds: float) -> None:
        nodes = list(self._nodes())
        commits = {node: node.writer.commit_seconds.sum for node in nodes}
        busiest = max((total - self._commits.get(node, total) for node, total in commits.items()), default=0.0)
        self._commits = commits
        waited_ms = max((float(node.committer.waited_ms) for node in nodes), default=0.0)
        before = self._looks[-1].commit_seconds if self._looks else 0.0
        self._looks.append(_Look(now, cpu_seconds, before + busiest, waited_ms))
        while len(self._looks) > 2 and now - self._looks[1].at >= METER_SECONDS:
            self._looks.popleft()

    def load(self, node: str = "", others: Mapping[str, float | None] | None = None) -> Load:
        cpu = busy = waited = 0.0
        if len(self._looks) > 1:
            first, last = self._looks[0], self._looks[-1]
            seconds = max(last.at - first.at, 1e-9)
            cpu = min(1.0, (last.cpu_seconds - first.cpu_seconds) / seconds / min(self.cores, INTERPRETER_CORES))
            busy = min(1.0, (last.commit_seconds - first.commit_seconds) / seconds)
            waited = sum(min(COMMITS_MAX, look.waited_ms / WAITED_MS_FULL) for look in self._looks) / len(self._looks)
        return Load(node, self.cores, cpu, busy, waited, dict(others or {}))


def cores_allowed(root: Path = Path("/")) -> float:
    """How many cores this process may keep busy: its affinity, and the quota of its control groups."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(root)])


def _quotas(root: Path) -> Iterable[float]:
    """Of the group the process is in and of all groups around it, in both versions of control groups."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            base = root / ("sys/fs/cgroup/cpu" if controllers else "sys/fs/cgroup")
            group = base / path.lstrip("/")
            while True:
                if (quota := _quota(group, is_first=bool(controllers))) is not None:
                    yield quota
                if group == base or base not in group.parents:
                    break
                group = group.parent


def _quota(group: Path, *, is_first: bool) -> float | None:
    """None where there is none. `is_first`: of version 1."""
    try:
        if is_first:
            parts = [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        else:
            parts = (group / "cpu.max").read_text().split()
        quota, period = (float(part) for part in parts)
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
