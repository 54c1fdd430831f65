"""A run in a process of its own, and what is known of its tests afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.explore import SUITES, Finding, driven
from tests.tools.run import ran
from tests.tools.together import scope_of, weight_of

ROOT = Path(__file__).parents[3]
TESTS = """
import pytest

def test_good(): pass

def test_bad(): assert 1 == 2, "one is not two"

@pytest.fixture
def broken():
    yield
    raise RuntimeError("left open")

def test_bad_end(broken): pass

def test_skipped(): pytest.skip("not here")

@pytest.mark.xfail(strict=True)
def test_known(): assert False
"""

TWICE = """
import pytest

def pytest_pycollect_makeitem(collector, name, obj):
    if name == "test_it":
        return [pytest.Function.from_parent(collector, name=name) for _ in range(2)]
"""


def test_each_test_has_its_outcome_its_time_and_the_first_lines_of_its_failure(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    code, reports = ran([f"--rootdir={tmp_path}", str(tmp_path)], stdout=subprocess.DEVNULL)
    found = {one.test.split("::")[1]: one for one in reports}
    assert code == 1 and {name: one.outcome for name, one in found.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_bad_end": "failed",
        "test_skipped": "skipped",
        "test_known": "passed",
    }
    assert "one is not two" in found["test_bad"].text and "left open" in found["test_bad_end"].text
    assert all(one.seconds >= 0 for one in reports)


def test_a_run_that_is_cut_short_keeps_what_failed_before(tmp_path: Path) -> None:
    cut = "import os\n\ndef test_bad(): assert 1 == 2\n\ndef test_cut(): os._exit(9)\n"
    (tmp_path / "test_cut.py").write_text(cut)
    code, (report,) = ran([f"--rootdir={tmp_path}", str(tmp_path)], stdout=subprocess.DEVNULL)
    assert code == 9 and report.outcome == "failed" and report.test.endswith("::test_bad")


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("import nothing_of_this_name\n")
    code, (report,) = ran([f"--rootdir={tmp_path}", str(tmp_path)], stdout=subprocess.DEVNULL)
    assert code == 2 and report.outcome == "failed" and "nothing_of_this_name" in report.text


def test_what_was_compiled_is_kept_though_the_environment_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "test_one.py").write_text("import sys\n\ndef test_kept(): assert not sys.dont_write_bytecode\n")
    code, _ = ran([f"--rootdir={tmp_path}", str(tmp_path)], stdout=subprocess.DEVNULL)
    assert code == 0


def test_with_several_processes_a_file_stays_in_one() -> None:
    files = ["tests/unit/support/test_history.py", "tests/unit/support/test_tiers.py"]
    command = [sys.executable, "-m", "pytest", "-v", "--numprocesses", "2", "--dist", "loadscope", *files]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    where = {(file, worker) for worker, file in re.findall(r"\[(gw\d)\] .* PASSED ([^:]+)::", shown)}
    assert len(where) == 2 and {file for file, _ in where} == {*files}, shown


def test_tests_of_one_id_are_refused_because_several_processes_would_run_the_first_alone(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_it(): pass\n")
    (tmp_path / "conftest.py").write_text(TWICE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", f"--rootdir={tmp_path}", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "several tests of one id: test_one.py::test_it" in ended.stdout + ended.stderr


def test_each_operation_of_the_document_is_a_test_of_its_own() -> None:
    file = "tests/integration/test_schemathesis.py"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", file]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{file}::test_the_document_tells_the_truth[POST /v1/queues/{{queue}}/messages]" in shown.splitlines()


def test_lonely_tests_share_one_process() -> None:
    assert scope_of("tests/crash/test_a.py::test_b[c/d]") == scope_of("tests/storm/test_e.py::test_f") == "alone"
    assert scope_of("tests/contracts/test_coordinators.py::test_a") == "alone"
    assert scope_of("tests/contracts/test_transports.py::test_a") == "tests/contracts/test_transports.py"
    assert scope_of("tests/spark/test_a.py::test_b") == scope_of("tests/spark/test_c.py::test_d") == "spark"
    assert scope_of("tests/js/test_a.py::test_b") == "tests/js/test_a.py"


def test_what_lasts_longest_begins_first() -> None:
    counts = {
        "tests/unit/test_a.py": 300,
        "tests/browser/test_b.py": 19,
        "tests/unit/test_c.py": 2,
        "spark": 60,
        "alone": 50,
    }
    order = sorted(counts, key=lambda scope: -weight_of(scope, counts[scope]))
    assert order == ["alone", "spark", "tests/browser/test_b.py", "tests/unit/test_a.py", "tests/unit/test_c.py"]


def test_what_is_explored_is_there() -> None:
    paths = [word for words in SUITES.values() for word in words if word.startswith("tests/")]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_finding_says_how_to_run_it_again() -> None:
    finding = Finding("model", 7, "tests/model/test_x.py::test_y[a b]", "")
    assert finding.again == (
        "TEST_SEED=7 PYTHONHASHSEED=7 python -m pytest --hypothesis-seed=7 'tests/model/test_x.py::test_y[a b]'"
    )


def test_properties_are_files_that_use_hypothesis() -> None:
    assert "tests/unit/throttling/test_gcra.py" in driven()
