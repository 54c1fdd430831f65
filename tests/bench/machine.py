"""The machine under the benchmark: which process runs on which core, and how much CPU time each used."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Protocol

NICE = -10
QUIET_LOOK_S = 0.5
QUIET_SHARE = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")
_PACKAGES = ("uvicorn", "uvloop", "websockets", "lmdb", "msgspec")


class Cores(NamedTuple):
    """Two different cores, or none if nothing is pinned."""

    generator: set[int] | None
    server: set[int] | None


def choose_cores(*, pin: bool) -> Cores:
    cores = sorted(os.sched_getaffinity(0))
    if not pin or len(cores) < 2:
        return Cores(None, None)
    return Cores({cores[0]}, {cores[1]})


def settle_on(pid: int, cores: set[int] | None) -> None:
    """Pins a process (0: this one) and raises its priority, as far as the system permits."""
    if cores is None:
        return
    os.sched_setaffinity(pid, cores)
    try:
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
    except PermissionError:
        pass  # without permission other processes disturb more, which `other_cpu_pct` shows


def allow_many_sockets() -> None:
    """Raises the soft limit of open files to the hard limit; the server inherits it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def wait_for_quiet(patience_s: float) -> None:
    """Returns when the rest of the machine uses less than a tenth of a core, or when the patience is used up."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        began = busy_s()
        await asyncio.sleep(QUIET_LOOK_S)
        if busy_s() - began < QUIET_SHARE * QUIET_LOOK_S:
            return


class Process(Protocol):
    def cpu_s(self) -> float: ...


class Meter:
    """Wall time since `start`, and the CPU time of the server, of this generator and of everything else."""

    def __init__(self, server: Process) -> None:
        self._server = server
        self._began = self._read()

    def start(self) -> None:
        self._began = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        return time.monotonic(), self._server.cpu_s(), _own_cpu_s(), busy_s()

    def figures(self, messages: int | None = None) -> dict[str, float]:
        """Figures since `start`; with `messages`, including the server's seconds per 100,000 of them."""
        wall, server, own, busy = (now - then for now, then in zip(self._read(), self._began, strict=True))
        found = {
            "wall_s": round(wall, 3),
            "server_cpu_pct": round(100 * server / wall, 1),
            "generator_cpu_pct": round(100 * own / wall, 1),
            "other_cpu_pct": round(max(0.0, 100 * (busy - server - own) / wall), 1),
        }
        if messages:
            found["cpu_s_per_100k"] = round(server / messages * 1e5, 3)
        return found


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def busy_s() -> float:
    """CPU seconds of the whole machine: user, nice, system, irq and softirq."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / _TICKS


def describe(folder: Path, cores: Cores) -> dict[str, str | int | bool]:
    """What a reader needs to know about the machine that produced the figures."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if cores.generator is None else os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "filesystem": _filesystem(folder),
        "python": platform.python_version(),
        "packages": versions,
        "pinned": cores.generator is not None,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _filesystem(folder: Path) -> str:
    """The type of the file system that contains `folder`: on a tmpfs a sync is free, and proves nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, found, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) >= len(best):
            best, kind = place, found
    return kind
