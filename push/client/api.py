"""Authenticated calls of the HTTP API: sends a request, returns its JSON or raises a typed error."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec

from push.client.config import Limits
from push.client.discover import Key, find_tls, find_url, reason, redirected, resolve_key, without_secrets
from push.client.errors import NOT_PUSHQ, ApiError, OutcomeUnknown, Problem, Unavailable, api_error, problem_of
from push.client.transports.addresses import Addresses, addressed, trusted

JsonObject = dict[str, Any]
CONNECTIONS = httpx2.Limits(max_connections=100, max_keepalive_connections=20)


class Api:
    """A client of the HTTP API, to be used with `async with`.

    `unix_socket` sends everything over `DIR/admin.sock` instead of TCP: some destructive calls work only there.
    """

    def __init__(
        self,
        url: str | None = None,
        key: Key = None,
        *,
        unix_socket: Path | str | None = None,
        timeout_s: float = Limits().http_timeout_s,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._key = key
        base = "http://localhost" if unix_socket is not None else find_url(url)
        self._where = without_secrets(base) if unix_socket is None else str(unix_socket)
        given = find_tls(tls)
        transport: httpx2.AsyncBaseTransport | None
        if unix_socket is not None:
            transport = httpx2.AsyncHTTPTransport(uds=str(unix_socket), verify=trusted(base, None))
        else:
            transport = addressed(Addresses(base), base, Limits(), tls=given, connections=CONNECTIONS)
        self._http = httpx2.AsyncClient(
            base_url=base, transport=transport, timeout=timeout_s, verify=given or True, limits=CONNECTIONS
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx2.Response:
        """One authenticated call to any path. Raises `ApiError` for a status of 400 and above, and for an answer that
        is not Pushq's: a redirect, which is not followed, and an HTML page in answer to a change."""
        response = await self.raw(
            method, path, json=json, content=content, params=params, headers=headers, timeout_s=timeout_s
        )
        if response.status_code >= 400:
            raise api_error(problem_of(response.content, response.status_code, response.headers))
        is_page = response.headers.get("content-type", "").startswith("text/html")
        if response.status_code >= 300 or (is_page and method != "GET"):
            raise _not_pushq(response)
        return response

    async def raw(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx2.Response:
        """As `request`, but returns every status: for health paths, whose 503 is an answer."""
        sent = dict(headers or {})
        if json is not None:
            content = msgspec.json.encode(json)
            sent.setdefault("Content-Type", "application/json")
        if (token := await resolve_key(self._key)) is not None:
            sent.setdefault("Authorization", f"Bearer {token}")
        timeout = httpx2.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            return await self._http.request(method, path, content=content, params=params, headers=sent, timeout=timeout)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Unavailable(f"no server at {self._where}: {reason(error)}") from error
        except httpx2.RequestError as error:
            raise OutcomeUnknown(f"{method} {path} at {self._where} got no response: {reason(error)}") from error

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> JsonObject:
        """As `request`, but returns the answer's JSON object."""
        return decoded(await self.request(method, path, json=json, params=params, headers=headers, timeout_s=timeout_s))


def decoded(response: httpx2.Response) -> JsonObject:
    """The answer's JSON object; empty for an answer without a body."""
    try:
        value = msgspec.json.decode(response.content) if response.content else {}
    except msgspec.DecodeError:
        raise _not_pushq(response) from None
    return value if isinstance(value, dict) else {"value": value}


def _not_pushq(response: httpx2.Response) -> ApiError:
    location = response.headers.get("location") if response.is_redirect else None
    root = str(response.request.url.copy_with(raw_path=b"/")).rstrip("/")
    detail = redirected(root, location, "is not a Pushq server")
    return api_error(Problem(status=response.status_code, code=NOT_PUSHQ, detail=detail))


def given(**fields: Any) -> JsonObject:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
