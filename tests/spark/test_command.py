"""`pushq usage run`: it lists the jobs, and says what is wrong and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.commands.usage import usage
from spark.jobs.main import JOBS


def test_without_a_job_it_lists_them() -> None:
    said = CliRunner().invoke(usage, ["run"])
    assert said.exit_code == 0 and all(job in said.output for job in JOBS)


def test_a_job_says_what_it_takes() -> None:
    said = CliRunner().invoke(usage, ["run", "--", "delivery_audit", "--help"])
    assert said.exit_code == 0 and "--screen" in said.output


def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "spark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    said = CliRunner().invoke(usage, ["run", "usage_rollup"])
    assert said.exit_code != 0 and "pip install 'pushq[spark]'" in str(said.exception or said.output) + said.output


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from spark.jobs.reading import BadFolder, usage_files

    with pytest.raises(BadFolder, match="there is no such folder; name one that `pushq usage collect` filled"):
        usage_files(tmp_path / "gone", "ledger")
