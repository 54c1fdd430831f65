"""The published runs, and the page of the documentation that shows their tables."""

from __future__ import annotations

from pathlib import Path

from tests.bench.report import report
from tests.bench.rows import read_rows
from tests.bench.world import ROOT

PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
PUBLISHED = {path.name: path for path in sorted(Path(__file__).parent.glob("published*.jsonl"))}
_END = "\n<!-- end -->"


def shown(page: str, name: str) -> str:
    """What a page shows of a published run."""
    return page.split(_begin(name))[1].split(_END)[0]


def write_page() -> None:
    page = PAGE.read_text()
    for name, path in PUBLISHED.items():
        before, after = page.split(_begin(name))
        page = before + _begin(name) + report(read_rows(path)) + _END + after.split(_END, 1)[1]
    PAGE.write_text(page)


def _begin(name: str) -> str:
    return f"<!-- printed from {name} -->\n\n"
