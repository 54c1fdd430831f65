"""The published runs, and the page of the documentation that shows their tables."""

from __future__ import annotations

from pathlib import Path

from tests.bench import spark_report
from tests.bench.report import report
from tests.bench.rows import Row, read_rows
from tests.bench.world import ROOT

PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
PUBLISHED_SPARK = Path(__file__).with_name("published_spark.jsonl")
PUBLISHED = {
    path.name: path for path in sorted(Path(__file__).parent.glob("published*.jsonl")) if path != PUBLISHED_SPARK
}
_BEGIN = "<!-- printed from "
_END = "\n<!-- end -->"


def shown(page: str, name: str) -> str:
    """What a page shows of a published run."""
    return page.split(_begin(name))[1].split(_END)[0]


def write_page() -> None:
    """Prints all published runs anew. Raises `ValueError`, and writes nothing, where the page has no place for one."""
    page = PAGE.read_text()
    for name, path in PUBLISHED.items():
        page = _with(page, name, report(read_rows(path)))
    PAGE.write_text(_with(page, PUBLISHED_SPARK.name, spark_report.report(rows_of_spark())))


def rows_of_spark() -> list[Row]:
    """Those of the last published run; none before the first."""
    return read_rows(PUBLISHED_SPARK) if PUBLISHED_SPARK.exists() else []


def _with(page: str, name: str, tables: str) -> str:
    before, after = page.split(_begin(name))
    old, rest = after.split(_END, 1)
    if _BEGIN in old:
        raise ValueError(f"{PAGE.name}: the tables from {name} do not end before those of the next run begin")
    return before + _begin(name) + tables + _END + rest


def _begin(name: str) -> str:
    return f"{_BEGIN}{name} -->\n\n"
