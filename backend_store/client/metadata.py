"""The metadata as seen from outside the store: look-ups, and access to a metadata service in another process."""

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
    """By uid: queues whose messages are moving to another queue."""

    def items(self) -> Iterable[tuple[int, MovedQueue]]: ...
    def values(self) -> Iterable[MovedQueue]: ...
    def going_to(self, tenant: str, name: str) -> Iterable[MovedQueue]:
        """Those that move to a queue; the cost grows with the tenant's queues only."""


class Definitions(Protocol):
    """Queues, keys and tenants, as mappings. With metadata in another process a look-up may have to ask first; see
    `push.delivery.lookup_retry`.
    """

    @property
    def queues(self) -> Mapping[tuple[str, str], QueueDefinition]: ...
    @property
    def keys(self) -> Mapping[str, ApiKey]: ...
    @property
    def keys_used(self) -> Mapping[str, int]:
        """Key id → when it was last used, as far as recorded."""

    @property
    def tenants(self) -> Mapping[str, Tenant]: ...
    @property
    def moved(self) -> Moved: ...
    def of_tenant(self, tenant: str) -> Sequence[QueueDefinition]:
        """The tenant's queues; the cost grows with their number only."""

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        """Stores a key. `instead_of`: the key must still equal this; None for a new one. Raises `NotFound` and
        `Conflict` if it does not."""

    async def delete_key(self, key_id: str) -> None:
        """Raises `NotFound`, and `Conflict` for the last operator's key."""

    async def note_keys_used(self, used: Mapping[str, int]) -> None:
        """Records when keys were last used."""

    async def put_tenant(
        self, name: str, now_ms: int, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        """The tenant, and whether it is new. Without `quotas` an existing tenant keeps its own. `instead_of`: the
        tenant must still equal this; raises `Conflict` if it does not."""

    async def delete_tenant(self, name: str) -> None:
        """Raises `NotFound`, and `Conflict` while the tenant has queues or the last operator's key."""
