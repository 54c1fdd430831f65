"""The threat model promises nothing that no test holds. That the tests are there: `test_named_tests`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()
LINES = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| Who could", "| ---"))]
OURS = sorted(path for path in (ROOT / "tests" / "security").glob("test_*.py"))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[2:60])
def test_every_line_names_a_test(line: str) -> None:
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    assert len(cells) == 3 and all(cells), line
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", cells[2]), line


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_every_file_of_hostile_tests_is_on_the_page(file: Path) -> None:
    assert file.relative_to(ROOT).as_posix() in PAGE
