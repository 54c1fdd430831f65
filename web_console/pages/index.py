"""The page at `/`: says what runs here, with links."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from web_console.pages.render import page


def index_endpoint(*, dev: bool, version: str) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint; it links to the demo if there is one."""

    async def index(request: Request) -> Response:
        return page("index.html", dev=dev, version=version)

    return index
