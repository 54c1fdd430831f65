"""One request of a signed-in caller to a page, with access to the API on the caller's account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from web_console.roles import Role, may_do, may_see
from web_console.server import Caller, QueueRow, Refused, Reply, Server
from web_console.sessions import Session


class Finding(NamedTuple):
    """One error in a request."""

    pointer: str
    """RFC 6901 pointer to the field, such as `/limit`."""
    detail: str


class Problem(Exception):
    """A refusal by the API, or by the console itself, as the page shows it."""

    def __init__(
        self,
        status: int,
        title: str,
        code: str,
        detail: str,
        trace_id: str | None = None,
        *,
        findings: tuple[Finding, ...] = (),
    ) -> None:
        super().__init__(detail)
        self.status, self.title, self.code, self.detail, self.trace_id = status, title, code, detail, trace_id
        self.findings = findings


class SignedOut(Exception):
    """The credential is no longer valid: the session is over."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A page's request: its path and query, the caller's session and role."""

    server: Server
    session: Session
    role: Role
    address: str
    path: str
    query: Mapping[str, str]
    params: tuple[str, ...] = ()

    @property
    def caller(self) -> Caller:
        return self.session.caller

    def may_see(self, view: str) -> bool:
        return may_see(self.role, view)

    def may_do(self, act: str) -> bool:
        return may_do(self.role, act)

    async def ask(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Reply:
        """One request to the API. Raises `Problem` for every refusal, and `SignedOut`."""
        pairs = [(name.rstrip("_"), str(value)) for name, value in query.items() if value not in (None, "")]
        reply = await self.server.ask(
            self.session.credential,
            self.address,
            method,
            path,
            query=pairs,
            body=b"" if body is None else msgspec.json.encode(body),
            headers=tuple((headers or {}).items()),
        )
        if reply.status == 401:
            raise SignedOut
        if reply.status >= 400:
            raise _problem(reply)
        return reply

    async def get(self, path: str, **query: Any) -> Any:
        return (await self.ask("GET", path, **query)).json()

    async def maybe(self, path: str, **query: Any) -> Any:
        """The answer; None if there is none, or the caller may not see it."""
        try:
            return await self.get(path, **query)
        except Problem as problem:
            if problem.status in (400, 403, 404):
                return None
            raise

    async def every(self, path: str, rows_max: int, **query: Any) -> list[Any]:
        """The items of all pages of a list, up to `rows_max`."""
        items: list[Any] = []
        cursor: str | None = None
        while len(items) < rows_max:
            page = await self.get(path, limit=min(1000, rows_max - len(items)), cursor=cursor, **query)
            items += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        return items

    async def queues(self) -> list[QueueRow]:
        try:
            return await self.server.queues(self.session.credential)
        except Refused:
            raise SignedOut from None


def _problem(reply: Reply) -> Problem:
    try:
        told = reply.json()
        findings = tuple(Finding(one["pointer"], one["detail"]) for one in told.get("errors", ()))
        return Problem(
            reply.status, told["title"], told["code"], told["detail"], told.get("trace_id"), findings=findings
        )
    except (msgspec.MsgspecError, KeyError, TypeError):
        return Problem(reply.status, "Refused by the server", "internal", f"it answered {reply.status}")


def queue_path(name: str, *rest: str) -> str:
    """The API's path of a queue; each part is a name without `/`, which no name contains."""
    return "/".join(("/v1/queues", name, *rest))


def page_path(*steps: str) -> str:
    """A path of the console; each part may have any characters."""
    return "/".join(("/console", *(quote(step, safe="") for step in steps)))
