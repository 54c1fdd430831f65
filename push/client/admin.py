"""The HTTP API as one thin async class: what the command line and scripts use to manage queues, keys and tenants.

Answers are the server's JSON objects as they came. A refusal raises `ApiError` (or its subclass for 401, 403, 404,
413), an absent server `Unavailable`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx2
import msgspec

from push.client.config import Limits
from push.client.discover import Key, find_url, resolve_key
from push.client.errors import ApiError, OutcomeUnknown, Unavailable, api_error, problem_of

JsonObject = dict[str, Any]
MessageState = Literal["ready", "in_flight", "delayed", "dead"]


class Admin:
    """`async with Admin(url, key) as admin: await admin.create_queue("orders")`.

    `unix_socket` sends everything over `DIR/admin.sock` instead of TCP: some destructive calls work only there.
    """

    def __init__(
        self,
        url: str | None = None,
        key: Key = None,
        *,
        unix_socket: Path | str | None = None,
        timeout_s: float = Limits().http_timeout_s,
    ) -> None:
        self._key = key
        transport = None if unix_socket is None else httpx2.AsyncHTTPTransport(uds=str(unix_socket))
        base = "http://localhost" if unix_socket is not None else find_url(url)
        self._where = base if unix_socket is None else str(unix_socket)
        self._http = httpx2.AsyncClient(base_url=base, transport=transport, timeout=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # Queues

    async def create_queue(self, name: str, config: Mapping[str, Any] | None = None) -> JsonObject:
        """Create a queue, or find it there with the same config; `conflict` when its config differs."""
        return await self._json("PUT", _queue(name), json=dict(config or {}))

    async def list_queues(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page: `{"items": [...], "next": cursor or None}`."""
        return await self._json("GET", "/v1/queues", params=_given(limit=limit, cursor=cursor))

    async def each_queue(self) -> AsyncIterator[JsonObject]:
        """Every queue the key may view, page after page."""
        cursor: str | None = None
        while True:
            page = await self.list_queues(cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page.get("next")
            if cursor is None:
                return

    async def get_queue(self, name: str) -> JsonObject:
        """`{name, config, created_at, owner, stats}`."""
        return await self._json("GET", _queue(name))

    async def get_queue_etag(self, name: str) -> tuple[JsonObject, str]:
        """The queue and the `ETag` that `update_queue` needs to be safe against another's change."""
        response = await self.request("GET", _queue(name))
        return _decoded(response), response.headers.get("etag", "")

    async def update_queue(self, name: str, changes: Mapping[str, Any], *, etag: str | None = None) -> JsonObject:
        """Change config fields; without `etag` the present state is read first and must not change meanwhile."""
        if etag is None:
            _, etag = await self.get_queue_etag(name)
        return await self._json("PATCH", _queue(name), json=dict(changes), headers={"If-Match": etag})

    async def delete_queue(self, name: str, *, move_to: str | None = None, discard: bool = False) -> JsonObject:
        """Delete a queue; its rest is moved or discarded, and one of the two must be said."""
        params = {"confirm": name} | _given(move_to=move_to, discard="true" if discard else None)
        return await self._json("DELETE", _queue(name), params=params)

    async def purge_queue(self, name: str) -> JsonObject:
        """Start removing every message: the job `{id, state, done, total, rate_per_s, error}`."""
        return await self._json("POST", f"{_queue(name)}/purge", json={"confirm": name})

    async def get_purge(self, name: str, purge_id: str) -> JsonObject:
        """How far a purge is."""
        return await self._json("GET", f"{_queue(name)}/purges/{quote(purge_id, safe='')}")

    async def cancel_purge(self, name: str, purge_id: str) -> JsonObject:
        """Stop a purge where it is."""
        return await self._json("DELETE", f"{_queue(name)}/purges/{quote(purge_id, safe='')}")

    # Messages

    async def peek(
        self,
        name: str,
        *,
        state: MessageState | None = None,
        partition: int | None = None,
        id: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        contains: str | None = None,
        since: str | None = None,
        until: str | None = None,
        from_seq: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JsonObject:
        """Look without leasing: `{"items": [Message with state, without receipt], "next", "scanned"}`."""
        params = _given(
            state=state,
            partition=partition,
            id=id,
            key=key,
            contains=contains,
            since=since,
            until=until,
            from_seq=from_seq,
            limit=limit,
            cursor=cursor,
        )
        params |= {f"header.{header}": value for header, value in (headers or {}).items()}
        return await self._json("GET", f"{_queue(name)}/messages", params=params)

    async def publish(self, name: str, messages: Sequence[Mapping[str, Any]]) -> JsonObject:
        """Publish in the API's own shape: `{"messages": [{id, seq, partition, duplicate, error?}], "durability"}`."""
        return await self._json("POST", f"{_queue(name)}/messages", json={"messages": [dict(m) for m in messages]})

    async def publish_raw(
        self, name: str, body: bytes, *, content_type: str, headers: Mapping[str, str] | None = None
    ) -> JsonObject:
        """Publish one message whose body is the request's body, of any content type but `application/json`."""
        sent = {"Content-Type": content_type} | dict(headers or {})
        return _decoded(await self.request("POST", f"{_queue(name)}/messages", content=body, headers=sent))

    async def cancel_message(self, name: str, message_id: str) -> None:
        """Take back a message that is scheduled or ready."""
        await self.request("DELETE", f"{_queue(name)}/messages/{quote(message_id, safe='')}")

    async def receive(
        self,
        name: str,
        *,
        max: int = 10,
        wait_ms: int = 0,
        visibility_timeout_ms: int | None = None,
        group: str | None = None,
    ) -> list[JsonObject]:
        """Lease up to `max` messages, waiting up to `wait_ms` for the first; empty on time-out."""
        body = {"max": max, "wait_ms": wait_ms} | _given(visibility_timeout_ms=visibility_timeout_ms, group=group)
        answer = await self._json(
            "POST", f"{_queue(name)}/receive", json=body, timeout_s=wait_ms / 1000 + Limits().http_timeout_s
        )
        messages: list[JsonObject] = answer["messages"]
        return messages

    async def ack(self, name: str, receipts: Sequence[str]) -> list[JsonObject]:
        """Settle: `[{receipt, ok, error?}]` in the order asked."""
        return await self._settle(name, "ack", {"receipts": list(receipts)})

    async def nack(
        self, name: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str | None = None
    ) -> list[JsonObject]:
        """Give back, to be delivered again after `delay_ms`."""
        return await self._settle(name, "nack", {"receipts": list(receipts)} | _given(delay_ms=delay_ms, reason=reason))

    async def extend(self, name: str, receipts: Sequence[str], *, visibility_timeout_ms: int) -> list[JsonObject]:
        """Hold for `visibility_timeout_ms` from now."""
        return await self._settle(
            name, "extend", {"receipts": list(receipts), "visibility_timeout_ms": visibility_timeout_ms}
        )

    # Keys, tickets and tenants

    async def create_key(
        self, name: str, scopes: Sequence[str], *, tenant: str | None = None, expires_at: str | None = None
    ) -> JsonObject:
        """A new API key; its `key` is in this answer only."""
        body = {"name": name, "scopes": list(scopes)} | _given(tenant=tenant, expires_at=expires_at)
        return await self._json("POST", "/v1/keys", json=body)

    async def list_keys(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page of keys, without their secrets."""
        return await self._json("GET", "/v1/keys", params=_given(limit=limit, cursor=cursor))

    async def rotate_key(self, key_id: str, *, grace_ms: int) -> JsonObject:
        """A new secret for a key; the old one works for `grace_ms` more."""
        return await self._json("POST", f"/v1/keys/{quote(key_id, safe='')}/rotate", json={"grace_ms": grace_ms})

    async def delete_key(self, key_id: str) -> None:
        """Revoke a key."""
        await self.request("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    async def create_ticket(self, *, queue: str | None = None, scopes: Sequence[str] | None = None) -> JsonObject:
        """A one-use credential for a browser: `{ticket, expires_at}`."""
        return await self._json(
            "POST", "/v1/tickets", json=_given(queue=queue, scopes=None if scopes is None else list(scopes))
        )

    async def put_tenant(self, name: str, *, quotas: Mapping[str, Any] | None = None) -> JsonObject:
        """Create or change a tenant."""
        return await self._json(
            "PUT", f"/v1/tenants/{quote(name, safe='')}", json=_given(quotas=None if quotas is None else dict(quotas))
        )

    async def list_tenants(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page of tenants."""
        return await self._json("GET", "/v1/tenants", params=_given(limit=limit, cursor=cursor))

    async def get_tenant(self, name: str) -> JsonObject:
        """One tenant with its quotas."""
        return await self._json("GET", f"/v1/tenants/{quote(name, safe='')}")

    async def delete_tenant(self, name: str) -> None:
        """Remove a tenant that has nothing left."""
        await self.request("DELETE", f"/v1/tenants/{quote(name, safe='')}")

    # Anything else

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
        """One authenticated call to any path; answers of 400 and above raise `ApiError`."""
        response = await self.raw(
            method, path, json=json, content=content, params=params, headers=headers, timeout_s=timeout_s
        )
        if response.status_code >= 400:
            raise api_error(problem_of(response.content, response.status_code, response.headers))
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
        """As `request`, with every status returned: for health paths, whose 503 is an answer."""
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
            raise Unavailable(f"no server at {self._where}: {error or type(error).__name__}") from error
        except httpx2.TransportError as error:
            raise OutcomeUnknown(
                f"{method} {path} at {self._where} got no answer: {error or type(error).__name__}"
            ) from error

    async def _json(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> JsonObject:
        return _decoded(
            await self.request(method, path, json=json, params=params, headers=headers, timeout_s=timeout_s)
        )

    async def _settle(self, name: str, action: str, body: JsonObject) -> list[JsonObject]:
        answer = await self._json("POST", f"{_queue(name)}/{action}", json=body)
        results: list[JsonObject] = answer["results"]
        return results


def _queue(name: str) -> str:
    return f"/v1/queues/{quote(name, safe='')}"


def _given(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _decoded(response: httpx2.Response) -> JsonObject:
    value = msgspec.json.decode(response.content) if response.content else {}
    return value if isinstance(value, dict) else {"value": value}


__all__ = ["Admin", "ApiError", "JsonObject", "MessageState"]
