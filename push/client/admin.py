"""The HTTP API as one thin async class: what the command line and scripts use to manage queues, keys and tenants.

Methods return the server's JSON objects unchanged. A refusal raises `ApiError` (or its subclass for 401, 403, 404,
413), an absent server `Unavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from push.client.api import Api, JsonObject, decoded, given
from push.client.arguments import check_part, check_queue
from push.client.config import Limits
from push.client.errors import ApiError
from push.client.times import Moment, time_text

MessageState = Literal["ready", "in_flight", "delayed", "dead"]
GroupMode = Literal["offsets", "leases"]
Position = Literal["earliest", "latest"] | Mapping[str, Any]
"""The position of a group: "earliest", "latest", `{"seq": n}` or `{"time": t}`."""

JOB_UNDER_WAY = frozenset({"pending", "running", "cancelling"})


class Admin(Api):
    """`async with Admin(url, key) as admin: await admin.create_queue("orders")`.

    `<queue>.dead` and `<queue>.late` are used like any other queue: peek into them, receive from them, purge them.
    """

    # Queues

    async def create_queue(self, name: str, config: Mapping[str, Any] | None = None) -> JsonObject:
        """Create a queue; nothing changes if it exists with the same config. Raises `ApiError` (`conflict`) if its
        config differs."""
        return await self.ask("PUT", _queue(name), json=dict(config or {}))

    async def list_queues(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page: `{"items": [...], "next": cursor or None}`."""
        return await self.ask("GET", "/v1/queues", params=given(limit=limit, cursor=cursor))

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
        return await self.ask("GET", _queue(name))

    async def get_queue_etag(self, name: str) -> tuple[JsonObject, str]:
        """The queue, and the `ETag` with which `update_queue` detects another client's change."""
        response = await self.request("GET", _queue(name))
        return decoded(response), response.headers.get("etag", "")

    async def update_queue(self, name: str, changes: Mapping[str, Any], *, etag: str | None = None) -> JsonObject:
        """Change config fields. `etag` is the state that the change is for; without it, the present state is read
        first."""
        if etag is None:
            _, etag = await self.get_queue_etag(name)
        return await self.ask("PATCH", _queue(name), json=dict(changes), headers={"If-Match": etag})

    async def delete_queue(self, name: str, *, move_to: str | None = None, discard: bool = False) -> JsonObject:
        """Delete a queue. `move_to` or `discard` says what happens to its remaining messages: one of the two is
        required."""
        params = {"confirm": name} | given(move_to=move_to, discard="true" if discard else None)
        return await self.ask("DELETE", _queue(name), params=params)

    async def purge_queue(self, name: str) -> JsonObject:
        """Start a purge, which removes every message. Returns the job `{id, state, done, total, rate_per_s, error}`."""
        return await self.ask("POST", f"{_queue(name)}/purge", json={"confirm": name})

    async def get_purge(self, name: str, purge_id: str) -> JsonObject:
        """The state of a purge."""
        return await self.ask("GET", f"{_queue(name)}/purges/{_part(purge_id)}")

    async def cancel_purge(self, name: str, purge_id: str) -> JsonObject:
        """Cancel a purge; what was removed stays removed."""
        return await self.ask("DELETE", f"{_queue(name)}/purges/{_part(purge_id)}")

    async def watch(self, job_path: str, *, every_s: float = 0.2) -> AsyncIterator[JsonObject]:
        """Poll a job `{id, state, done, total, rate_per_s, error}` every `every_s` seconds, until it has ended.

        `job_path` is its path: "/v1/queues/orders/purges/7", or the `Location` of the answer that started it.
        """
        while True:
            job = await self.ask("GET", job_path)
            yield job
            if job["state"] not in JOB_UNDER_WAY:
                return
            await asyncio.sleep(every_s)

    # Keys of encryption

    async def start_rotation(
        self, *, master_file: str | None = None, queues: Sequence[str] | None = None, all_queues: bool = False
    ) -> JsonObject:
        """Start to replace encryption keys: the master key by the one in a file of the server (over its socket only),
        and the data keys of some queues or of all. Returns the job."""
        body = given(master_file=master_file, queues=list(queues) if queues else None, all_queues=all_queues or None)
        return await self.ask("POST", "/v1/rotations", json=body)

    async def get_rotation(self, rotation_id: str) -> JsonObject:
        """The state of a rotation."""
        return await self.ask("GET", f"/v1/rotations/{_part(rotation_id)}")

    def watch_rotation(self, rotation_id: str, *, every_s: float = 0.2) -> AsyncIterator[JsonObject]:
        """Poll a rotation, until it has ended."""
        return self.watch(f"/v1/rotations/{_part(rotation_id)}", every_s=every_s)

    async def cancel_rotation(self, rotation_id: str) -> JsonObject:
        """Cancel a rotation; what was done stays."""
        return await self.ask("DELETE", f"/v1/rotations/{_part(rotation_id)}")

    # Dead letters

    async def start_redrive(
        self,
        name: str,
        *,
        to: str | None = None,
        reason: str | None = None,
        ids: Sequence[str] | None = None,
        header: Mapping[str, str] | None = None,
        older_than: Moment | None = None,
        rate_per_s: float | None = None,
    ) -> JsonObject:
        """Start a redrive, which moves dead letters back, each to the queue it died in, or all to the queue `to`.
        Returns the job.

        Moves only dead letters that match all given filters: why they died, their ids, their headers, dead since before
        a time. `rate_per_s` limits the load on the consumers.
        """
        body = _redrive(to, reason, ids, header, older_than) | given(rate_per_s=rate_per_s)
        return await self.ask("POST", f"{_queue(name)}/redrives", json=body)

    async def count_redrive(
        self,
        name: str,
        *,
        to: str | None = None,
        reason: str | None = None,
        ids: Sequence[str] | None = None,
        header: Mapping[str, str] | None = None,
        older_than: Moment | None = None,
    ) -> int:
        """How many messages `start_redrive` would move; nothing is changed."""
        body = _redrive(to, reason, ids, header, older_than) | {"dry_run": True}
        return int((await self.ask("POST", f"{_queue(name)}/redrives", json=body))["total"])

    async def get_redrive(self, name: str, redrive_id: str) -> JsonObject:
        """The state of a redrive."""
        return await self.ask("GET", f"{_queue(name)}/redrives/{_part(redrive_id)}")

    def watch_redrive(self, name: str, redrive_id: str, *, every_s: float = 0.2) -> AsyncIterator[JsonObject]:
        """Poll a redrive, until it has ended."""
        return self.watch(f"{_queue(name)}/redrives/{_part(redrive_id)}", every_s=every_s)

    async def cancel_redrive(self, name: str, redrive_id: str) -> JsonObject:
        """Cancel a redrive; what was moved stays moved."""
        return await self.ask("DELETE", f"{_queue(name)}/redrives/{_part(redrive_id)}")

    # Groups of a stream

    async def list_groups(self, name: str) -> list[JsonObject]:
        """`[{name, mode, position, lag: [{partition, position, end, lag}]}]`."""
        groups: list[JsonObject] = []
        cursor: str | None = None
        while True:
            page = await self.ask("GET", f"{_queue(name)}/groups", params=given(cursor=cursor))
            groups += page["items"]
            if (cursor := page.get("next")) is None:
                return groups

    async def put_group(
        self, name: str, group: str, *, position: Position | None = None, mode: GroupMode | None = None
    ) -> JsonObject:
        """Create a group, or move it: to "earliest", "latest", `{"seq": 42}` or `{"time": …}`."""
        if isinstance(position, Mapping) and isinstance(position.get("time"), datetime):
            position = {"time": time_text(position["time"])}
        return await self.ask("PUT", f"{_queue(name)}/groups/{_part(group)}", json=given(position=position, mode=mode))

    async def delete_group(self, name: str, group: str) -> None:
        """Delete a group with its offsets; the stream keeps its messages."""
        await self.ask("DELETE", f"{_queue(name)}/groups/{_part(group)}")

    async def group_lag(self, name: str, group: str) -> int:
        """How many messages the group has not consumed yet, over all partitions. Raises `KeyError` for an unknown
        group."""
        groups = {found["name"]: found for found in await self.list_groups(name)}
        return sum(part["lag"] for part in groups[group]["lag"])

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
        since: Moment | None = None,
        until: Moment | None = None,
        from_seq: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JsonObject:
        """Read messages without leasing: `{"items": [Message with state, without receipt], "next", "scanned"}`."""
        params = given(
            state=state,
            partition=partition,
            id=id,
            key=key,
            contains=contains,
            since=_text(since),
            until=_text(until),
            from_seq=from_seq,
            limit=limit,
            cursor=cursor,
        )
        params |= {f"header.{header}": value for header, value in (headers or {}).items()}
        return await self.ask("GET", f"{_queue(name)}/messages", params=params)

    async def each_message(self, name: str, **filters: Any) -> AsyncIterator[JsonObject]:
        """Every message that `peek` returns with these filters, page after page."""
        cursor: str | None = None
        while True:
            page = await self.peek(name, **filters, cursor=cursor)
            for item in page["items"]:
                yield item
            if (cursor := page.get("next")) is None:
                return

    async def publish(self, name: str, messages: Sequence[Mapping[str, Any]]) -> JsonObject:
        """Publish messages in the API's own form: `{"messages": [{id, seq, partition, duplicate, error?}],
        "durability"}`."""
        return await self.ask("POST", f"{_queue(name)}/messages", json={"messages": [dict(m) for m in messages]})

    async def publish_raw(
        self, name: str, body: bytes, *, content_type: str, headers: Mapping[str, str] | None = None
    ) -> JsonObject:
        """Publish one message whose body is the request's body, of any content type but `application/json`."""
        sent = {"Content-Type": content_type} | dict(headers or {})
        return decoded(await self.request("POST", f"{_queue(name)}/messages", content=body, headers=sent))

    async def cancel_message(self, name: str, message_id: str) -> None:
        """Cancel a message that is delayed or ready."""
        await self.request("DELETE", f"{_queue(name)}/messages/{_part(message_id)}")

    async def receive(
        self,
        name: str,
        *,
        max: int = 10,
        wait_ms: int = 0,
        visibility_timeout_ms: int | None = None,
        group: str | None = None,
    ) -> list[JsonObject]:
        """Lease up to `max` messages, waiting up to `wait_ms` for the first; empty if none came in time."""
        body = {"max": max, "wait_ms": wait_ms} | given(visibility_timeout_ms=visibility_timeout_ms, group=group)
        answer = await self.ask(
            "POST", f"{_queue(name)}/receive", json=body, timeout_s=wait_ms / 1000 + Limits().http_timeout_s
        )
        messages: list[JsonObject] = answer["messages"]
        return messages

    async def ack(self, name: str, receipts: Sequence[str]) -> list[JsonObject]:
        """Ack: `[{receipt, ok, error?}]` in the order of `receipts`."""
        return await self._settle(name, "ack", {"receipts": list(receipts)})

    async def nack(
        self, name: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str | None = None
    ) -> list[JsonObject]:
        """Nack: the messages are delivered again after `delay_ms`. Returns as `ack` does."""
        return await self._settle(name, "nack", {"receipts": list(receipts)} | given(delay_ms=delay_ms, reason=reason))

    async def extend(self, name: str, receipts: Sequence[str], *, visibility_timeout_ms: int) -> list[JsonObject]:
        """Extend the leases to `visibility_timeout_ms` from now. Returns as `ack` does."""
        return await self._settle(
            name, "extend", {"receipts": list(receipts), "visibility_timeout_ms": visibility_timeout_ms}
        )

    # Keys, tickets and tenants

    async def create_key(
        self, name: str, scopes: Sequence[str], *, tenant: str | None = None, expires_at: str | None = None
    ) -> JsonObject:
        """A new API key; its `key` is in this answer only."""
        body = {"name": name, "scopes": list(scopes)} | given(tenant=tenant, expires_at=expires_at)
        return await self.ask("POST", "/v1/keys", json=body)

    async def list_keys(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page of keys, without their secrets."""
        return await self.ask("GET", "/v1/keys", params=given(limit=limit, cursor=cursor))

    async def rotate_key(self, key_id: str, *, grace_ms: int) -> JsonObject:
        """A new secret for a key; the old one works for `grace_ms` more."""
        return await self.ask("POST", f"/v1/keys/{_part(key_id)}/rotate", json={"grace_ms": grace_ms})

    async def delete_key(self, key_id: str) -> None:
        """Revoke a key."""
        await self.request("DELETE", f"/v1/keys/{_part(key_id)}")

    async def create_ticket(self, *, queue: str | None = None, scopes: Sequence[str] | None = None) -> JsonObject:
        """A one-use credential for a browser: `{ticket, expires_at}`."""
        return await self.ask(
            "POST", "/v1/tickets", json=given(queue=queue, scopes=None if scopes is None else list(scopes))
        )

    async def put_tenant(
        self, name: str, *, quotas: Mapping[str, Any] | None = None, etag: str | None = None
    ) -> JsonObject:
        """Create a tenant, or set its quotas to exactly these; without `quotas`, the quotas that it has stay. `etag` is
        the state that the change is for: if it has changed, `ApiError` (`precondition-failed`) is raised."""
        body = given(quotas=None if quotas is None else dict(quotas))
        headers = None if etag is None else {"If-Match": etag}
        return await self.ask("PUT", f"/v1/tenants/{_part(name)}", json=body, headers=headers)

    async def list_tenants(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page of tenants."""
        return await self.ask("GET", "/v1/tenants", params=given(limit=limit, cursor=cursor))

    async def get_tenant(self, name: str) -> JsonObject:
        """One tenant with its quotas."""
        return await self.ask("GET", f"/v1/tenants/{_part(name)}")

    async def get_tenant_etag(self, name: str) -> tuple[JsonObject, str]:
        """The tenant, and the `ETag` with which `put_tenant` detects another client's change."""
        response = await self.request("GET", f"/v1/tenants/{_part(name)}")
        return decoded(response), response.headers.get("etag", "")

    async def delete_tenant(self, name: str) -> None:
        """Remove a tenant that has nothing left."""
        await self.request("DELETE", f"/v1/tenants/{_part(name)}")

    async def usage(
        self,
        *,
        from_: str | None = None,
        to: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JsonObject:
        """One page of billable counts by queue. `from_` and `to` are days in UTC, such as `2026-11-22`; by default this
        month so far.
        """
        query = given(**{"from": from_}, to=to, queue=queue, tenant=tenant, limit=limit, cursor=cursor)
        return await self.ask("GET", "/v1/usage", params=query)

    async def live_usage(self, *, tenant: str | None = None) -> JsonObject:
        """The last hour by minute, if the server is given the output of the job `live_usage`."""
        return await self.ask("GET", "/v1/usage/live", params=given(tenant=tenant))

    async def audit(
        self, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> JsonObject:
        """One page of administrators' actions, newest first."""
        return await self.ask("GET", "/v1/audit", params=given(tenant=tenant, limit=limit, cursor=cursor))

    # Connections

    async def list_connections(self, *, limit: int | None = None, cursor: str | None = None) -> JsonObject:
        """One page of the connections to this gateway."""
        return await self.ask("GET", "/v1/connections", params=given(limit=limit, cursor=cursor))

    async def kick_connection(self, connection_id: str) -> None:
        """Close a connection; what it holds returns at once."""
        await self.request("DELETE", f"/v1/connections/{_part(connection_id)}")

    async def _settle(self, name: str, action: str, body: JsonObject) -> list[JsonObject]:
        answer = await self.ask("POST", f"{_queue(name)}/{action}", json=body)
        results: list[JsonObject] = answer["results"]
        return results


def _part(name: str) -> str:
    check_part(name)
    return quote(name, safe="")


def _queue(name: str) -> str:
    check_queue(name)
    return f"/v1/queues/{name}"


def _redrive(
    to: str | None,
    reason: str | None,
    ids: Sequence[str] | None,
    header: Mapping[str, str] | None,
    older_than: Moment | None,
) -> JsonObject:
    chosen = given(
        reason=reason,
        ids=None if ids is None else list(ids),
        header=None if header is None else dict(header),
        older_than=_text(older_than),
    )
    return given(to=to, filter=chosen or None)


def _text(moment: Moment | None) -> str | None:
    return None if moment is None else time_text(moment)


__all__ = ["Admin", "ApiError", "GroupMode", "JsonObject", "MessageState", "Position"]
