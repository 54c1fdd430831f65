"""`pushq usage run`: it lists the jobs, and says what is wrong and what to do."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

import spark.session
from gateway.commands.usage import usage
from spark.jobs import arguments, capacity_plan, main
from spark.jobs.main import JOBS
from spark.jobs.reading import LITTLE_BYTES_MAX, BadFolder
from spark.session import LITTLE, LITTLE_LOCAL, CannotStart, spark_session


def test_without_a_job_it_lists_them() -> None:
    said = CliRunner().invoke(usage, ["run"])
    assert said.exit_code == 0 and all(job in said.output for job in JOBS)


@pytest.mark.parametrize("words", [["delivery_audit"], ["--", "delivery_audit"]])
def test_a_job_says_what_it_takes(words: list[str]) -> None:
    said = CliRunner().invoke(usage, ["run", *words, "--help"])
    assert said.exit_code == 0 and "--screen" in said.output


def test_an_option_before_the_job_is_named_as_unknown() -> None:
    said = CliRunner().invoke(usage, ["run", "--sceren", "delivery_audit"])
    assert said.exit_code == 2 and "No such option" in said.output and "--sceren" in said.output


@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_as_a_module_too(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = importlib.import_module(f"spark.jobs.{job}").__file__
    assert file is not None
    monkeypatch.setattr(sys, "argv", [file])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(file, run_name="__main__")
    assert ended.value.code == 2 and f"pushq usage run {job}: error:" in capsys.readouterr().err


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


def test_a_run_starts_little_where_all_its_files_are_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []

    def session(*given: object, little: bool) -> None:
        started.append(little)
        raise CannotStart("not here")

    monkeypatch.setattr(main, "spark_session", session)
    files, tables = tmp_path / "files", tmp_path / "tables"
    for folder in (files, tables / "flows" / "day=2026-11-20"):
        folder.mkdir(parents=True)
    (files / "ledger").write_bytes(b"x")
    over = ["--from", str(files), "--to", str(tables)]
    assert main.main(["delivery_audit", *over]) == main.main(["live_usage", *over]) == main.FAILED
    main.main(["archive", "q", str(tmp_path), "--url", "http://localhost"])
    with (tables / "flows" / "day=2026-11-20" / "part").open("wb") as part:
        part.truncate(LITTLE_BYTES_MAX)
    main.main(["delivery_audit", *over])
    assert started == [True, False, False, False]


@pytest.mark.parametrize(
    ("job", "option", "value"),
    [
        ("anomalies", "--since", "last week"),
        ("anomalies", "--since", "2026-13-01"),
        ("anomalies", "--sigmas", "nan"),
        ("anomalies", "--weeks", "0"),
        ("anomalies", "--messages", "-1"),
        ("capacity_plan", "--per-partition", "0"),
        ("capacity_plan", "--storage-bytes", "-5"),
        ("live_usage", "--late", "soon"),
        ("live_usage", "--late", "-5 minutes"),
    ],
)
def test_a_wrong_value_is_said_before_spark_starts(
    job: str, option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since = ["--since", "2026-11-22"] if job == "anomalies" else []
    given = [job, "--from", str(tmp_path), "--to", str(tmp_path), *since]
    assert main.parser().parse_args(given)
    with pytest.raises(SystemExit) as ended:
        main.parser().parse_args([*given, f"{option}={value}"])
    assert ended.value.code == 2
    assert f"argument {option}: {value!r} is not a " in capsys.readouterr().err


def test_a_price_that_is_none_is_named(tmp_path: Path) -> None:
    for price in ('"dear"', "-1", "NaN", "null"):
        (tmp_path / "prices").write_text(f'{{"per_million_messages": {price}, "per_gigabyte": 1}}')
        with pytest.raises(BadFolder, match=r"--prices .*it needs the numbers"):
            capacity_plan._prices(tmp_path / "prices")


@pytest.mark.parametrize(
    ("moment", "read"),
    [
        ("2026-11-22", "2026-11-22T00:00:00+00:00"),
        ("2026-11-22T00:00:00Z", "2026-11-22T00:00:00+00:00"),
        ("2024-02-29T23:30:00+01:00", "2024-02-29T23:30:00+01:00"),
    ],
)
def test_a_moment_of_no_zone_is_in_utc(moment: str, read: str) -> None:
    assert arguments.moment(moment) == read


@pytest.mark.parametrize(
    ("master", "env", "is_little"),
    [
        (None, {}, True),
        ("local[1]", {}, True),
        ("spark://host:7077", {}, False),
        (None, {"SPARK_ENV_LOADED": "1"}, False),
    ],
)
def test_a_session_for_little_has_its_settings_on_this_machine_alone(
    master: str | None, env: dict[str, str], is_little: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    made = MagicMock()
    made.builder.appName.return_value = made.builder
    made.builder.config.return_value = made.builder
    monkeypatch.setattr(spark.session, "SparkSession", made)
    spark_session("x", master, little=True)
    settings = {call.args[0]: call.args[1] for call in made.builder.config.call_args_list}
    assert (LITTLE.items() <= settings.items()) is is_little
    assert settings.get("spark.master") == (master or (None if env else LITTLE_LOCAL))
