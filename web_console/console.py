"""The console's routes: every view for the roles that may see it, its export, its live part, and the forms' acts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from web_console.acts import ACTS
from web_console.door import (
    HOME,
    LOGIN,
    Door,
    Entered,
    Held,
    held_in,
    read_form,
    require_form_token,
    require_same_origin,
    safe_target,
    to_login,
)
from web_console.forms import Form
from web_console.limits import (
    LIVE_SECONDS,
    LIVE_SECONDS_MAX,
    LIVE_SHARE_MAX,
    LOOKS_REMEMBERED,
    STREAMS_MAX,
    STREAMS_PER_SESSION_MAX,
    STREAMS_PER_TENANT_MAX,
)
from web_console.pages.refilled import refilled
from web_console.pages.render import CONSOLE_HEADERS, console_page, live_part
from web_console.server import Server
from web_console.tables import Table, as_csv, as_json
from web_console.views import VIEWS, View
from web_console.visit import Problem, SignedOut, Visit

log = structlog.get_logger("pushq.console")
Endpoint = Callable[[Request], Awaitable[Response]]

_LIVE_NO_MORE: Final = {401: "signed-out", 403: "gone", 404: "gone"}
"""Answers after which a live page has nothing more to show, and the event that it is sent."""


class Console:
    """The console of one server: its routes, and the count of live pages."""

    def __init__(self, server: Server, version: str) -> None:
        self._door = Door(server, version)
        self._version = version
        self._streams: Counter[str] = Counter()
        """Open live pages by tenant."""
        self._views = [(view, Route(view.path, _nothing)) for view in VIEWS]

    def routes(self) -> list[BaseRoute]:
        pages = [Route(view.path, self._guarded(self._page(view))) for view in VIEWS]
        return [
            Route(LOGIN, self._guarded(self._door.login_page)),
            Route(LOGIN, self._guarded(self._login), methods=["POST"]),
            Route("/console/logout", self._guarded(self._door.logout), methods=["POST"]),
            Route("/console/live", self._guarded(self._live)),
            Route("/console/do/{act}", self._guarded(self._act), methods=["POST"]),
            *pages,
            Route("/console/{rest:path}", self._guarded(self._unknown)),
        ]

    # ------------------------------------------------------------------------------------------------------ pages

    def _page(self, view: View) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            visit = await self._door.visit(request)
            if visit is None:
                return to_login(request)
            values = await self._load(view, visit)
            wanted = request.query_params.get("format")
            table = values.get("table")
            if wanted is not None and isinstance(table, Table):
                return _export(table, wanted, view.name)
            notice, visit.session.notice = visit.session.notice, None
            return console_page(f"console/{view.template}", {**values, "notice": notice}, values.get("status", 200))

        return endpoint

    async def _unknown(self, request: Request) -> Response:
        """Answers an address of the console without a page: a browser with a page, others as outside the console."""
        path = request.url.path[:200]
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404, f"there is no page {path!r}; start at /")
        raise Problem(404, "Not found", "not-found", f"the console has no page {path!r}")

    def _frame(self, visit: Visit, title: str) -> dict[str, Any]:
        """What the frame needs around a page that is no view."""
        menu = [one for one in VIEWS if one.in_menu and visit.may_see(one.name)]
        return {"visit": visit, "view": None, "title": title, "menu": menu, "version": self._version, "notice": None}

    async def _load(self, view: View, visit: Visit) -> dict[str, Any]:
        if not visit.may_see(view.name):
            raise Problem(403, "Forbidden", "forbidden", f"{view.title} is not available to the role {visit.role}")
        here = visit.path + (f"?{_encoded(visit)}" if visit.query else "")
        values: dict[str, Any] = {
            **self._frame(visit, view.title),
            "view": view,
            "cli": view.cli.replace("{0}", visit.params[0] if visit.params else ""),
            "here": here,
            "table": None,
        }
        return {**values, **await view.load(visit)}

    async def _live(self, request: Request) -> Response:
        """Streams the live part of the page named in the query."""
        target = urlsplit(safe_target(request.query_params.get("page")))
        scope = {"type": "http", "method": "GET", "path": target.path, "headers": []}
        view, params = self._find(scope)
        visit = await self._door.visit(request, is_seen=False)
        if visit is None:
            raise Problem(401, "Signed out", "unauthenticated", "sign in again")
        if view is None or not view.is_live:
            raise Problem(404, "Not found", "not-found", "that page has no live updates")
        if (
            self._streams.total() >= STREAMS_MAX
            or self._streams[visit.caller.tenant] >= STREAMS_PER_TENANT_MAX
            or visit.session.streams >= STREAMS_PER_SESSION_MAX
        ):
            raise Problem(429, "Too many", "too-many-connections", "too many live pages are open; close some")
        query = dict(QueryParams(target.query))

        async def look() -> str | None:
            now = await self._door.visit(request, is_seen=False)
            if now is None:
                return None
            there = Visit(now.server, now.session, now.role, now.address, target.path, query, params)
            return live_part(f"console/{view.template}", await self._load(view, there))

        return _LivePage(watched(look), leave=self._entered(visit))

    def _entered(self, visit: Visit) -> Callable[[], None]:
        """Counts a live page; the returned call counts it out."""
        session, tenant = visit.session, visit.caller.tenant
        self._streams[tenant] += 1
        session.streams += 1

        def leave() -> None:
            self._streams[tenant] -= 1
            if not self._streams[tenant]:
                del self._streams[tenant]
            session.streams -= 1

        return leave

    def _find(self, scope: dict[str, Any]) -> tuple[View | None, tuple[str, ...]]:
        for view, route in self._views:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return view, tuple(str(value) for value in found["path_params"].values())
        return None, ()

    # ------------------------------------------------------------------------------------------------------- acts

    async def _act(self, request: Request) -> Response:
        require_same_origin(request)
        visit = await self._door.visit(request)
        form, word = await read_form(request), str(request.path_params["act"])
        back = safe_target(form.get("back"))
        if visit is None:
            return await self._signed_out(request, Held(word, form), back)
        try:
            require_form_token(visit.session, form)
        except Problem as problem:
            return await self._refused(visit, back, word, form, problem)
        name = word.replace("-", " ")
        act = ACTS.get(name)
        if act is None:
            raise Problem(404, "Not found", "not-found", "unknown action")
        if not visit.may_do(name):
            raise Problem(403, "Forbidden", "forbidden", f"{name} is not available to the role {visit.role}")
        try:
            done = await act(visit, form)
        except SignedOut:
            return await self._signed_out(request, Held(word, form), back)
        except Problem as problem:
            return await self._refused(visit, back, word, form, problem)
        if done.secret is not None:
            values = {**self._frame(visit, done.notice), "done": done, "back": back}
            return console_page("console/secret.html", values)
        visit.session.notice = ("bad" if done.is_bad else "good", done.notice)
        return RedirectResponse(done.target or back, 303, headers=CONSOLE_HEADERS)

    async def _login(self, request: Request) -> Response:
        require_same_origin(request)
        form = await read_form(request)
        entered = await self._door.login(request, form)
        if isinstance(entered, Response):
            return entered
        target, held = safe_target(form.get("next")), held_in(form)
        if held is not None:
            return await self._shown_again(request, entered, held, target)
        return self._door.give_cookie(request, RedirectResponse(target, 303, headers=CONSOLE_HEADERS), entered)

    async def _signed_out(self, request: Request, held: Held, back: str) -> Response:
        """Answers a form that came without a session with the sign-in form, which keeps what was typed."""
        entered = await self._door.dev_entry(request)
        if entered is not None:
            return await self._shown_again(request, entered, held, back)
        wrong = "Your session expired and nothing was changed. Sign in to see what you entered again."
        return self._door.login_form(back, wrong, 401, held)

    async def _shown_again(self, request: Request, entered: Entered, held: Held, back: str) -> Response:
        detail = "your session had expired, so nothing was changed; check the form and submit it again"
        over = Problem(401, "Signed out", "unauthenticated", detail)
        page = await self._refused(entered.visit, back, held.act, held.form, over)
        return self._door.give_cookie(request, page, entered)

    async def _refused(self, visit: Visit, back: str, act: str, form: Form, problem: Problem) -> Response:
        """The form's page, with what was typed in it and what is wrong with it."""
        is_stale = problem.code == "precondition-failed"
        said = f"Nothing was saved: {problem.detail.partition(';')[0]}." if is_stale else _said(problem)
        notice = ("bad", said)
        target = urlsplit(back)
        view, params = self._find({"type": "http", "method": "GET", "path": target.path, "headers": []})
        if view is not None:
            there = replace(visit, path=target.path, query=dict(QueryParams(target.query)), params=params)
            try:
                values = await self._load(view, there) | {"notice": notice, "is_stale": is_stale}
            except Problem:
                pass  # that page is gone meanwhile: the redirect's page shows the error
            else:
                fill = partial(refilled, act=act, form=form, findings=problem.findings, is_stale=is_stale)
                return console_page(f"console/{view.template}", values, problem.status, changed=fill)
        visit.session.notice = notice
        return RedirectResponse(back if view is None else HOME, 303, headers=CONSOLE_HEADERS)

    # ----------------------------------------------------------------------------------------------------- errors

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            try:
                return await endpoint(request)
            except SignedOut:
                return to_login(request)
            except Problem as problem:
                return await self._problem_page(request, problem)
            except HTTPException:
                raise
            except Exception:
                log.exception("a page failed", method=request.method, path=request.url.path)
                ours = Problem(500, "Internal error", "internal", "this is a server error; see the server log")
                return await self._problem_page(request, ours)

        return guarded

    async def _problem_page(self, request: Request, problem: Problem) -> Response:
        """The error as a page, with the menu for whoever is signed in."""
        try:
            visit = await self._door.visit(request, is_seen=False)
        except Problem:
            visit = None  # nobody can tell now who is signed in
        around = {"version": self._version} if visit is None else self._frame(visit, problem.title)
        template = "console/problem.html" if visit is None else "console/problem_framed.html"
        return console_page(template, {**around, "problem": problem}, problem.status)


def _said(problem: Problem) -> str:
    return f"{problem.title} ({problem.code}): {problem.detail}"


class _LivePage(EventSourceResponse):
    """Counts the live page out at its end, even if the browser had gone before it began."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], *, leave: Callable[[], None]) -> None:
        headers = {**CONSOLE_HEADERS, "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, ping=15)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def watched(look: Callable[[], Awaitable[str | None]]) -> AsyncIterator[ServerSentEvent]:
    """Yields what `look` returns, whenever it has changed; ends when the session is over or the page is gone.

    A look that fails otherwise yields nothing: the page shows that it is stale, and the next look may succeed.
    """
    shown = ""
    costs_s: deque[float] = deque(maxlen=LOOKS_REMEMBERED)
    while True:
        began = time.thread_time()
        over = ""
        part: str | None = None
        try:
            part = await look()
            over = "signed-out" if part is None else ""
        except SignedOut:
            over = "signed-out"
        except Problem as problem:
            over = _LIVE_NO_MORE.get(problem.status, "")
        if over:
            yield ServerSentEvent(event=over, data="-")
            return
        # While a look waits, other work uses the thread: the cheapest of several looks measures what one costs.
        costs_s.append(time.thread_time() - began)
        pause_s = min(LIVE_SECONDS_MAX, max(LIVE_SECONDS, min(costs_s) / LIVE_SHARE_MAX))
        if part is not None:
            if part != shown:
                shown = part
                yield ServerSentEvent(data=part)
            yield ServerSentEvent(event="looked", data=f"{pause_s:.1f}")
        await _pause(pause_s)


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _encoded(visit: Visit) -> str:
    return str(QueryParams(dict(visit.query)))


async def _nothing(request: Request) -> Response:
    raise AssertionError("only asked whether it matches")


def _export(table: Table, wanted: str, name: str) -> Response:
    kinds: dict[str, tuple[str, Callable[[Table], str | bytes]]] = {
        "json": ("application/json", as_json),
        "csv": ("text/csv; charset=utf-8", as_csv),
    }
    if wanted not in kinds:
        raise Problem(400, "Invalid request", "invalid-request", f"format is {wanted[:20]!r}; it is json or csv")
    media_type, export = kinds[wanted]
    file = f"{name.replace(' ', '-')}.{wanted}"
    headers = {**CONSOLE_HEADERS, "Content-Disposition": f'attachment; filename="{file}"'}
    return Response(export(table), media_type=media_type, headers=headers)
