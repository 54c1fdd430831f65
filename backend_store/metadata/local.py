"""The metadata service of the process that holds the metadata."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from backend_store.metadata.changes import Moment, News
from backend_store.metadata.embedded import Metadata, Tenant
from backend_store.metadata.limits import HEARTBEAT_SECONDS, PAGE_ITEMS_MAX
from backend_store.metadata.service import Read
from backend_store.model import ApiKey, NotFound, QueueConfig, QueueDefinition, Quotas
from backend_store.storage.engine import Batch

V = TypeVar("V")


class LocalMetadata:
    """Implements `MetadataService` over the rows of this process, which has definitions only, and no messages."""

    def __init__(self, metadata: Metadata, clock_ms: Callable[[], int]):
        self._metadata = metadata
        self._clock_ms = clock_ms

    def _read(self, value: V) -> Read[V]:
        return Read(value, self._metadata.changes.now)

    # ------------------------------------------------------------------------------------------------- queues

    async def get_queue(self, tenant: str, name: str, *, is_sure: bool = False) -> Read[QueueDefinition | None]:
        return self._read(self._metadata.queues.get((tenant, name)))

    async def list_queues(self, tenant: str, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[QueueDefinition]:
        mine = self._metadata.of_tenant(tenant)
        return _page(mine, lambda queue: queue.name, after, limit)

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[QueueDefinition, bool]:
        if tenant not in self._metadata.tenants:
            raise NotFound(f"there is no tenant {tenant!r}")
        return await self._metadata.create_queue(tenant, name, config, self._clock_ms())

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        return await self._metadata.update_queue(tenant, name, config, version)

    async def delete_queue(self, tenant: str, name: str) -> None:
        await self._metadata.delete_queue(tenant, name, _nothing_else)

    # --------------------------------------------------------------------------------------- keys and tenants

    async def get_key(self, key_id: str) -> Read[ApiKey | None]:
        return self._read(self._metadata.keys.get(key_id))

    async def list_keys(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[ApiKey]:
        return _page(self._metadata.keys.values(), lambda key: key.id, after, limit)

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        await self._metadata.put_key(key, instead_of=instead_of)

    async def delete_key(self, key_id: str) -> None:
        await self._metadata.delete_key(key_id)

    async def get_tenant(self, name: str) -> Read[Tenant | None]:
        return self._read(self._metadata.tenants.get(name))

    async def list_tenants(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[Tenant]:
        return _page(self._metadata.tenants.values(), lambda tenant: tenant.name, after, limit)

    async def put_tenant(
        self, name: str, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        return await self._metadata.put_tenant(name, self._clock_ms(), quotas, instead_of=instead_of)

    async def delete_tenant(self, name: str) -> None:
        await self._metadata.delete_tenant(name)

    # -------------------------------------------------------------------------------------------------- watch

    async def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        changes, woken = self._metadata.changes, asyncio.Event()
        changes.listen(woken.set)
        try:
            while True:
                woken.clear()
                news = changes.since(after)
                after = news.now
                yield news
                if after == changes.now:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), HEARTBEAT_SECONDS)
        finally:
            changes.unlisten(woken.set)


def _page(items: Iterable[V], name_of: Callable[[V], Any], after: str, limit: int) -> list[V]:
    return heapq.nsmallest(min(limit, PAGE_ITEMS_MAX), (item for item in items if name_of(item) > after), key=name_of)


def _nothing_else(definition: QueueDefinition, batch: Batch) -> None:
    """This process stores no messages, so no other row changes with a queue."""
