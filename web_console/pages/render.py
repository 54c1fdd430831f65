"""Renders a page's template, with the headers that keep foreign code out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from web_console import tables, wording

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


@cache
def templates() -> Environment:
    """The template environment, made for the first page: a server starts without compiling the pages' shared
    templates."""
    made = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
    made.globals.update(
        write=wording.write,
        number=wording.number,
        plural=wording.plural,
        size=wording.size,
        age=wording.age,
        rate=wording.rate,
        line_points=wording.line_points,
        page_of=tables.page_of,
    )
    made.globals["m"] = made.get_template("console/macros.html").module
    return made


PAGE_HEADERS = {
    # Everything a page runs, shows or connects to is a file or an endpoint of this server; nothing is inline.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page(template: str, **values: object) -> HTMLResponse:
    """Renders a template as a response; an unknown name in it is an error, not an empty text."""
    return HTMLResponse(templates().get_template(template).render(values), headers=PAGE_HEADERS)


CONSOLE_HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    # With no-referrer a browser would not say which origin a form comes from.
    "Referrer-Policy": "same-origin",
}


def console_page(
    template: str,
    values: Mapping[str, object],
    status: int = 200,
    *,
    changed: Callable[[str], str] = str,
) -> HTMLResponse:
    """Renders a console page. `changed` gets the rendered page, and returns the one to send."""
    text = changed(templates().get_template(template).render(values))
    return HTMLResponse(text, status, headers=CONSOLE_HEADERS)


def live_part(template: str, values: Mapping[str, object]) -> str:
    """The part of a page that changes while it is open."""
    found = templates().get_template(template)
    return "".join(found.blocks["live"](found.new_context(dict(values))))
