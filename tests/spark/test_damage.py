"""Files that are not as they were written, folders that Spark cannot name, and disks that are full: a job says what is
wrong and what to do, in one line, and counts nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.jobs import failures, main, usage_rollup
from spark.session import CannotStart
from tests.spark.test_jobs import history, table, total
from tests.support.spark import file, minute, ran

Said = Callable[..., str]


@pytest.fixture
def failed(session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """What a job says that fails."""
    monkeypatch.setattr(main, "spark_session", lambda *given, **settings: session)
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # the other tests go on with it

    def said(*arguments: object) -> str:
        assert main.main([str(one) for one in arguments]) == main.FAILED
        told = capsys.readouterr()
        (line,) = (one for one in told.err.splitlines() if one.startswith("error: "))
        assert not told.out and "Traceback" not in told.err
        return line

    return said


def test_a_file_that_was_not_copied_whole_is_named_and_counts_when_it_is_whole(
    session: SparkSession, failed: Said, tmp_path: Path
) -> None:
    ledger = history()
    source, to = tmp_path / "a folder", tmp_path / "tables"
    file(source, "ledger", 1, ledger[:60])
    last = file(source, "ledger", 2, ledger[60:])
    whole = last.read_bytes()
    for data in (b"", whole[: len(whole) // 2]):
        last.write_bytes(data)
        said = failed("usage_rollup", "--from", source, "--to", to)
        assert str(last) in said and "remove it and collect it again" in said
        assert not list(to.glob("*.json")), "no file counts as read"
    last.write_bytes(whole)
    ran(session, usage_rollup, source, to)
    assert sum(row[0] for row in table(session, to, "bill", "published")) == total(ledger, "published")


def test_an_audit_names_an_empty_file(failed: Said, tmp_path: Path) -> None:
    path = file(tmp_path / "files", "ledger", 1, history())
    path.write_bytes(b"")
    said = failed("delivery_audit", "--from", path.parent, "--to", tmp_path / "tables", "--screen", "always")
    assert f"{path}: the file is empty" in said


def test_a_live_job_names_a_file_that_was_not_copied_whole(failed: Said, tmp_path: Path) -> None:
    path = file(tmp_path / "files", "minutes", 1, [minute(0)])
    path.write_bytes(path.read_bytes()[:40])
    said = failed("live_usage", "--from", path.parent, "--to", tmp_path / "live", "--once")
    assert str(path) in said and "remove it and collect it again" in said


@pytest.mark.parametrize("name", ["a*", "a[b]", "a{b,c}", "a\\b"])
@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_folder_whose_name_is_a_pattern_to_spark_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, option: str
) -> None:
    """Spark would read all folders of the pattern."""

    def session(*given: object, **settings: object) -> None:
        raise CannotStart("it was not refused")

    monkeypatch.setattr(main, "spark_session", session)
    folders = {"--from": tmp_path / "files", "--to": tmp_path / "tables", option: tmp_path / name / "files"}
    given = [str(part) for pair in folders.items() for part in pair]
    assert main.main(["usage_rollup", *given]) == main.FAILED
    assert f"{option} {folders[option]}: Spark treats names with any of " in capsys.readouterr().err


def test_what_a_machine_has_too_little_of_is_named() -> None:
    full = failures.reason("java.io.IOException: No space left on device\n\tat java.base/java.io")
    assert full is not None and "free some space" in full
    memory = failures.reason("java.lang.OutOfMemoryError: Java heap space")
    assert memory is not None and "--memory" in memory
    assert failures.reason("java.lang.IllegalStateException: who knows") is None
