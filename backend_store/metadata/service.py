"""What any metadata service answers, wherever it runs: queue definitions, API keys, tenants, and what changed.

Reads come with the moment they were true at, so a reader can tell whether a change it hears of is newer. Writes return
when they are durable.
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
    """See the file's first sentence. Every call may raise `Unavailable`; a write also `OutcomeUnknown`."""

    async def get_queue(self, tenant: str, name: str, *, is_sure: bool = False) -> Read[QueueDefinition | None]:
        """`is_sure`: as it is when it is asked for, not as one of several hosts may still remember it."""

    async def list_queues(self, tenant: str, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[QueueDefinition]:
        """A tenant's queues by name, those behind `after`."""

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[QueueDefinition, bool]:
        """The queue, and whether it is new. Raises `Conflict` for another config."""

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        """None when `version` is not the current one. Raises `QueueNotFound`."""

    async def delete_queue(self, tenant: str, name: str) -> None:
        """Raises `QueueNotFound`."""

    async def get_key(self, key_id: str) -> Read[ApiKey | None]: ...

    async def list_keys(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[ApiKey]:
        """Keys of all tenants by id, those behind `after`."""

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        """`instead_of`: only while the key is still that. Raises `NotFound` and `Conflict` where it is not."""

    async def delete_key(self, key_id: str) -> None:
        """Raises `NotFound`, and `Conflict` for the last operator's."""

    async def get_tenant(self, name: str) -> Read[Tenant | None]: ...

    async def list_tenants(self, *, after: str = "", limit: int = PAGE_ITEMS_MAX) -> list[Tenant]:
        """Tenants by name, those behind `after`."""

    async def put_tenant(self, name: str, quotas: Quotas | None = None) -> tuple[Tenant, bool]:
        """The tenant, and whether it is new. Without `quotas` those it has stay."""

    async def delete_tenant(self, name: str) -> None:
        """Raises `NotFound`, and `Conflict` while it has queues or the last operator's key."""

    def watch(self, after: Moment | None) -> AsyncGenerator[News, None]:
        """What happens from `after` on, as it happens; at least one piece of news each `HEARTBEAT_SECONDS`.

        Raises `Unavailable` when the service is lost; whoever watches may go on from the last news it had.
        """
