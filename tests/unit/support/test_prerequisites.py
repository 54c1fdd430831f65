from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import prerequisites
from tests.support.prerequisites import GROUPS, MissingPrerequisite, Prerequisite

SCRIPT = Path(prerequisites.__file__)


def _absent(name: str, package: str) -> Prerequisite:
    return Prerequisite(name, package, "a test", lambda: False)


def test_missing_program_fails_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "SEARCH_PATH", "/nonexistent")
    with pytest.raises(MissingPrerequisite, match="apt-get install -y chromium-headless-shell"):
        prerequisites.require("chromium-headless-shell")


def test_one_line_installs_everything_that_is_missing() -> None:
    said = prerequisites.explain([_absent("ip", "iproute2"), _absent("wrk", "wrk")])
    assert said.splitlines()[-1] == "install with: sudo apt-get update && sudo apt-get install -y iproute2 wrk"


def test_ordinary_user_is_told_the_line_and_gets_exit_code_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(GROUPS, "test", (_absent("ip", "iproute2"),))
    monkeypatch.setattr(prerequisites.os, "geteuid", lambda: 1000)
    assert prerequisites.main(["test"]) == 3
    assert "sudo apt-get install -y iproute2" in capsys.readouterr().err


def test_root_has_the_missing_packages_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    present = Prerequisite("ip", "iproute2", "a test", lambda: bool(installed))
    monkeypatch.setitem(GROUPS, "test", (present,))
    monkeypatch.setattr(prerequisites.os, "geteuid", lambda: 0)
    monkeypatch.setattr(prerequisites, "find", lambda command: command)
    monkeypatch.setattr(prerequisites, "install", lambda absent: installed.extend(each.package for each in absent))
    assert prerequisites.main(["test"]) == 0
    assert installed == ["iproute2"]


def test_script_runs_on_the_standard_library_alone() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
