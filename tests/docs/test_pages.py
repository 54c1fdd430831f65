"""README and docs/ do what they say."""

from pathlib import Path

import pytest

from tests.support.doc_pages import run_page, steps_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PAGES_TO_RUN = [page for page in PAGES if steps_of((ROOT / page).read_text())]


@pytest.mark.parametrize("page", PAGES_TO_RUN)
def test_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    wrong = run_page((ROOT / page).read_text(), tmp_path)
    assert not wrong, f"{page}\n" + "\n".join(wrong)
