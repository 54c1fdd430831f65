"""The demo's web page and its API: the state of processes and messages, and killing a process.

Requests need the token of this process and a host name of this machine; a kill must also come from a page of this
server.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.cluster_demo.keeper import Keeper, NoSuchPart
from gateway.cluster_demo.tally import Tally
from gateway.version import VERSION
from web_console.pages.assets import asset_routes
from web_console.pages.demo import is_loopback, require_own_page
from web_console.pages.render import page


@dataclass(frozen=True, slots=True)
class Demo:
    """What the page shows and controls."""

    keeper: Keeper
    tally: Tally
    token: str
    url: str
    """The URL for clients of the cluster."""
    clock: Callable[[], float] = time.monotonic


def create_demo_app(demo: Demo) -> Starlette:
    async def show(request: Request) -> Response:
        require_this_machine(request)
        return page("cluster_demo.html", version=VERSION)

    async def state(request: Request) -> Response:
        require_this_machine(request)
        require_token(request, demo.token)
        return JSONResponse(report(demo), headers={"Cache-Control": "no-store"})

    async def kill(request: Request) -> Response:
        require_own_page(request)
        require_token(request, demo.token)
        try:
            demo.keeper.kill(request.path_params["name"])
        except NoSuchPart as error:
            raise HTTPException(409, str(error)) from None
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/", show, name="page"),
            Route("/state", state, name="state"),
            Route("/parts/{name}/kill", kill, methods=["POST"]),
            *asset_routes(),
        ]
    )


def report(demo: Demo) -> dict[str, Any]:
    """The current state, as the page shows it."""
    now_s, tally = demo.clock(), demo.tally
    return {
        "url": demo.url,
        "confirmed": tally.confirmed,
        "received": tally.received,
        "under_way": tally.under_way(now_s),
        "missing": tally.missing(now_s),
        "doubled": tally.doubled,
        "again": tally.again,
        "per_second": round(tally.per_second(now_s)),
        "away_s": round(tally.away_s(now_s), 1),
        "longest_away_s": round(tally.longest_away_s, 1),
        "bars": tally.bars(now_s),
        "kills": [
            {"part": kill.part, "ago_s": round(now_s - kill.at_s, 1), "away_s": round(kill.away_s, 1)}
            for kill in tally.kills
        ],
        "parts": [msgspec.to_builtins(part) for part in demo.keeper.view()],
        "events": [msgspec.to_builtins(event) for event in demo.keeper.events],
    }


def require_this_machine(request: Request) -> None:
    """Raises 403 for foreign host names: one that resolves to 127.0.0.1 would let a foreign page read this one."""
    if not is_loopback(request.url.hostname or ""):
        raise HTTPException(403, f'the demo answers only on localhost, not on "{request.url.hostname}"')


def require_token(request: Request, token: str) -> None:
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(shown.encode(), token.encode()):
        raise HTTPException(401, "open the address printed by `pushq dev-cluster demo`: it contains the token")
