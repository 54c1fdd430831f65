"""Serves the console: gives it the HTTP API without a socket in between, and a cached list of queues.

Each request of a page passes the API with the credential of the signed-in user: the same checks, limits and audit as
from outside.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
import structlog

from backend_store.client import Queue, Store, timestamp
from backend_store.model import ClusterAway, PushqError, QueueConfig, QueueNotFound, Unauthenticated
from gateway.api import dashboards
from gateway.api.dispatch import Api
from gateway.api.schemas import components, queue_changes
from gateway.config.load import known_settings, value_of
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from gateway.limits import (
    CONSOLE_LIST_KNOWN_SECONDS,
    CONSOLE_LIST_SHARE_MAX,
    CONSOLE_LIST_SLICE,
    CONSOLE_LIST_WAIT_SECONDS,
    CONSOLE_LISTS_MAX,
)
from gateway.queues.settings import SETTINGS
from gateway.usage.schema import SCHEMA_VERSION, AuditRow
from push.delivery.lookup_retry import LookingUp, found, handled
from push.problems import KINDS
from web_console.server import Caller, QueueRow, Refused, Reply
from web_console.visit import Problem

log = structlog.get_logger("pushq.console")

_FRESH_S: Final = 2.0
_RATE_S: Final = 5.0
"""Rates are measured over at least so many seconds."""


class _List:
    """The cached list of one tenant's queues."""

    def __init__(self) -> None:
        self.rows: list[QueueRow] = []
        self.looked_at_s = -math.inf
        self.good_until_s = 0.0
        self.cost_s = 0.0
        """CPU seconds that the last refresh took."""
        self.looking: asyncio.Task[None] | None = None
        """A refresh in the background."""
        self.lock = asyncio.Lock()
        self.base: dict[str, tuple[float, int, int]] = {}
        """Queue → (time, published, acked) from which its rates are measured."""


class ConsoleServer:
    """Implements `web_console.server.Server`."""

    def __init__(self, gateway: Gateway, api: Api) -> None:
        self._gateway = gateway
        self._api = api
        self._lists: OrderedDict[str, _List] = OrderedDict()

    async def identify(self, credential: str) -> Caller:
        principal = await self._principal(credential)
        return Caller(principal.id, principal.tenant, principal.name, principal.access.scopes)

    async def _principal(self, credential: str) -> Principal:
        with _problems():
            try:
                return await found(lambda: self._gateway.keyring.identify(credential))
            except Unauthenticated as error:
                raise Refused(error.detail) from None

    async def ask(
        self,
        credential: str,
        address: str,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Reply:
        given = [(b"authorization", f"Bearer {credential}".encode("latin-1", "replace"))]
        if body:
            given.append((b"content-length", str(len(body)).encode()))
            if not any(name.lower() == "content-type" for name, _ in headers):
                given.append((b"content-type", b"application/json"))
        given += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(query).encode(),
            "headers": given,
            "client": (address, 0) if address else None,
        }
        exchange = _Exchange(body)
        await self._api(scope, exchange.receive, exchange.send)
        return Reply(exchange.status, exchange.headers, b"".join(exchange.parts))

    async def queues(self, credential: str) -> list[QueueRow]:
        principal = await self._principal(credential)
        with _problems():
            rows = await self._rows(principal.tenant)
        if principal.access.is_admin:
            return rows
        return [row for row in rows if principal.access.may("view", row.name)]

    async def _rows(self, tenant: str) -> list[QueueRow]:
        kept = self._lists.get(tenant)
        if kept is None:
            kept = self._lists[tenant] = _List()
            while len(self._lists) > CONSOLE_LISTS_MAX:
                self._lists.popitem(last=False)
        self._lists.move_to_end(tenant)
        now_s = time.monotonic()
        if kept.cost_s < CONSOLE_LIST_WAIT_SECONDS or now_s - kept.looked_at_s > CONSOLE_LIST_KNOWN_SECONDS:
            await self._refresh(tenant, kept)
        elif now_s >= kept.good_until_s and kept.looking is None:
            kept.looking = asyncio.create_task(self._refresh_unasked(tenant, kept), name="console list")
        return kept.rows

    async def _refresh_unasked(self, tenant: str, kept: _List) -> None:
        """Refreshes in the background: the caller got the cached list already, and a later one gets the error."""
        try:
            await self._refresh(tenant, kept)
        except PushqError as error:
            log.info("the list of queues has not changed", tenant=tenant, error=error.detail)
        finally:
            kept.looking = None

    async def _refresh(self, tenant: str, kept: _List) -> None:
        async with kept.lock:
            if time.monotonic() < kept.good_until_s:
                return
            kept.cost_s = await handled(partial(self._look, tenant, kept))
            kept.looked_at_s = time.monotonic()
            # A longer list is refreshed less often, so that a list costs a bounded share of a core.
            kept.good_until_s = kept.looked_at_s + max(_FRESH_S, kept.cost_s / CONSOLE_LIST_SHARE_MAX)

    async def _look(self, tenant: str, kept: _List) -> float:
        cost_s, rows, base = 0.0, [], {}
        store = self._gateway.store
        names = await found(lambda: sorted(name for _, name in store.names(tenant)))
        for start in range(0, len(names), CONSOLE_LIST_SLICE):
            began = time.thread_time()
            now_s = time.monotonic()
            for name in names[start : start + CONSOLE_LIST_SLICE]:
                try:
                    try:
                        row = _row(store, tenant, name)
                    except LookingUp:
                        row = await found(partial(_row, store, tenant, name))
                except QueueNotFound:
                    continue  # deleted meanwhile
                if not row.is_away:
                    base[name] = _rated(row, now_s, kept.base.get(name))
                rows.append(row)
            cost_s += time.thread_time() - began
            await asyncio.sleep(0)  # messages come first
        kept.rows, kept.base = rows, base
        return cost_s

    async def write_down(self, caller: Caller, act: str, address: str) -> None:
        store, audit = self._gateway.store, self._gateway.store.audit
        row = AuditRow(
            SCHEMA_VERSION,
            store.id,
            audit.begin(),
            timestamp(self._gateway.clock_ms()),
            caller.tenant,
            caller.id,
            caller.name,
            act,
            "/console",
            "ok",
            None,
            None,
            address or None,
            [],
        )
        with _problems():
            await audit.put(row.seq, msgspec.json.encode(row), has_ended=True)

    def dashboards(self, tenant: str) -> dict[str, tuple[str, ...]]:
        with _problems():
            return dashboards.of_tenant(self._gateway.store.documents, tenant)

    async def save_dashboard(self, tenant: str, name: str, queues: tuple[str, ...] | None) -> None:
        with _problems():
            await dashboards.save(self._gateway.store.documents, tenant, name, queues)

    def settings(self) -> list[tuple[str, str]]:
        return [
            (key, msgspec.json.encode(value_of(self._gateway.settings, key), enc_hook=str).decode())
            for key in sorted(known_settings())
        ]

    def queue_changes(self) -> dict[str, Any]:
        return _queue_changes()

    def dev_credential(self) -> str | None:
        if not self._gateway.settings.dev:
            return None
        return self._gateway.keyring.temporary(name="console", scopes=("admin", "operator"))


@cache
def _queue_changes() -> dict[str, Any]:
    """The JSON schema of changes to a queue, without settings that allow no change."""
    schemas, _ = components([QueueConfig])
    changes = queue_changes(schemas[QueueConfig.__name__])
    there = {name: schema for name, schema in changes["properties"].items() if SETTINGS[name].change}
    return {**changes, "properties": there}


@contextmanager
def _problems() -> Iterator[None]:
    """Turns an error of the server into a page that shows it; the user stays signed in."""
    try:
        yield
    except PushqError as error:
        kind = KINDS[error.code]
        raise Problem(kind.status, kind.title, error.code, error.detail) from error


def _row(store: Store, tenant: str, name: str) -> QueueRow:
    queue: Queue | None = None
    try:
        queue = store.queue(tenant, name)
        stats = queue.stats()
    except ClusterAway:
        config = queue.config if queue is not None else store.metadata.queues[tenant, name].config
        return QueueRow(name, config.kind, 0, 0, 0, 0, 0, 0, 0, 0, is_away=True)
    return QueueRow(
        name,
        queue.config.kind,
        stats.ready,
        stats.in_flight,
        stats.delayed,
        stats.dead,
        stats.oldest_age_ms,
        stats.consumers,
        stats.published_total,
        stats.acked_total,
    )


def _rated(row: QueueRow, now_s: float, base: tuple[float, int, int] | None) -> tuple[float, int, int]:
    """Sets the rates since `base`, and returns the base for the next refresh."""
    here = (now_s, row.published_total, row.acked_total)
    if base is None or row.published_total < base[1]:
        return here
    seconds = now_s - base[0]
    if seconds > 0:
        row.published_per_s = (row.published_total - base[1]) / seconds
        row.acked_per_s = (row.acked_total - base[2]) / seconds
    return here if seconds >= _RATE_S else base


class _Exchange:
    """The ASGI receive and send of one request without a socket."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.status = 500
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
