"""Runs one test again and again on a busy machine: `make deflake TEST=… N=20`. Says how often it failed, and how."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.tools.hog import hogs
from tests.tools.run import ran, told


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.deflake", description=__doc__)
    parser.add_argument("test", help="the id of a test, or a file or folder of tests")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--quiet-machine", action="store_true", help="without anything beside it")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.quiet_machine:
            failed = failures(chosen.test, chosen.times)
        else:
            with hogs(Path(folder)):
                failed = failures(chosen.test, chosen.times)
    print(f"{chosen.test}: {failed} of {chosen.times} runs failed")
    return 1 if failed else 0


def failures(test: str, times: int) -> int:
    failed = 0
    for number in range(1, times + 1):
        code, reports = ran([test, "--no-header", "--no-summary"], stdout=subprocess.DEVNULL)
        failed += code != 0
        print(f"run {number}: {'failed' if code else 'passed'}", flush=True)
        told("FAILED", [one for one in reports if one.outcome == "failed"])
        if code and not reports:
            print(f"    pytest ended with exit code {code} and ran nothing")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
