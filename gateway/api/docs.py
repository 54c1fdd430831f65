"""`/docs`: the Markdown files of the documentation as pages, so that links in problems and alerts resolve offline."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from gateway.context import Gateway
from gateway.http import HTML, Answer
from gateway.version import VERSION
from web_console.pages import render

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs"
"""A link to the repository's `docs`; an installed package has the files themselves."""

INDEX: Final = "README.md"

_templates = [Path(__file__).resolve().parents[1] / "templates", Path(render.__file__).parents[1] / "templates"]
_environment = Environment(loader=FileSystemLoader(_templates), autoescape=True, undefined=StrictUndefined)
_headers = tuple((name.lower().encode(), value.encode()) for name, value in render.PAGE_HEADERS.items())
_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")

Page = Callable[[Gateway, dict[str, str]], Awaitable[Answer]]


def pages(folder: Path = FOLDER) -> dict[str, Page]:
    """Path → page, for each file there is. Each is rendered when it is first asked for."""
    found = {_address(file.relative_to(folder)): _page(file, folder) for file in sorted(folder.rglob("*.md"))}
    found.setdefault("/docs", _contents(folder))
    return found


def _address(file: Path) -> str:
    """`reference/errors.md` → `/docs/reference/errors`; a README is its folder's page."""
    steps = [*file.parts[:-1], *([] if file.name == INDEX else [file.stem])]
    return "/".join(["/docs", *steps])


def _page(file: Path, folder: Path) -> Page:
    rendered: list[Answer] = []

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        if not rendered:
            rendered.append(_html(file.read_text(), file.relative_to(folder)))
        return rendered[0]

    return show


def _contents(folder: Path) -> Page:
    """A list of what there is, where no README leads the way."""

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        files = [file.relative_to(folder) for file in sorted(folder.rglob("*.md"))]
        lines = [f"- [{_title((folder / file).read_text(), file)}]({file.as_posix()})" for file in files]
        return _html("# Documentation\n\n" + "\n".join(lines), Path(INDEX))

    return show


def _html(text: str, file: Path) -> Answer:
    tokens = _markdown.parse(text)
    _name_headings(tokens)
    for token in tokens:
        for inner in token.children or ():
            if inner.type == "link_open":
                inner.attrSet("href", _link(str(inner.attrGet("href")), file))
    content = Markup(_markdown.renderer.render(tokens, _markdown.options, {}))  # HTML in the source is escaped
    page = _environment.get_template("docs.html").render(title=_title(text, file), content=content, version=VERSION)
    return Answer(200, page.encode(), _headers, HTML)


def _title(text: str, file: Path) -> str:
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].strip() if heading else file.stem


def _name_headings(tokens: list[Token]) -> None:
    """Gives each heading the id that links name it by: its words, joined by hyphens."""
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            words = re.sub(r"[^\w\- ]", "", inline.content.lower())
            opening.attrSet("id", words.replace(" ", "-"))


def _link(target: str, file: Path) -> str:
    """A link between files as one between pages; others stay as they are."""
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or target.startswith("/") or not path.endswith(".md"):
        return target
    steps: list[str] = list(file.parts[:-1])
    for step in Path(path).parts:
        if step == "..":
            del steps[-1:]
        else:
            steps.append(step)
    return _address(Path(*steps)) + hash_sign + anchor
