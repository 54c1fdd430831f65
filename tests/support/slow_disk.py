"""A disk on which each commit of a running server takes seconds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.prerequisites import require
from tests.support.server import PushqServer

STALL_SECONDS = 3
ATTACH_SECONDS_MAX = 10.0


@contextmanager
def slow_disk(server: PushqServer) -> Iterator[None]:
    delay = f"inject=fdatasync,msync:delay_enter={STALL_SECONDS * 1_000_000}"
    tracer = subprocess.Popen(
        [require("strace"), "-f", "-qq", "-p", str(server.pid), "-e", "trace=fdatasync,msync", "-e", delay],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + ATTACH_SECONDS_MAX
        while not _is_traced(server.pid):
            assert tracer.poll() is None and time.monotonic() < deadline, "strace does not attach"
            time.sleep(0.01)
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)


def _is_traced(pid: int) -> bool:
    """Whether each of a process's threads is traced."""
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return not any("TracerPid:\t0\n" in status.read_text() for status in threads)
