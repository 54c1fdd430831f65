"""The metadata service over a coordinator: definitions, keys, tenants and placements; any number of hosts at once.

Reads are answered from what the host holds, at most a few seconds old, or by the coordinator. Writes are transactions
at the coordinator, on the condition that what they are based on has not changed: no concurrent write is lost.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec

from backend_store.cluster.coordinator import Coordinator, boot_seconds
from backend_store.cluster.core.values import Record
from backend_store.metadata.changes import Moment, News
from backend_store.metadata.directory.core.names import (
    api_key_key,
    kind_prefix,
    placement_key,
    queue_key,
    tenant_key,
    tenant_queues,
)
from backend_store.metadata.directory.core.ring import Ring
from backend_store.metadata.directory.limits import ARCS, FRESH_SECONDS_MAX
from backend_store.metadata.directory.placement import Part, Placement
from backend_store.metadata.directory.store import DirectoryStore
from backend_store.metadata.directory.writes import Writes
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.limits import HEARTBEAT_SECONDS, PAGE_ITEMS_MAX
from backend_store.metadata.service import Read
from backend_store.model import ApiKey, QueueConfig, QueueDefinition, Quotas, Unavailable

V = TypeVar("V")

_queue = msgspec.msgpack.Decoder(QueueDefinition).decode
_key = msgspec.msgpack.Decoder(ApiKey).decode
_tenant = msgspec.msgpack.Decoder(Tenant).decode
_placement = msgspec.msgpack.Decoder(Placement).decode


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class DirectoryService:
    """Implements `MetadataService` and `Directory`. Made by `open_directory`."""

    def __init__(self, store: DirectoryStore, clock_ms: Callable[[], int]):
        self.store = store
        self._writes = Writes(store, clock_ms)

    @property
    def ring(self) -> Ring:
        """Which hosts keep which arc, as far as this host knows."""
        return self.store.ring

    async def get_ring(self) -> Ring:
        return self.store.ring

    async def found(self) -> None:
        """Makes the tenant that always exists, once."""
        await self._writes.found()

    async def _get(self, key: bytes, decode: Callable[[bytes], V], *, is_sure: bool = False) -> Read[V | None]:
        at = self.store.history.now
        record = (await self.store.look(key))[0] if is_sure else await self.store.get(key)
        return Read(None if record is None else decode(record.value), at)

    async def _page(
        self, prefixes: Sequence[bytes], decode: Callable[[bytes], V], name_of: Callable[[Record], Any],
        after: Any, raw_after: str, limit: int,
    ) -> list[V]:  # fmt: skip
        limit = max(1, min(limit, PAGE_ITEMS_MAX))
        records = await self.store.listed(prefixes, raw_after, limit)
        behind = (record for record in records if name_of(record) > after)
        return [decode(record.value) for record in heapq.nsmallest(limit, behind, key=name_of)]

    # ----------------------------------------------------------------------------------------------------- queues

    async def get_queue(self, tenant: str, name: str, *, is_sure: bool = False) -> Read[QueueDefinition | None]:
        return await self._get(queue_key(tenant, name), _queue, is_sure=is_sure)

    async def list_queues(self, tenant: str, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[QueueDefinition]:
        prefixes = [tenant_queues(arc, tenant) for arc in range(ARCS)]
        return await self._page(prefixes, _queue, _rest_after(prefixes[0]), after.encode(), after, limit)

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[QueueDefinition, bool]:
        return await self._writes.create_queue(tenant, name, config)

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        return await self._writes.update_queue(tenant, name, config, version)

    async def delete_queue(self, tenant: str, name: str) -> None:
        await self._writes.delete_queue(tenant, name)

    # --------------------------------------------------------------------------------------------------- placement

    async def get_placement(self, uid: int) -> Read[Placement | None]:
        return await self._get(placement_key(uid), _placement)

    async def list_placements(self, *, after: int = 0, limit: int = PAGE_ITEMS_MAX) -> list[Placement]:
        prefixes = [kind_prefix(arc, "p") for arc in range(ARCS)]
        text = f"{after:016x}"
        return await self._page(prefixes, _placement, _rest_after(prefixes[0]), text.encode(), text, limit)

    async def place(self, tenant: str, name: str, uid: int, parts: Sequence[Part], *, version: int) -> Placement | None:
        return await self._writes.place(tenant, name, uid, parts, version=version)

    # -------------------------------------------------------------------------------------------- keys and tenants

    async def get_key(self, key_id: str) -> Read[ApiKey | None]:
        return await self._get(api_key_key(key_id), _key)

    async def list_keys(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[ApiKey]:
        prefixes = [kind_prefix(arc, "k") for arc in range(ARCS)]
        return await self._page(prefixes, _key, _rest_after(prefixes[0]), after.encode(), after, limit)

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        await self._writes.put_key(key, instead_of)

    async def delete_key(self, key_id: str) -> None:
        await self._writes.delete_key(key_id)

    async def get_tenant(self, name: str) -> Read[Tenant | None]:
        return await self._get(tenant_key(name), _tenant)

    async def list_tenants(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[Tenant]:
        prefixes = [kind_prefix(arc, "t") for arc in range(ARCS)]
        return await self._page(prefixes, _tenant, _rest_after(prefixes[0]), after.encode(), after, limit)

    async def put_tenant(
        self, name: str, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        return await self._writes.put_tenant(name, quotas, instead_of)

    async def delete_tenant(self, name: str) -> None:
        await self._writes.delete_tenant(name)

    # ------------------------------------------------------------------------------------------------------- watch

    async def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """Raises `Unavailable` when the host itself has not heard from the coordinator for `FRESH_SECONDS_MAX`."""
        history, woken = self.store.history, asyncio.Event()
        loop = asyncio.get_running_loop()
        history.listen(woken.set)
        due = loop.time()
        """When the next news are due, even if nothing happened."""
        try:
            while True:
                woken.clear()
                if not self.store.is_fresh:
                    raise Unavailable(
                        f"this host has not heard from its coordinator for {FRESH_SECONDS_MAX:.0f} s; ask another host"
                    )
                if history.has_reached(after):
                    news = history.since(after)
                    if news.changes or news.is_reset or loop.time() >= due:
                        after, due = news.now, loop.time() + HEARTBEAT_SECONDS
                        yield news
                        continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS if loop.time() >= due else due - loop.time()):
                        await woken.wait()
        finally:
            history.unlisten(woken.set)


def _rest_after(prefix: bytes) -> Callable[[Record], bytes]:
    """The part of a record's key after its prefix, which has the same length on every arc."""
    size = len(prefix)
    return lambda record: record.key[size:]


@asynccontextmanager
async def open_directory(
    coordinator: Coordinator,
    *,
    host: str = "",
    url: str = "",
    keeps_all: bool = True,
    clock: Callable[[], float] = boot_seconds,
    clock_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[DirectoryService]:
    """One host's service, with all arcs, or with those that the ring gives to `host`. Raises `Unavailable`."""
    store = await DirectoryStore.open(coordinator, host=host, url=url, keeps_all=keeps_all, clock=clock)
    try:
        service = DirectoryService(store, clock_ms)
        await service.found()
        await store.wait_filled()
        yield service
    finally:
        await store.close()
