"""Runs the whole suite as the gate does: the pure tier strictly, then the real one, then what failed there alone again.

    python -m tests.tools.run [--processes N] [--long] [arguments of pytest …]

With `--long` it is what the gate leaves out: `tests/long.toml`. With paths among the arguments just these are run, or
what is long of them, by pytest as it is. Exit code 0 is green; the last lines say why not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tests.support.seeds import HASH_VARIABLE, SEED
from tests.tools import recording
from tests.tools.long import is_long as is_long_test
from tests.tools.long import read_long
from tests.tools.tiers import (
    TRIES_MAX,
    BadQuarantine,
    Quarantined,
    Report,
    Tier,
    Verdict,
    judge,
    read_quarantine,
    tier_of,
    to_run_again,
)

TESTS = Path(__file__).parent.parent
QUARANTINE = TESTS / "quarantine.toml"
SLOWEST_SHOWN = 25
FAILURES_MAX = 30
"""A tier ends after so many: a server that does not start would otherwise keep each test waiting for it."""
LINE_CHARS_MAX = 200
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "tests.tools.recording")
# A file of real tests stays in one process, as its servers do; pure ones go wherever there is room.
HOW: dict[Tier, tuple[str, ...]] = {"pure": ("--dist", "worksteal"), "real": ("--dist", "loadscope")}
MORE: dict[Tier, int] = {"pure": 0, "real": 2}
"""Processes beyond `--processes`: real tests wait for others' processes most of their time."""
NO_TESTS = 5
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Not passed on: with it each process of tests compiles every test file again, and each that it starts all of Pushq."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.run", description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--long", action="store_true", help="the tests of tests/long.toml, and no others")
    parser.add_argument("--reports", type=Path, help="a file that gets what became of each test, a line of JSON each")
    chosen, extra = parser.parse_known_args(arguments)
    if any(word.startswith("tests") for word in extra):
        choice = ("--tier", "real", "--long") if chosen.long else ()
        return subprocess.run([sys.executable, "-m", "pytest", *choice, *extra], check=False).returncode
    try:
        quarantine = read_quarantine(QUARANTINE)
    except BadQuarantine as bad:
        print(f"{QUARANTINE.name}: {bad}", file=sys.stderr)
        return 2
    gate = Gate(chosen.processes, extra, quarantine, is_long=chosen.long)
    verdict = gate.run()
    if chosen.reports is not None:
        recording.write(chosen.reports, gate.reports)
    return 0 if verdict.is_green else 1


class Gate:
    """One run of everything."""

    def __init__(
        self, processes: int, extra: Sequence[str], quarantine: Sequence[Quarantined], *, is_long: bool = False
    ) -> None:
        self.processes = processes
        self.extra = extra
        named = {one.test for one in read_long()}
        self.quarantine = {one.test: one for one in quarantine if is_long_test(one.test, named) is is_long}
        self.tiers: tuple[Tier, ...] = ("real",) if is_long else get_args(Tier)
        self.choice = ("--long",) if is_long else ()
        self.reports: list[Report] = []
        self.minutes: dict[str, float] = {}
        self.broken: list[str] = []
        """What kept pytest from running tests at all."""

    def run(self) -> Verdict:
        for tier in self.tiers:
            self.reports += self.run_tier(tier)
        again = self.run_again(to_run_again(self.reports, self.quarantine))
        verdict = judge(self.reports, again, self.quarantine)
        verdict.complaints.extend(self.broken)
        self.say(verdict)
        return verdict

    def run_tier(self, tier: Tier) -> list[Report]:
        print(f"\n{tier} tier", flush=True)
        started = time.monotonic()
        how = [
            "--tier",
            tier,
            *self.choice,
            "--numprocesses",
            str(self.processes + MORE[tier]),
            "--maxfail",
            str(FAILURES_MAX),
            *HOW[tier],
        ]
        code, reports = ran([*how, *self.extra, str(TESTS)])
        self.minutes[tier] = (time.monotonic() - started) / 60
        if code not in (0, 1, NO_TESTS) or (code == 1 and not any(one.outcome != "passed" for one in reports)):
            self.broken.append(f"pytest ended with exit code {code} in the {tier} tier")
        return reports

    def run_again(self, failed: Sequence[Report]) -> dict[str, bool]:
        """Each alone in a fresh process: whether it passed then."""
        started = time.monotonic()
        passed: dict[str, bool] = {}
        for one in failed:
            for number in range(1, TRIES_MAX + 1):
                print(f"\nagain ({number} of at most {TRIES_MAX}): {one.test}", flush=True)
                code, _ = ran([*self.extra, one.test])
                passed[one.test] = code == 0
                if code == 0:
                    break
        self.minutes["again"] = (time.monotonic() - started) / 60
        return passed

    def say(self, verdict: Verdict) -> None:
        reports = self.reports
        slowest = sorted(reports, key=lambda one: -one.seconds)[:SLOWEST_SHOWN]
        print(f"\nslowest {len(slowest)}")
        for one in slowest:
            print(f"{one.seconds:8.1f} s  {one.test}")
        counts = Counter(tier_of(one.test) for one in reports)
        tiers = [f"{tier}: {counts[tier]} tests in {self.minutes[tier]:.1f} min" for tier in self.tiers]
        print(f"\n{', '.join(tiers)}, run again: {self.minutes['again']:.1f} min")
        told("passed when run again, alone", verdict.reran)
        told("quarantined, and failed", verdict.excused)
        for entry in self.quarantine.values():
            print(f"quarantined since {entry.since}: {entry.test}: {entry.reason}")
        told("FAILED", verdict.failed)
        for complaint in verdict.complaints:
            print(f"NOT GREEN: {complaint}")
        failed = len(verdict.failed) + len(verdict.complaints)
        print(
            f"{sum(one.outcome == 'passed' for one in reports) + len(verdict.reran)} passed, {failed} failed",
            flush=True,
        )


def ran(arguments: Sequence[str], *, stdout: int | None = None) -> tuple[int, list[Report]]:
    """Runs pytest in a process of its own: its exit code, and what it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reports"
        given = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
        env = given | {recording.VARIABLE: str(file), HASH_VARIABLE: str(SEED)}
        code = subprocess.run([*PYTEST, *arguments], env=env, stdout=stdout, check=False).returncode
        return code, recording.read(file)


def told(what: str, reports: Sequence[Report]) -> None:
    for one in reports:
        first, *rest = one.text.strip().splitlines() or [""]
        print(f"{what}: {one.test}\n    {first[:LINE_CHARS_MAX]}")
        for line in rest[:2]:
            print(f"    {line[:LINE_CHARS_MAX]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
