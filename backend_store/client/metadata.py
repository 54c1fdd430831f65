"""The metadata for those outside the store: what can be looked up, and how to reach a service in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from backend_store.metadata.changes import Change, Moment, News
from backend_store.metadata.directory.client import DirectoryClient
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.moved import MovedQueue
from backend_store.metadata.remote import RemoteMetadata
from backend_store.metadata.service import MetadataService, Read
from backend_store.model import ApiKey, QueueDefinition, Quotas

__all__ = [
    "Change",
    "Definitions",
    "DirectoryClient",
    "MetadataService",
    "MovedQueue",
    "Moment",
    "News",
    "Read",
    "RemoteMetadata",
    "Tenant",
]


class Moved(Protocol):
    """By uid: queues whose messages are on their way to another one."""

    def items(self) -> Iterable[tuple[int, MovedQueue]]: ...
    def values(self) -> Iterable[MovedQueue]: ...
    def going_to(self, tenant: str, name: str) -> Iterable[MovedQueue]:
        """To a queue, at the cost of what the tenant has."""


class Definitions(Protocol):
    """Queues, keys and tenants, as dictionaries to look them up in. In another process' metadata a look-up may have to
    ask first, which `push.looking_up` explains.
    """

    @property
    def queues(self) -> Mapping[tuple[str, str], QueueDefinition]: ...
    @property
    def keys(self) -> Mapping[str, ApiKey]: ...
    @property
    def keys_used(self) -> Mapping[str, int]:
        """Key id → when it was last used, as far as it was written down."""

    @property
    def tenants(self) -> Mapping[str, Tenant]: ...
    @property
    def moved(self) -> Moved: ...
    def of_tenant(self, tenant: str) -> Sequence[QueueDefinition]:
        """Its queues, at the cost of those."""

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        """`instead_of`: only while the key is still that, or None for a new one. Raises `NotFound` and `Conflict` where
        it is not."""

    async def delete_key(self, key_id: str) -> None:
        """Raises `NotFound`, and `Conflict` for the last operator's."""

    async def note_keys_used(self, used: Mapping[str, int]) -> None:
        """When keys were last used."""

    async def put_tenant(self, name: str, now_ms: int, quotas: Quotas | None = None) -> tuple[Tenant, bool]:
        """The tenant, and whether it is new. Without `quotas` those it has stay."""

    async def delete_tenant(self, name: str) -> None:
        """Raises `NotFound`, and `Conflict` while it has queues or the last operator's key."""
