"""The documentation as pages: addresses, links, headings, and nothing of the source runs in the reader's browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.api import docs

pytestmark = pytest.mark.anyio

NOBODY: Any = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "errors.md").write_text(
        "# Errors\n\n## invalid-request\n\nSee [up](../start.md#the-end).\n"
    )
    (tmp_path / "start.md").write_text(
        "# Start *here*\n\n[errors](reference/errors.md), [out](https://a.example/x.md), [here](#the-end)\n\n"
        "<script>alert(1)</script>\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n## The end\n"
    )
    return tmp_path


async def show(folder: Path, path: str) -> str:
    answer = await docs.pages(folder)[path](NOBODY, {})
    assert answer.status == 200 and answer.content_type == b"text/html; charset=utf-8"
    return answer.body.decode()


async def test_files_are_pages_below_docs(folder: Path) -> None:
    assert sorted(docs.pages(folder)) == ["/docs", "/docs/reference/errors", "/docs/start"]


async def test_links_between_files_lead_from_page_to_page(folder: Path) -> None:
    page = await show(folder, "/docs/start")
    assert 'href="/docs/reference/errors"' in page
    assert 'href="https://a.example/x.md"' in page
    assert 'href="#the-end"' in page
    assert 'href="/docs/start#the-end"' in await show(folder, "/docs/reference/errors")


async def test_headings_can_be_linked_to(folder: Path) -> None:
    assert '<h2 id="invalid-request">' in await show(folder, "/docs/reference/errors")


async def test_html_in_the_source_is_shown_and_not_run(folder: Path) -> None:
    page = await show(folder, "/docs/start")
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "<table>" in page


async def test_without_a_readme_the_first_page_lists_the_others(folder: Path) -> None:
    assert '<a href="/docs/reference/errors">Errors</a>' in await show(folder, "/docs")


async def test_a_readme_is_its_folders_page(folder: Path) -> None:
    (folder / "README.md").write_text("# Welcome\n\n[start](start.md)\n")
    assert "<title>Welcome · Pushq</title>" in await show(folder, "/docs")


async def test_every_page_of_the_documentation_renders() -> None:
    for path in docs.pages():
        await show(docs.FOLDER, path)
