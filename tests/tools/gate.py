"""Runs `.ci/run` on what is committed, in a fresh clone: `make gate`.

    python -m tests.tools.gate [--hog] [--times N]

The log goes to a file, its end is shown, and the last line is the verdict with the time. `--hog` keeps every core and
the disk busy beside it. It stops at the first run that is not green.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.tools.hog import hogs

SHOWN_LINES = 60


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.gate", description=__doc__)
    parser.add_argument("--hog", action="store_true", help="beside a busy loop on each core and one that syncs a file")
    parser.add_argument("--times", type=int, default=1)
    chosen = parser.parse_args(arguments)
    top = git("rev-parse", "--show-toplevel")
    head = git("rev-parse", "HEAD")
    if changed := git("status", "--porcelain"):
        print(f"not part of this run: {len(changed.splitlines())} paths that are not committed", file=sys.stderr)
    for number in range(1, chosen.times + 1):
        if not is_green(Path(top), head, f"run {number} of {chosen.times}", hog=chosen.hog):
            return 1
    return 0


def is_green(top: Path, head: str, what: str, *, hog: bool) -> bool:
    """One run; its folder goes when it was green, and is named when it was not."""
    work = Path(tempfile.mkdtemp(prefix="gate-"))
    clone, log = work / "clone", work / "log"
    subprocess.run(["git", "clone", "--quiet", str(top), str(clone)], check=True)
    subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", head], check=True)
    started = time.monotonic()
    # Make tells its children what it was called with; the run is to be as if nobody had.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    with hogs(work) if hog else nullcontext(), log.open("wb") as out:
        command = ["bash", ".ci/run"]
        code = subprocess.run(
            command, cwd=clone, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        ).returncode
    seconds = time.monotonic() - started
    print("\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]))
    verdict = "GREEN" if code == 0 else f"RED, exit code {code}, whole log in {log}"
    print(f"gate: {head[:9]} {verdict}: {seconds / 60:.1f} min ({what}{', beside hogs' if hog else ''})", flush=True)
    subprocess.run(["rm", "-rf", str(clone if code else work)], check=True)
    return code == 0


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
