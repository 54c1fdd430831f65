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


async def show(folder: Path, path: str, **query: str) -> str:
    answer = await docs.pages(folder, folder / "deploy")[path](NOBODY, query)
    assert answer.status == 200 and answer.content_type == b"text/html; charset=utf-8"
    return answer.body.decode()


async def test_files_are_pages_below_docs(folder: Path) -> None:
    found = docs.pages(folder, folder / "deploy")
    assert sorted(found) == ["/docs", "/docs/reference/errors", "/docs/search", "/docs/start"]


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


async def test_comments_in_the_source_are_neither_shown_nor_found(folder: Path) -> None:
    (folder / "notes.md").write_text(
        "# Notes\n\nOne <!-- secret --> two.\n\n<!-- a secret\n\nof two parts -->\n\n| a |\n|---|\n"
    )
    page = await show(folder, "/docs/notes")
    assert "One  two." in page and "<table>" in page
    assert "secret" not in page and "--" not in page.split("<main", 1)[1].split("</main>")[0]
    assert "No section has all of these words" in await show(folder, "/docs/search", q="secret")


@pytest.mark.parametrize(
    "code", ["```html\n<!-- x -->\n```", "~~~\n<!-- x -->\n~~~", "    <!-- x -->", "As `<!-- x -->` is."]
)
async def test_a_comment_in_code_is_shown(folder: Path, code: str) -> None:
    (folder / "code.md").write_text(f"# Code\n\n<!-- left out -->\n\n{code}\n\n<!-- this, too -->\n")
    page = await show(folder, "/docs/code")
    assert page.count("&lt;!-- x --&gt;") == 1 and "left out" not in page and "this, too" not in page


async def test_without_a_readme_the_first_page_lists_the_others(folder: Path) -> None:
    assert '<a href="/docs/reference/errors">Errors</a>' in await show(folder, "/docs")


async def test_a_readme_is_its_folders_page(folder: Path) -> None:
    (folder / "README.md").write_text("# Welcome\n\n[start](start.md)\n")
    assert "<title>Welcome · Pushq</title>" in await show(folder, "/docs")


async def test_files_of_deploy_are_shown_as_they_are_and_linked_to(folder: Path) -> None:
    (folder / "deploy" / "unit").mkdir(parents=True)
    (folder / "deploy" / "unit" / "a.service").write_text("[Unit]\n<script>\n")
    (folder / "reference" / "run.md").write_text("# Run\n\n[it](../../deploy/unit/a.service)\n")
    assert 'href="/docs/deploy/unit/a.service"' in await show(folder, "/docs/reference/run")
    answer = await docs.pages(folder, folder / "deploy")["/docs/deploy/unit/a.service"](NOBODY, {})
    assert (answer.body, answer.content_type) == (b"[Unit]\n<script>\n", b"text/plain; charset=utf-8")
    assert (b"x-content-type-options", b"nosniff") in answer.headers


async def test_code_and_tables_scroll_by_themselves(folder: Path) -> None:
    assert '<div class="wide" tabindex="0"><table>' in await show(folder, "/docs/start")
    (folder / "code.md").write_text("# Code\n\n```sh\nls <x>\n```\n\n    indented\n")
    assert (await show(folder, "/docs/code")).count('<div class="wide" tabindex="0"><pre>') == 2


async def test_a_page_with_several_headings_lists_them(folder: Path) -> None:
    (folder / "long.md").write_text("# Long\n\n## One `a`\n\n## Two\n\n### Part\n\n## Three\n")
    page = await show(folder, "/docs/long")
    assert page.count("<li><a href=") == 3 and '<a href="#one-a">One a</a>' in page
    assert "On this page" not in await show(folder, "/docs/start")


async def test_search_finds_sections_and_shows_the_question_as_text(folder: Path) -> None:
    page = await show(folder, "/docs/search", q="see UP")
    assert '<a href="/docs/reference/errors#invalid-request">Errors › invalid-request</a>' in page
    page = await show(folder, "/docs/search", q='"><script>alert(1)</script> nowhere')
    assert "<script>" not in page and "No section has all of these words" in page
    assert "Name some words" in await show(folder, "/docs/search")


async def test_every_page_of_the_documentation_renders() -> None:
    found = docs.pages()
    assert "/docs/deploy/systemd/pushq.service" in found
    for path, page in found.items():
        answer = await page(NOBODY, {})
        assert answer.status == 200
        assert path.startswith("/docs/deploy/") or b"<p>&lt;!--" not in answer.body
