"""Runs the tests that draw from a seed with new seeds, for as long as told: `make explore`, in idle minutes.

    python -m tests.tools.explore [SUITE …] [--minutes 10] [--seed N]

Each round takes the next seed and runs each suite once. A suite that found something rests for the remaining rounds, so
that one finding does not hide the others. The closing lines name what was found and how to run exactly that again; it
becomes a named scenario or an `@example` of the gate, and is mended. Exit code 1 says that something was found.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

from tests.support.seeds import GATE_SEED, HASH_VARIABLE, VARIABLE
from tests.tools import recording

SEED_MAX = 1_000_000
FOLDERS = ("tests/unit", "tests/contracts")
SUITES: dict[str, tuple[str, ...]] = {
    "model": ("tests/model",),
    "requests": ("tests/integration/test_schemathesis.py",),
    "simulation": ("tests/simulation", "-k", "world or weather or leaders_own_clock or bad_producer"),
    "crash": ("tests/crash/test_killed.py", "tests/crash/test_partitions.py", "tests/crash/test_usage.py"),
    "moves": ("tests/integration/test_moves_under_faults.py",),
    "spark": ("tests/spark/test_parts.py",),
    "faults": ("tests/cluster/test_faults.py",),
    "properties": (),
    "bench": ("tests/integration/test_bench.py", "-k", "scenario"),
}
"""What draws from the seed, or has more to try than the gate has time for. `properties` are all tests of `FOLDERS` that
Hypothesis drives."""


class Finding(NamedTuple):
    suite: str
    seed: int
    test: str
    text: str

    @property
    def again(self) -> str:
        variables = f"{VARIABLE}={self.seed} {HASH_VARIABLE}={self.seed}"
        return f"{variables} python -m pytest --hypothesis-seed={self.seed} '{self.test}'"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.explore", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all when none is named")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="the first seed; drawn when not given")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.suites) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    first = chosen.seed if chosen.seed is not None else SystemRandom().randrange(GATE_SEED + 1, SEED_MAX)
    return explore(chosen.suites or list(SUITES), first, time.monotonic() + chosen.minutes * 60)


def explore(suites: Sequence[str], first: int, until: float) -> int:
    findings: list[Finding] = []
    rounds, seed = 0, first
    while time.monotonic() < until:
        for suite in suites:
            left_s = until - time.monotonic()
            if left_s > 0 and all(one.suite != suite for one in findings):
                print(f"\n{suite}, {VARIABLE}={seed}", flush=True)
                findings += run_suite(suite, seed, left_s)
        if {one.suite for one in findings} == set(suites):
            break
        rounds, seed = rounds + 1, seed + 1
    for one in findings:
        print(f"\nfound in {one.suite}: {one.test}\n    {one.text.strip()}\n    again: {one.again}")
    print(f"\n{rounds} whole rounds from seed {first} of {', '.join(suites)}: {len(findings)} found")
    return 1 if findings else 0


def run_suite(suite: str, seed: int, left_s: float) -> list[Finding]:
    """What one run of a suite found; nothing where the time is over before it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reports"
        env = os.environ | {VARIABLE: str(seed), HASH_VARIABLE: str(seed), recording.VARIABLE: str(file)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.tools.recording", f"--hypothesis-seed={seed}"]
        try:
            subprocess.run([*command, *(SUITES[suite] or driven())], env=env, check=False, timeout=left_s)
        except subprocess.TimeoutExpired:
            print("(cut short: the time is over)")
        reports = recording.read(file)
    return [Finding(suite, seed, one.test, one.text) for one in reports if one.outcome == "failed"]


def driven() -> list[str]:
    """Files of tests that Hypothesis drives."""
    files = (file for folder in FOLDERS for file in Path(folder).rglob("test_*.py"))
    return sorted(str(file) for file in files if "from hypothesis import" in file.read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
