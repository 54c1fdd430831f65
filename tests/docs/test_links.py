"""Links between pages lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OF_THE_CODE = re.compile(r"`((?:backend_store|gateway|push|spark|throttling|web_console)/[\w./-]*)`")
_ELSEWHERE = re.compile(r"[a-z]+:|/")  # other sites, and paths that a running server answers


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """What a reader's browser makes of the headings: lower case, hyphens for blanks, no other signs."""
    headings = re.findall(r"^#+ +(.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def _broken_links(page: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(_prose(page)):
        if _ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_a_file_and_a_heading(page: str) -> None:
    assert _broken_links(ROOT / page) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])  # which tells of earlier versions
def test_files_and_folders_of_the_code_that_a_page_names_are_there(page: str) -> None:
    named = _OF_THE_CODE.findall((ROOT / page).read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_link_to_a_missing_file_or_heading_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two words!\n[a](#two-words) [b](#three) [c](other.md) [d](https://example.org)\n")
    assert _broken_links(page) == ["#three", "other.md"]
