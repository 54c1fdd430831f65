"""The static files of pages, below `/static`; `/static/pushq.js` is the JavaScript SDK, from its own package."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_STATIC = Path(__file__).resolve().parents[1] / "static"
_SDK = "pushq.js"


class _Assets(StaticFiles):
    """Revalidated on each use and answered 304 while unchanged: a new server never works with an old server's
    script."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        if path == _SDK:  # it has no secrets, and pages of other origins import it
            response.headers["Access-Control-Allow-Origin"] = "*"
        return response


def asset_routes() -> list[BaseRoute]:
    """One route for this package's files and the SDK's."""
    return [Mount("/static", _Assets(directory=_STATIC, packages=[("push", "js")]), name="static")]
