"""Presents a remote metadata service's keys and tenants to the gateway as mappings, backed by catalogues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from backend_store.client.metadata import Definitions, MetadataService, Tenant
from backend_store.model import ApiKey, PushqError, Quotas
from gateway.metadata.catalog import Catalog
from gateway.metadata.listing import Lists

T = TypeVar("T")
V = TypeVar("V")


class IdentityLookup(Mapping[str, V], Generic[V]):
    """All items of one kind by name. A look-up or an iteration raises `LookingUp` if the service must be asked."""

    def __init__(self, catalogue: Catalog[str, V], listed: Callable[[], Mapping[str, V]]) -> None:
        self._catalogue = catalogue
        self._listed = listed

    def __getitem__(self, name: str) -> V:
        found = self._catalogue.find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = self._catalogue.find(name)
        return default if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._listed())

    def values(self) -> Any:
        """All values from one list instead of a look-up each."""
        return self._listed().values()


class Host(Protocol):
    """What `RemoteDefinitions` needs from its store."""

    keys_known: Catalog[str, ApiKey]
    tenants_known: Catalog[str, Tenant]
    lists: Lists

    async def write(self, do: Callable[[], Awaitable[T]]) -> T: ...


class RemoteDefinitions:
    """Implements `Definitions`. `queues` are those adopted by this process, which are never asked for here."""

    def __init__(
        self,
        store: Host,
        service: MetadataService,
        here: Definitions,
    ) -> None:
        """`here`: the definitions of this process's own store."""
        self._store = store
        self._service = service
        self.queues = here.queues
        self.of_tenant = here.of_tenant
        self.keys_used: Mapping[str, int] = {}
        self.moved = here.moved
        lists = store.lists
        self.keys: Mapping[str, ApiKey] = IdentityLookup(
            store.keys_known,
            lambda: lists.all("API keys", lambda after: service.list_keys(after=after), lambda key: key.id),
        )
        self.tenants: Mapping[str, Tenant] = IdentityLookup(
            store.tenants_known,
            lambda: lists.all("tenants", lambda after: service.list_tenants(after=after), lambda tenant: tenant.name),
        )

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        def put() -> Awaitable[None]:
            return self._service.put_key(key, instead_of=instead_of)

        await self._changing(self._store.keys_known, key.id, put)

    async def delete_key(self, key_id: str) -> None:
        await self._changing(self._store.keys_known, key_id, lambda: self._service.delete_key(key_id))

    async def note_keys_used(self, used: Mapping[str, int]) -> None:
        """Does nothing: with a metadata service, the last use of a key is known only to its gateway while that runs."""

    async def put_tenant(
        self, name: str, now_ms: int, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        """The service sets the creation time by its own clock; `now_ms` is not used."""

        def put() -> Awaitable[tuple[Tenant, bool]]:
            return self._service.put_tenant(name, quotas, instead_of=instead_of)

        return await self._changing(self._store.tenants_known, name, put)

    async def delete_tenant(self, name: str) -> None:
        await self._changing(self._store.tenants_known, name, lambda: self._service.delete_tenant(name))

    async def _changing(self, known: Catalog[str, Any], name: str, do: Callable[[], Awaitable[T]]) -> T:
        """Makes a change, and drops the cached item whatever the outcome, so that the next look-up sees the current
        one."""
        try:
            return await self._store.write(do)
        finally:
            known.cache.drop(name)
            # Handlers return what they changed: they must find it at once, or they would run again with the change.
            with suppress(PushqError):
                await known.ask(name).landed()
