"""Writes what became of each test into a file, for whoever judges the run: a pytest plugin, loaded by `-p`.

A failure is named on the output at once. The file is named by the variable `TEST_REPORT`; each line is a `Report` as
JSON. Of several test processes only the one that hands out the tests writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tools.tiers import Outcome, Report

VARIABLE = "TEST_REPORT"
TEXT_CHARS_MAX = 2_000
_WEIGHT: dict[Outcome, int] = {"passed": 0, "skipped": 1, "failed": 2}

_reports: dict[str, Report] = {}
_file: Path | None = None
"""None in a process that is handed tests by another one, and where nobody judges."""


def pytest_configure(config: pytest.Config) -> None:
    global _file
    name = os.environ.get(VARIABLE)
    if name and not hasattr(config, "workerinput"):
        _file = Path(name)


def read(file: Path) -> list[Report]:
    """What a run wrote; nothing where it ended before it could."""
    return [Report(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def write(file: Path, reports: Iterable[Report]) -> None:
    file.write_text("".join(json.dumps(one) + "\n" for one in reports))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome: Outcome = "passed" if hasattr(report, "wasxfail") and report.outcome == "skipped" else report.outcome
    before = _reports.get(report.nodeid, Report(report.nodeid, "passed", 0.0))
    worse = _WEIGHT[outcome] > _WEIGHT[before.outcome]
    if outcome == "failed" and "PYTEST_XDIST_WORKER" not in os.environ:
        # At once: whoever waits for the end of a long run can look into it meanwhile.
        print(f"\nfailed: {report.nodeid} ({report.when})", flush=True)
    _reports[report.nodeid] = Report(
        report.nodeid,
        outcome if worse else before.outcome,
        round(before.seconds + report.duration, 3),
        first_lines(report) if worse and outcome == "failed" else before.text,
    )
    if outcome == "failed":
        _write_all()  # a run that is cut short keeps what it found


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _reports[report.nodeid] = Report(report.nodeid, "failed", 0.0, str(report.longrepr)[-TEXT_CHARS_MAX:])


def pytest_sessionfinish() -> None:
    _write_all()


def _write_all() -> None:
    if _file is not None:
        write(_file, _reports.values())


def first_lines(report: pytest.TestReport) -> str:
    """What a failure says of itself, without the source around it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash is not None else str(report.longrepr))[:TEXT_CHARS_MAX]
