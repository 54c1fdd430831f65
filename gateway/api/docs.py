"""Serves `/docs`: renders the documentation's Markdown files, so that links in problems and alerts work offline.

Also serves `/docs/search`, and below `/docs/deploy` the files that the pages refer to.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from gateway.api import docs_search
from gateway.api.http import HTML, Answer
from gateway.context import Gateway
from gateway.version import VERSION
from web_console.pages import render

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs"
"""A symbolic link to the repository's `docs`; an installed package has the files themselves."""

DEPLOY: Final = Path(__file__).resolve().parents[1] / "deploy"
"""A symbolic link to the repository's `deploy`, likewise."""

INDEX: Final = "README.md"
SEARCH: Final = "/docs/search"
ASKED_CHARS_MAX: Final = 200
"""Maximum length of a search text; the rest is cut off."""
CONTENTS_MIN: Final = 3
"""Number of headings from which a page has a table of contents."""

_templates = [Path(__file__).resolve().parents[1] / "templates", Path(render.__file__).parents[1] / "templates"]
_environment = Environment(loader=FileSystemLoader(_templates), autoescape=True, undefined=StrictUndefined)
_headers = tuple((name.lower().encode(), value.encode()) for name, value in render.PAGE_HEADERS.items())
_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
_renderer: Any = _markdown.renderer
_COMMENT = re.compile(
    r"(?P<code>"
    r"^ {0,3}(?P<fence>```+|~~~+).*?(?:^ {0,3}(?P=fence)|\Z)"
    r"|^(?: {4}|\t)[^\n]*"
    r"|(?P<ticks>`+)[^`].*?(?P=ticks)"
    r")|<!--.*?-->",
    re.MULTILINE | re.DOTALL,
)
"""Matches a comment in the source, which is for authors only; or code, in which a comment is content."""


def _scrolling(name: str) -> Callable[..., str]:
    """Wraps a rule's HTML in a block that scrolls sideways, by keyboard too, so that no page is wider than the
    screen."""
    plain = getattr(_renderer, name)

    def rendered(tokens: Any, number: int, options: Any, env: Any) -> str:
        return f'<div class="wide" tabindex="0">{plain(tokens, number, options, env)}</div>\n'

    return rendered


_renderer.rules["fence"] = _scrolling("fence")
_renderer.rules["code_block"] = _scrolling("code_block")
_renderer.rules["table_open"] = lambda *_: '<div class="wide" tabindex="0"><table>\n'
_renderer.rules["table_close"] = lambda *_: "</table></div>\n"

Page = Callable[[Gateway, dict[str, str]], Awaitable[Answer]]


class Heading(NamedTuple):
    level: int
    id: str
    text: str


def pages(folder: Path = FOLDER, deploy: Path = DEPLOY) -> dict[str, Page]:
    """Path → page, for each file. A page is rendered at its first request."""
    found = {_address(file.relative_to(folder)): _page(file, folder) for file in sorted(folder.rglob("*.md"))}
    found.setdefault("/docs", _contents(folder))
    found[SEARCH] = _search(folder)
    for file in sorted(file for file in deploy.rglob("*") if file.is_file()):
        found[f"/docs/deploy/{file.relative_to(deploy).as_posix()}"] = _file(file)
    return found


def _address(file: Path) -> str:
    """The path of a file's page: `reference/errors.md` → `/docs/reference/errors`; a README is its folder's page."""
    steps = [*file.parts[:-1], *([] if file.name == INDEX else [file.stem])]
    return "/".join(["/docs", *steps])


def _page(file: Path, folder: Path) -> Page:
    rendered: list[Answer] = []

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        if not rendered:
            rendered.append(_html(_text(file), file.relative_to(folder)))
        return rendered[0]

    return show


def _text(file: Path) -> str:
    """The source without comments."""
    return _COMMENT.sub(lambda found: found["code"] or "", file.read_text())


def _file(file: Path) -> Page:
    """A file that pages refer to, unchanged, for reading and for `curl -O`."""

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        return Answer(200, file.read_bytes(), _headers, b"text/plain; charset=utf-8")

    return show


def _search(folder: Path) -> Page:
    sections: list[docs_search.Section] = []

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        if not sections:
            sections.extend(one for file in sorted(folder.rglob("*.md")) for one in _sections(file, folder))
        asked = query.get("q", "")[:ASKED_CHARS_MAX]
        template = _environment.get_template("docs_search.html")
        page = template.render(asked=asked, found=docs_search.find(sections, asked), search=SEARCH, version=VERSION)
        return Answer(200, page.encode(), _headers, HTML)

    return show


def _sections(file: Path, folder: Path) -> list[docs_search.Section]:
    text = _text(file)
    address, title = _address(file.relative_to(folder)), _title(text, file)
    return [
        docs_search.section(f"{address}#{_heading_id(heading)}" if heading else address, title, heading, part)
        for heading, part in docs_search.parts(text)
    ]


def _contents(folder: Path) -> Page:
    """A list of all pages, used without a README."""

    async def show(gateway: Gateway, query: dict[str, str]) -> Answer:
        files = [file.relative_to(folder) for file in sorted(folder.rglob("*.md"))]
        lines = [f"- [{_title(_text(folder / file), file)}]({file.as_posix()})" for file in files]
        return _html("# Documentation\n\n" + "\n".join(lines), Path(INDEX))

    return show


def _html(text: str, file: Path) -> Answer:
    tokens = _markdown.parse(text)
    headings = [heading for heading in _name_headings(tokens) if heading.level == 2]
    for token in tokens:
        for inner in token.children or ():
            if inner.type == "link_open":
                inner.attrSet("href", _link(str(inner.attrGet("href")), file))
    content = Markup(_markdown.renderer.render(tokens, _markdown.options, {}))  # HTML in the source is escaped
    page = _environment.get_template("docs.html").render(
        title=_title(text, file),
        content=content,
        headings=headings if len(headings) >= CONTENTS_MIN else [],
        asked="",
        search=SEARCH,
        version=VERSION,
    )
    return Answer(200, page.encode(), _headers, HTML)


def _title(text: str, file: Path) -> str:
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].strip() if heading else file.stem


def _name_headings(tokens: list[Token]) -> list[Heading]:
    """Gives each heading the id that links use: its words, joined by hyphens."""
    found = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            id = _heading_id(inline.content)
            opening.attrSet("id", id)
            shown = "".join(part.content for part in inline.children or () if part.type in ("text", "code_inline"))
            found.append(Heading(int(opening.tag[1:]), id, shown))
    return found


def _heading_id(text: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _link(target: str, file: Path) -> str:
    """Turns a link between files into one between pages; returns others unchanged."""
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or target.startswith("/") or not path:
        return target
    steps: list[str] = list(file.parts[:-1])
    for step in Path(path).parts:
        if step == "..":
            del steps[-1:]
        else:
            steps.append(step)
    if steps[:1] == [DEPLOY.name]:
        return "/docs/" + "/".join(steps)
    return _address(Path(*steps)) + hash_sign + anchor if path.endswith(".md") else target
