"""Measures this process's load over the last seconds: its CPU, and how long publishes wait for commits.

An interpreter runs one thread at a time, so a process is full when it keeps one core busy, or its control group's quota
if that is less. Commits follow one another, and each takes all that waits: a commit is nearly always in flight, so the
time that publishes wait for the next one is the better measure.
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
"""The period that the figures cover."""
METER_LOOK_SECONDS: Final = 0.5
WAITED_MS_FULL: Final = 50.0
"""Publishes that wait this long for a commit wait behind a full disk: gateways then refuse new ones."""
COMMITS_MAX: Final = 1.5
"""Cap of a single look's value: publishes that wait for a replica may wait for hours, and one stall of the disk says
little about ten seconds."""
INTERPRETER_CORES: Final = 1.0


class Load(msgspec.Struct, frozen=True):
    """What a process reports about itself."""

    node: str = ""
    """Its name in the cluster; "" if it is in none, or too old to say."""
    cores: float = 0.0
    """Cores that its control group and affinity let it use; 0: not reported."""
    cpu: float = 0.0
    """The busy part of the cores it can use."""
    commits_busy: float = 0.0
    """The part of the time with a commit in flight, of the busiest shard."""
    commits_waited: float = 0.0
    """How long publishes waited for a commit, as a part of `WAITED_MS_FULL`."""
    others: dict[str, float | None] = {}
    """Load of the other live backends, as last reported; None: not reported."""
    nodes_needed: int = 0
    """With fewer backends the cluster cannot have as many copies of each shard, or lanes, as configured."""
    copies_missing: int = 0
    """Of all its shards: configured copies that are missing or behind."""

    def fullest(self, disk: float) -> float:
        return max(self.cpu, self.commits_waited, disk)


class _Look(NamedTuple):
    at: float
    cpu_seconds: float
    commit_seconds: float
    """Summed over all looks, of the busiest shard in each."""
    waited_ms: float


class Meter:
    """Samples load; the caller runs `run` in a task of its own."""

    def __init__(self, nodes: Callable[[], Iterable[Node]], *, cores: float | None = None) -> None:
        """`nodes`: the stores served here now."""
        self.cores = cores_allowed() if cores is None else cores
        self._nodes = nodes
        self._commits: dict[Node, float] = {}
        self._looks: deque[_Look] = deque()

    async def run(self) -> None:
        """Runs until cancelled."""
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
    """How many cores this process may keep busy: the lower of its affinity and its control groups' quotas."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(root)])


def _quotas(root: Path) -> Iterable[float]:
    """Quotas of the process's group and of its ancestors, in both versions of control groups."""
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
    """None if there is no quota. `is_first`: version 1."""
    try:
        if is_first:
            parts = [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        else:
            parts = (group / "cpu.max").read_text().split()
        quota, period = (float(part) for part in parts)
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
