"""Processes that are forks of one that has imported everything: they are what `python -m` would have made."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S

PROBE = "tests.support.probe"


def _probe(folder: Path, *arguments: str, stderr: int = subprocess.DEVNULL, leads: bool = False) -> Forked:
    how = {"stdout": subprocess.PIPE, "stderr": stderr, "start_new_session": leads}
    return Forked([PROBE, *arguments], cwd=folder, env={"A": "1"}, **how)


@pytest.mark.parametrize("leads", [False, True])
def test_it_has_arguments_folder_environment_and_session_of_its_own(tmp_path: Path, leads: bool) -> None:
    with _probe(tmp_path, "3", "two words", leads=leads) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == [["3", "two words"], str(tmp_path), {"A": "1"}, "", leads]
        assert process.stdout.read() == ""
        assert process.wait(PATIENCE_S) == process.poll() == 3


def test_it_reads_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a line\n")
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as out:
        process = Forked([PROBE, "0"], cwd=tmp_path, stdin=given, stdout=out, stderr=subprocess.DEVNULL)
        assert process.wait(PATIENCE_S) == 0
    assert json.loads((tmp_path / "out").read_text())[3] == "a line\n"


def test_its_errors_go_where_they_are_sent(tmp_path: Path) -> None:
    with _probe(tmp_path, "0", stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        assert process.stdout.read().splitlines()[1:] == ["to stderr"]
    with (tmp_path / "log").open("wb") as log, Forked([PROBE, "0"], cwd=tmp_path, stdout=log, stderr=log) as process:
        assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "log").read_text().endswith("to stderr\n")


def test_a_signal_ends_it_and_its_code_says_which(tmp_path: Path) -> None:
    with _probe(tmp_path, "wait") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        assert process.poll() is None
        process.kill()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        process.terminate()  # nobody is there any more, and its number may be another's
