"""A remote service's keys and tenants as dictionaries, for the rest of the gateway to look them up in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from backend_store.client.metadata import Definitions, MetadataService, Tenant
from backend_store.model import ApiKey, PushqError, Quotas
from gateway.catalogue import Catalogue
from gateway.lists import Lists

T = TypeVar("T")
V = TypeVar("V")


class Known(Mapping[str, V], Generic[V]):
    """One kind of thing by name. Looking up raises `LookingUp` where it must ask; so does going through all of them."""

    def __init__(self, catalogue: Catalogue[str, V], listed: Callable[[], Mapping[str, V]]) -> None:
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
        """Not one look-up each: all at once."""
        return self._listed().values()


class Host(Protocol):
    """What definitions need of the store they belong to."""

    keys_known: Catalogue[str, ApiKey]
    tenants_known: Catalogue[str, Tenant]
    lists: Lists

    async def write(self, do: Callable[[], Awaitable[T]]) -> T: ...


class RemoteDefinitions:
    """Implements `Definitions`. Queues are those that this process has taken over; nothing of them is asked here."""

    def __init__(
        self,
        store: Host,
        service: MetadataService,
        here: Definitions,
    ) -> None:
        """`here`: of this process' own store."""
        self._store = store
        self._service = service
        self.queues = here.queues
        self.of_tenant = here.of_tenant
        self.keys_used: Mapping[str, int] = {}
        self.moved = here.moved
        lists = store.lists
        self.keys: Mapping[str, ApiKey] = Known(
            store.keys_known,
            lambda: lists.all("API keys", lambda after: service.list_keys(after=after), lambda key: key.id),
        )
        self.tenants: Mapping[str, Tenant] = Known(
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
        """Known at the gateway where they were used, and for as long as it runs: this version tells nobody."""

    async def put_tenant(self, name: str, now_ms: int, quotas: Quotas | None = None) -> tuple[Tenant, bool]:
        """The service says when it was made, by its own clock."""
        return await self._changing(self._store.tenants_known, name, lambda: self._service.put_tenant(name, quotas))

    async def delete_tenant(self, name: str) -> None:
        await self._changing(self._store.tenants_known, name, lambda: self._service.delete_tenant(name))

    async def _changing(self, known: Catalogue[str, Any], name: str, do: Callable[[], Awaitable[T]]) -> T:
        """Whatever became of the change: who looks next sees what is true then."""
        try:
            return await self._store.write(do)
        finally:
            known.cache.drop(name)
            # Handlers show what they changed: they must find it, and not begin anew with the change.
            with suppress(PushqError):
                await known.ask(name).landed()
