"""The demo of `--dev`: the page at `/demo`, the credential it connects with, and the button that kills this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from web_console.pages.render import page


def kill_this_process() -> None:
    """SIGKILL to this process: no handler, no flush, no close, like a power cut or an out-of-memory kill."""
    os.kill(os.getpid(), signal.SIGKILL)


def demo_routes(token: Callable[[], Awaitable[str]], crash: Callable[[], None], *, version: str) -> list[BaseRoute]:
    """The demo's routes; the gateway adds them under `--dev` only."""

    async def demo(request: Request) -> Response:
        return page("demo.html", version=version)

    async def demo_token(request: Request) -> Response:
        require_own_page(request)
        return JSONResponse({"token": await token()}, headers={"Cache-Control": "no-store"})

    async def demo_crash(request: Request) -> Response:
        require_own_page(request)
        crash()
        return Response(status_code=204)  # a `crash` that a test replaced returns; SIGKILL does not

    return [
        Route("/demo", demo, name="demo"),
        Route("/demo/token", demo_token, methods=["POST"]),
        Route("/demo/crash", demo_crash, methods=["POST"]),
    ]


def require_own_page(request: Request) -> None:
    """Raises 403 for a request that does not come from a page of this server.

    A browser names the origin of each POST, so no foreign page can crash the server or get a credential. The host must
    be a loopback name too: a foreign name that resolves to 127.0.0.1 (DNS rebinding) matches its own origin.
    """
    headers = request.headers
    is_ours = headers.get("origin") == f"{request.url.scheme}://{headers.get('host')}"
    if not is_ours or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HTTPException(403, "only the demo page of this server may do this")
    if not is_loopback(request.url.hostname or ""):
        raise HTTPException(403, f'the demo answers on localhost, not on "{request.url.hostname}"')


def is_loopback(host: str) -> bool:
    """Whether a host name can only mean this machine (RFC 6761 section 6.3 for `localhost` and names below it)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
