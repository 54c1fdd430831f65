"""The calls of the metadata service as operation structs, for implementations that ask another process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from backend_store.metadata.directory.core.ring import Ring
from backend_store.metadata.directory.placement import Part, Placement
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.limits import PAGE_ITEMS_MAX
from backend_store.metadata.operations import (
    CreateQueue,
    DeleteKey,
    DeleteQueue,
    DeleteTenant,
    GetKey,
    GetPlacement,
    GetQueue,
    GetRing,
    GetTenant,
    ListKeys,
    ListPlacements,
    ListQueues,
    ListTenants,
    Operation,
    Place,
    PutKey,
    PutTenant,
    UpdateQueue,
)
from backend_store.metadata.service import Read
from backend_store.model import ApiKey, QueueConfig, QueueDefinition, Quotas


class Asking(ABC):
    """Implements `MetadataService` and `Directory` except for `watch`."""

    @abstractmethod
    async def _ask(self, operation: Operation) -> Any:
        """Returns the answer to one operation, of the type in `operations.ANSWERS`."""

    async def get_queue(self, tenant: str, name: str, *, is_sure: bool = False) -> Read[QueueDefinition | None]:
        found: Read[QueueDefinition | None] = await self._ask(GetQueue(tenant, name, is_sure))
        return found

    async def list_queues(self, tenant: str, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[QueueDefinition]:
        found: list[QueueDefinition] = await self._ask(ListQueues(tenant, after, limit))
        return found

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[QueueDefinition, bool]:
        made: tuple[QueueDefinition, bool] = await self._ask(CreateQueue(tenant, name, config))
        return made

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        changed: QueueDefinition | None = await self._ask(UpdateQueue(tenant, name, config, version))
        return changed

    async def delete_queue(self, tenant: str, name: str) -> None:
        await self._ask(DeleteQueue(tenant, name))

    async def get_placement(self, uid: int) -> Read[Placement | None]:
        found: Read[Placement | None] = await self._ask(GetPlacement(uid))
        return found

    async def list_placements(self, *, after: int = 0, limit: int = PAGE_ITEMS_MAX) -> list[Placement]:
        found: list[Placement] = await self._ask(ListPlacements(after, limit))
        return found

    async def place(self, tenant: str, name: str, uid: int, parts: Sequence[Part], *, version: int) -> Placement | None:
        placed: Placement | None = await self._ask(Place(tenant, name, uid, tuple(parts), version))
        return placed

    async def get_ring(self) -> Ring:
        """Which hosts keep which arcs."""
        ring: Ring = await self._ask(GetRing())
        return ring

    async def get_key(self, key_id: str) -> Read[ApiKey | None]:
        found: Read[ApiKey | None] = await self._ask(GetKey(key_id))
        return found

    async def list_keys(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[ApiKey]:
        found: list[ApiKey] = await self._ask(ListKeys(after, limit))
        return found

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        await self._ask(PutKey(key, instead_of))

    async def delete_key(self, key_id: str) -> None:
        await self._ask(DeleteKey(key_id))

    async def get_tenant(self, name: str) -> Read[Tenant | None]:
        found: Read[Tenant | None] = await self._ask(GetTenant(name))
        return found

    async def list_tenants(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[Tenant]:
        found: list[Tenant] = await self._ask(ListTenants(after, limit))
        return found

    async def put_tenant(
        self, name: str, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        made: tuple[Tenant, bool] = await self._ask(PutTenant(name, quotas, instead_of))
        return made

    async def delete_tenant(self, name: str) -> None:
        await self._ask(DeleteTenant(name))
