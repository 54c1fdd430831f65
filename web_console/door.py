"""Sign-in and sign-out of the console, the session cookie, and the defence against forms of other sites (CSRF)."""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from web_console.limits import (
    CREDENTIAL_CHARS_MAX,
    FORM_BYTES_MAX,
    FORM_FIELDS_MAX,
    HELD_FORM_CHARS_MAX,
    SESSION_SECONDS_MAX,
)
from web_console.pages.demo import is_loopback
from web_console.pages.render import CONSOLE_HEADERS, console_page
from web_console.roles import role_of
from web_console.server import Caller, Refused, Server
from web_console.sessions import Attempts, Session, Sessions
from web_console.visit import Problem, Visit

log = structlog.get_logger("pushq.console")

HOME: Final = "/console"
LOGIN: Final = "/console/login"
_COOKIE: Final = "pushq_console"
_COOKIE_TLS: Final = "__Host-pushq_console"
_MULTIPART: Final = "multipart/form-data"
_SIGNED_OUT: Final = "signed_out"
"""Query parameter of the sign-in form: after a sign-out, `--dev` does not sign in again at once."""


class Entered(NamedTuple):
    """Somebody has signed in."""

    visit: Visit
    secret: str
    """The cookie's."""


class Held(NamedTuple):
    """A form that was sent without a session, for its page to show it again after the sign-in."""

    act: str
    form: dict[str, str]

    @property
    def text(self) -> str:
        return urlencode({name: value for name, value in self.form.items() if name != "form_token"})


@dataclass(slots=True)
class Door:
    """Sign-ins and sessions of one console."""

    server: Server
    version: str
    sessions: Sessions = field(default_factory=Sessions)
    attempts: Attempts = field(default_factory=Attempts)

    # --------------------------------------------------------------------------------------------------- sessions

    async def visit(self, request: Request, *, is_seen: bool = True) -> Visit | None:
        """The visit of the cookie's session; None if it is over, or its credential is no longer valid."""
        secret = request.cookies.get(_cookie_name(request))
        session = self.sessions.find(secret, time.monotonic(), is_seen=is_seen) if secret else None
        if session is None or secret is None:
            return None
        try:
            caller = await self.server.identify(session.credential)
        except Refused:
            self.sessions.end(secret)
            return None
        session.caller = caller
        return self._visit(request, session, caller)

    def _visit(self, request: Request, session: Session, caller: Caller) -> Visit:
        return Visit(
            self.server,
            session,
            role_of(caller.scopes),
            _address(request),
            request.url.path,
            dict(request.query_params),
            tuple(str(value) for value in request.path_params.values()),
        )

    def begin(self, request: Request, caller: Caller, credential: str) -> Entered:
        secret = secrets.token_urlsafe(32)
        session = self.sessions.begin(
            caller, credential, secret=secret, form_token=secrets.token_urlsafe(24), now_s=time.monotonic()
        )
        return Entered(self._visit(request, session, caller), secret)

    def give_cookie(self, request: Request, response: Response, entered: Entered) -> Response:
        is_tls = request.url.scheme == "https"
        response.set_cookie(
            _cookie_name(request),
            entered.secret,
            max_age=SESSION_SECONDS_MAX,
            path="/" if is_tls else HOME,
            secure=is_tls,
            httponly=True,
            samesite="strict",
        )
        return response

    # ---------------------------------------------------------------------------------------------------- sign-in

    async def login_page(self, request: Request) -> Response:
        target = safe_target(request.query_params.get("next"))
        entered = None if _SIGNED_OUT in request.query_params else await self.dev_entry(request)
        if entered is not None:
            return self.give_cookie(request, RedirectResponse(target, 303, headers=CONSOLE_HEADERS), entered)
        return self.login_form(target)

    async def dev_entry(self, request: Request) -> Entered | None:
        """The sign-in by itself under `--dev`; otherwise None."""
        dev = self.server.dev_credential()
        if dev is None or not is_loopback(request.url.hostname or ""):
            return None
        return self.begin(request, await self.server.identify(dev), dev)

    def login_form(self, target: str, wrong: str = "", status: int = 200, held: Held | None = None) -> Response:
        kept = held if held is not None and len(held.text) <= HELD_FORM_CHARS_MAX else None
        values = {"target": target, "wrong": wrong, "held": kept, "version": self.version}
        return console_page("console/login.html", values, status=status)

    async def login(self, request: Request, form: dict[str, str]) -> Response | Entered:
        target, address, held = safe_target(form.get("next")), _address(request), held_in(form)
        if not self.attempts.may_try(address, time.monotonic()):
            response = self.login_form(
                target, "Too many failed sign-ins from this address. Try again in a minute.", 429, held
            )
            response.headers["Retry-After"] = "60"
            return response
        credential = form.get("credential", "").strip()
        try:
            if not credential or len(credential) > CREDENTIAL_CHARS_MAX:
                raise Refused("give an API key (pushq_…) or a JWT")
            caller = await self.server.identify(credential)
        except Refused as refusal:
            self.attempts.refused(address, time.monotonic())
            log.warning("sign-in refused", address=address, reason=str(refusal))
            return self.login_form(target, f"{str(refusal)[:1].upper()}{str(refusal)[1:]}.", 401, held)
        await self.server.write_down(caller, "console.login", address)
        return self.begin(request, caller, credential)

    async def logout(self, request: Request) -> Response:
        require_same_origin(request)
        name = _cookie_name(request)
        session = self.sessions.end(request.cookies.get(name, ""))
        if session is not None:
            try:
                await self.server.write_down(session.caller, "console.logout", _address(request))
            except Problem as problem:  # the session is over all the same
                log.warning("a sign-out could not be written down", principal=session.caller.id, error=problem.detail)
        is_dev = self.server.dev_credential() is not None
        target = f"{LOGIN}?{_SIGNED_OUT}" if is_dev else LOGIN
        response = RedirectResponse(target, 303, headers=CONSOLE_HEADERS)
        is_tls = request.url.scheme == "https"
        response.delete_cookie(name, path="/" if is_tls else HOME, secure=is_tls, httponly=True, samesite="strict")
        return response


def held_in(form: dict[str, str]) -> Held | None:
    """The form that a sign-in form carries."""
    if not form.get("act"):
        return None
    return Held(form["act"], dict(parse_qsl(form.get("held", ""), keep_blank_values=True)))


def to_login(request: Request) -> Response:
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = here if request.method == "GET" else HOME
    return RedirectResponse(f"{LOGIN}?next={quote(target, safe='')}", 303, headers=CONSOLE_HEADERS)


def safe_target(text: str | None) -> str:
    """The address to go to after signing in: a page of the console, never another site."""
    if text is None or len(text) > 2000 or not text.isprintable() or "\\" in text:
        return HOME
    try:
        parts = urlsplit(text)
    except ValueError:
        return HOME
    is_ours = not parts.scheme and not parts.netloc and (parts.path == HOME or parts.path.startswith(f"{HOME}/"))
    return text if is_ours and not parts.path.startswith(LOGIN) else HOME


def require_same_origin(request: Request) -> None:
    """Refuses a form of another site. A proxy may speak TLS where this server does not, so only the host is
    compared."""
    headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site not in (None, "same-origin"):
        raise Problem(403, "Forbidden", "forbidden", "this form can only be submitted from a page of this console")
    if origin is None or _host(origin) != headers.get("host"):
        raise Problem(403, "Forbidden", "forbidden", "this form can only be submitted from a page of this console")


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def require_form_token(session: Session, form: dict[str, str]) -> None:
    if not hmac.compare_digest(form.get("form_token", "").encode(), session.form_token.encode()):
        detail = "the form belongs to another session, so nothing was changed; check it and submit it again"
        raise Problem(403, "Forbidden", "forbidden", detail)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; the last one counts if several have one name. Raises `Problem`."""
    if request.headers.get("content-type", "").startswith(_MULTIPART):
        raise Problem(415, "Unsupported media type", "unsupported-media-type", "forms must be URL-encoded")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise Problem(413, "Too large", "message-too-large", f"the maximum form size is {FORM_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX)
    except ValueError:
        raise Problem(400, "Invalid request", "invalid-request", "the form cannot be parsed") from None
    return dict(pairs)


def _cookie_name(request: Request) -> str:
    return _COOKIE_TLS if request.url.scheme == "https" else _COOKIE


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""
