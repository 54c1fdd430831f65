"""Serves all paths outside `/v1`: health, metrics, API documents, docs and console. Only metrics may need a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote

import structlog
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.routing import Router as PageRouter
from starlette.types import Receive, Scope, Send

from backend_store.model import NotFound, PushqError
from gateway.api import cors, health
from gateway.api.http import Answer, problem_answer, write
from gateway.context import Gateway
from gateway.identity.metrics_access import needs_key
from push.problems import KINDS

log = structlog.get_logger("pushq.gateway")

Page = Callable[[Gateway, dict[str, str]], Awaitable[Answer]]
Metrics = Callable[[Gateway, str], Awaitable[Answer]]
"""Renders the metrics of a gateway for the request's `Accept`."""
Check = Callable[[Scope], Awaitable[None]]
METRICS: Final = "/metrics"

READ_ONLY: Final = b"GET, HEAD, OPTIONS"


class Site:
    """An ASGI application: our own read-only pages by exact path, then the console's routes."""

    def __init__(
        self,
        gateway: Gateway,
        metrics: Metrics,
        pages: dict[str, Page],
        console: Sequence[BaseRoute],
        require_operator: Check,
    ) -> None:
        self._gateway = gateway
        self._require_operator = require_operator
        self._metrics = metrics
        self._pages: dict[str, Page] = {
            "/livez": health.livez,
            "/readyz": health.readyz,
            "/lbz": health.lbz,
            **pages,
        }
        self._console = PageRouter(console, redirect_slashes=False, default=_nothing_here)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] in self._pages or scope["path"] == METRICS:
                await write(send, await self._show(scope))
            elif (short := self._without_slash(scope)) is not None:
                await write(send, Answer(308, headers=((b"location", short),), content_type=None))
            else:
                scope["app"] = self  # makes the router raise its errors instead of answering in plain text
                await self._console(scope, receive, send)
        except HTTPException as error:
            await write(send, problem_answer(_translated(error)))
        except PushqError as error:
            await write(send, problem_answer(error))
        except Exception:
            log.exception("request failed", method=scope["method"], path=scope["path"])
            await write(send, problem_answer(PushqError("internal error; see the log")))

    def _without_slash(self, scope: Scope) -> bytes | None:
        """The location of a page requested with a trailing slash; None if there is no such page."""
        path: str = scope["path"].rstrip("/")
        short: bytes = scope["raw_path"].rstrip(b"/")
        if path in ("", scope["path"]) or scope["method"] not in ("GET", "HEAD"):
            return None
        if unquote(short.decode("latin-1")) != path:  # a slash is written `%2F`: it would redirect to itself for ever
            return None
        if path not in self._pages and path != METRICS:
            asked = {**scope, "path": path}
            if all(route.matches(asked)[0] is not Match.FULL for route in self._console.routes):
                return None
        query: bytes = scope["query_string"]
        return short + b"?" + query if query else short

    async def _show(self, scope: Scope) -> Answer:
        method = scope["method"]
        if method == "OPTIONS":
            return Answer(204, headers=((b"allow", READ_ONLY),), content_type=None)
        if method not in ("GET", "HEAD"):
            allowed = READ_ONLY.decode()
            raise PushqError(
                f"{method} is not supported here; use {allowed}",
                code="method-not-allowed",
                headers=(("Allow", allowed),),
            )
        if scope["path"] == METRICS:
            if needs_key(self._gateway.settings, scope):
                await self._require_operator(scope)
            return await self._metrics(self._gateway, dict(scope["headers"]).get(b"accept", b"").decode("latin-1"))
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        answer = await self._pages[scope["path"]](self._gateway, query)
        # Documents and health contain nothing secret: a page of any origin may read them.
        return answer._replace(headers=(*answer.headers, *cors.granted(b"*")))


_LATER: Final = {
    "/demo": "the demo page needs a server started with --dev",
}


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    if (later := _LATER.get(scope["path"].rstrip("/"))) is not None:
        raise NotFound(later)
    raise NotFound(f"no such path: {scope['path'][:200]!r}; see / for links")


_CODES: Final = {404: "not-found", 405: "method-not-allowed", 401: "unauthenticated", 403: "forbidden"}


def _translated(error: HTTPException) -> PushqError:
    """An HTTP error of a page as a problem. A status without a code of its own becomes `invalid-request` or
    `internal`."""
    code = _CODES.get(error.status_code, "invalid-request" if error.status_code < 500 else "internal")
    headers = tuple((error.headers or {}).items())
    return PushqError(error.detail or KINDS[code].title, code=code, headers=headers)
