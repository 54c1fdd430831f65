"""The interface of the metadata service, wherever it runs: queue definitions, API keys, tenants, and what changed.

A read returns the moment at which it was true, so that a reader can tell whether a change that it hears of is newer. A
write returns when it is durable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Generic, Protocol, TypeVar

import msgspec

from backend_store.metadata.changes import Moment, News
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.limits import PAGE_ITEMS_MAX
from backend_store.model import ApiKey, QueueConfig, QueueDefinition, Quotas

V = TypeVar("V")


class Read(msgspec.Struct, Generic[V], frozen=True):
    """An answer, and the moment at which it was true."""

    value: V
    at: Moment


class MetadataService(Protocol):
    """A metadata service. Every call may raise `Unavailable`; a write also `OutcomeUnknown`."""

    async def get_queue(self, tenant: str, name: str, *, is_sure: bool = False) -> Read[QueueDefinition | None]:
        """`is_sure`: reads the present definition, not one that a host may have cached."""

    async def list_queues(self, tenant: str, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[QueueDefinition]:
        """A tenant's queues with names after `after`, by name."""

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[QueueDefinition, bool]:
        """Returns the queue, and whether it is new. Raises `Conflict` for another config."""

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        """Returns None when `version` is not the current one. Raises `QueueNotFound`."""

    async def delete_queue(self, tenant: str, name: str) -> None:
        """Raises `QueueNotFound`."""

    async def get_key(self, key_id: str) -> Read[ApiKey | None]: ...

    async def list_keys(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[ApiKey]:
        """Keys of all tenants with ids after `after`, by id."""

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        """`instead_of`: writes only while the stored key is this one. Raises `NotFound` and `Conflict` where it is
        not."""

    async def delete_key(self, key_id: str) -> None:
        """Raises `NotFound`, and `Conflict` for the last operator's key."""

    async def get_tenant(self, name: str) -> Read[Tenant | None]: ...

    async def list_tenants(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[Tenant]:
        """Tenants with names after `after`, by name."""

    async def put_tenant(
        self, name: str, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        """Returns the tenant, and whether it is new. Without `quotas` its quotas stay. `instead_of`: the tenant must
        still equal this; raises `Conflict` if it does not."""

    async def delete_tenant(self, name: str) -> None:
        """Raises `NotFound`, and `Conflict` while it has queues or the last operator's key."""

    def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """Changes after `after`, as they happen; at least one `News` each `HEARTBEAT_SECONDS`.

        Raises `Unavailable` when the service is lost; the caller may resume from the last news that it got.
        """
