"""Renders a page's template, with the headers that keep foreign code out of it."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)

PAGE_HEADERS = {
    # Everything a page runs, shows or connects to is a file or an endpoint of this server; nothing is inline.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page(template: str, **values: object) -> HTMLResponse:
    """The template as a response; an unknown name in it is an error, not an empty place."""
    return HTMLResponse(_environment.get_template(template).render(values), headers=PAGE_HEADERS)
