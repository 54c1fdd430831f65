"""`make spark-long`, small: the same steps over the same kind of files, and what it says of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.jobs import delivery_audit
from tests.bench import spark_data, spark_scale
from tests.bench.spark_report import GOALS, misses, report
from tests.bench.spark_scale import JOBS, Job, described, measured
from tests.support.spark import ran

LOGS, DOERS, HOURS = 10, 10, 3


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_is_measured_and_what_is_published_says_of_what(session: SparkSession, tmp_path: Path, job: Job) -> None:
    write, size, told = {
        "usage_rollup": (partial(spark_data.write_minutes, doers=DOERS), HOURS * 60 * DOERS, "minutes"),
        "delivery_audit": (
            partial(spark_data.write_ledger, logs=LOGS),
            HOURS * 60 * LOGS * spark_data.KINDS_PER_RANGE,
            "the ledger",
        ),
    }[job.name]
    rows = [described(tmp_path), *measured(session, tmp_path, job._replace(write=write), [size], is_long=False)]
    assert [(row["rows"], row["files"]) for row in rows[1:]] == [(size, HOURS)]
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "spark"], "nothing is left"
    assert [json.loads(json.dumps(row)) for row in rows] == rows
    page = report(rows)
    assert page.startswith("Measured on 20") and "4g for the driver" in page
    assert f"`{job.name}` | {size:,} rows of {told}" in page and misses(rows) == []


def test_goals_are_those_of_the_full_sizes_and_growth_is_that_of_ten_times_the_data() -> None:
    row = {"kilobytes": 1, "again_seconds": 1.0, "other_cpu_pct": 0.0}
    rows = [
        {"kind": "delivery_audit", "rows": 5_000_000, "seconds": 16.0, **row},
        {"kind": "delivery_audit", "rows": 50_000_000, "seconds": 181.0, **row},
        {"kind": "usage_rollup", "rows": 9_960_000, "seconds": 60.0, **row},
    ]
    assert misses(rows) == ["delivery_audit"]
    page = report(rows)
    assert "≤ 180 s **missed**" in page and "≤ 11 times: 11.3 **missed**" in page and "≤ 60 s reached" in page
    assert {name: (goal.rows, goal.seconds) for name, goal in GOALS.items()} == {
        "usage_rollup": (10_000_000, 60),
        "delivery_audit": (50_000_000, 180),
    }


@pytest.mark.parametrize("less", [["--part", "0.1"], ["--only", "usage_rollup"], ["--no-tenth"]], ids=" ".join)
def test_less_than_all_of_it_is_not_published(
    less: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["spark_scale", "--publish", "--folder", str(tmp_path / "none"), *less])
    with pytest.raises(SystemExit) as ended:
        spark_scale.main()
    assert ended.value.code == 2 and "--publish" in capsys.readouterr().err


def test_a_fault_in_generated_files_is_found(session: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "files"
    source.mkdir()
    spark_data.write_ledger(session, source, 1, faults=True, logs=LOGS)
    done = ran(session, delivery_audit, source, tmp_path / "tables", "--screen", "always")
    (fault,) = done["first_faults"]
    place = spark_data.FAULTY_MINUTE * 11_000
    assert (fault["queue"], fault["from"], fault["messages"]) == (f"queue-{spark_data.FAULTY_LOG:03}", place, 5)
    assert fault["fault"] == "appeared"
