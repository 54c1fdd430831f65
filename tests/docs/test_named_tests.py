"""Where a page says that a test holds its promise, that test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_NAMED = re.compile(r"`(tests/[\w/.-]+)(?:::(\w+))?`")


def _absent(text: str) -> list[str]:
    absent = []
    for path, test in _NAMED.findall(text):
        place = ROOT / path
        if not place.exists() or (test and f"def {test}(" not in place.read_text()):
            absent.append(f"{path}::{test}" if test else path)
    return absent


@pytest.mark.parametrize("page", PAGES)
def test_page_names_tests_that_exist(page: str) -> None:
    assert _absent((ROOT / page).read_text()) == []


def test_absent_test_is_noticed() -> None:
    here = f"tests/docs/{Path(__file__).name}"
    text = f"`{here}` `{here}::test_absent_test_is_noticed` `{here}::test_of_old` `tests/old/test_gone.py`"
    assert _absent(text) == [f"{here}::test_of_old", "tests/old/test_gone.py"]
