"""Figures say which server they are of: the commit, the day, the machine, and whether queues were encrypted."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from tests.bench import page as benchmark_page
from tests.bench import spark_report
from tests.bench.page import PAGE, PUBLISHED, PUBLISHED_SPARK, rows_of_spark, shown

STAMP = re.compile(
    r"Measured on (?P<date>\d{4}-\d\d-\d\d) at commit `([0-9a-f]{12}|[0-9a-f]{40})`(?P<changed> with changes)?, "
    r"(?:queues encrypted|nothing encrypted) at rest(?:, in the `duty-…` scenarios only where stated)?\. "
    r".+, \d+ cores \(.+\), \d+ GiB, .+, Linux [\d.]+, Python [\d.]+, .+; .+\."
)
SPARK = re.compile(
    r"Measured on (?P<date>\d{4}-\d\d-\d\d) at commit `[0-9a-f]{12}`(?P<changed> with changes)?\. "
    r".+, \d+ cores, \d+ GiB, .+, Linux [\d.]+, Python [\d.]+, PySpark [\d.]+, \d+g for the driver\."
)
MACHINE = {"kind": "machine", "commit": "0123456789ab", "date": "2026-11-29", "processor": "AMD EPYC", "cores": 2} | {
    "memory_gib": 24,
    "filesystem": "ext4",
    "kernel": "6.18",
    "python": "3.11.7",
    "pyspark": "4.3.0",
    "driver": "4g",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_begin_with_what_they_are_of(name: str) -> None:
    first = shown(PAGE.read_text(), name).split("\n", 1)[0]
    found = STAMP.fullmatch(first)
    assert found is not None, first
    assert found["changed"] is None, "what is published can be measured again: it is that of a commit"
    assert datetime.date.fromisoformat(found["date"]) <= datetime.datetime.now(datetime.UTC).date()


def test_figures_of_jobs_say_what_they_are_of_and_are_those_of_the_rows() -> None:
    printed = shown(PAGE.read_text(), PUBLISHED_SPARK.name)
    rows = rows_of_spark()
    assert printed == spark_report.report(rows)
    found = SPARK.fullmatch(spark_report.report(rows or [MACHINE]).split("\n", 1)[0])
    assert found is not None and found["changed"] is None, printed
    assert datetime.date.fromisoformat(found["date"]) <= datetime.datetime.now(datetime.UTC).date()


def test_a_run_whose_tables_have_no_end_takes_no_other_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = PUBLISHED
    begin = f"<!-- printed from {first} -->\n\n"
    page = tmp_path / "benchmarks.md"
    broken = PAGE.read_text().replace(f"{begin}{shown(PAGE.read_text(), first)}\n<!-- end -->", begin)
    page.write_text(broken)
    monkeypatch.setattr(benchmark_page, "PAGE", page)
    with pytest.raises(ValueError, match=f"{first} do not end"):
        benchmark_page.write_page()
    assert page.read_text() == broken
