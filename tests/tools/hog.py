"""A machine that is busy with something else: a loop on each core, and one that syncs a file all the time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CYCLES = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"
_SYNCS = """
import os, sys
parent, block = os.getppid(), bytes(1 << 20)
with open(sys.argv[1], "wb") as file:
    while os.getppid() == parent:
        file.seek(0)
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
"""


@contextmanager
def hogs(folder: Path) -> Iterator[None]:
    """They run inside, and end with this process in any case; the file that is synced lies in `folder`."""
    programs = [[_CYCLES]] * (os.cpu_count() or 1) + [[_SYNCS, str(folder / "hog")]]
    running = [subprocess.Popen([sys.executable, "-c", *words]) for words in programs]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
