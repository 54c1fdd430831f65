"""A gateway's copy of the home cluster's metadata: queues, API keys, tenants and data keys, held in dictionaries.

`RemoteDefinitions` has the shape of `metadata.embedded.Metadata` as far as a gateway needs it. Changes are made at the
backend, which sends what changed before it answers, so a caller that awaited the answer sees the change here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from backend_store.metadata.data_keys import DataKey, StoredRotation
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.moved import MovedAnywhere
from backend_store.metadata.queue_rows import NamesByTenant
from backend_store.metadata.recent import Recent
from backend_store.model import ApiKey, QueueDefinition, QueueNotFound, Quotas, Unavailable
from backend_store.node.node import wall_clock_ms
from backend_store.remote.definitions.spread import Spread
from backend_store.service.definitions import Definitions as News
from backend_store.service.operations import (
    AddDataKeys,
    ChangeDataKeys,
    DeleteKey,
    DeleteTenant,
    NoteKeysUsed,
    PutKey,
    PutRotation,
    PutTenant,
)

Ask = Callable[[Any], Awaitable[msgspec.Raw]]

_tenant = msgspec.msgpack.Decoder(tuple[Tenant, bool]).decode
_ids = msgspec.msgpack.Decoder(list[int]).decode


class DataKeyRows:
    """See `metadata.data_keys.DataKeys`."""

    def __init__(self) -> None:
        self.by_id: dict[int, DataKey] = {}
        self._ids_of: dict[int, dict[int, None]] = {}
        """By the queue's uid."""
        self.rotation: StoredRotation | None = None
        self.ids = range(0)
        """Ids that this gateway may still assign to new keys."""
        self.on_used_up: Callable[[], None] = _nothing
        """Called when all of `ids` are assigned: the gateway gets more when it reconnects."""

    def put(self, key: DataKey) -> None:
        if (before := self.by_id.get(key.id)) is not None and before.uid != key.uid:
            self.remove(key.id)
        self.by_id[key.id] = key
        self._ids_of.setdefault(key.uid, {})[key.id] = None

    def remove(self, key_id: int) -> None:
        if (key := self.by_id.pop(key_id, None)) is not None:
            ids = self._ids_of[key.uid]
            del ids[key_id]
            if not ids:
                del self._ids_of[key.uid]

    def ids_of(self, uid: int) -> list[int]:
        """Ids of one queue's keys."""
        return list(self._ids_of.get(uid, ()))

    def new_id(self) -> int:
        """Takes and returns an id that no key has had. Raises `Unavailable`."""
        # An earlier leader may have given the same ids to another gateway.
        while self.ids and self.ids[0] in self.by_id:
            self.ids = self.ids[1:]
        if not self.ids:
            self.on_used_up()
            raise Unavailable("this gateway has given out its ids of data keys; it gets more as it connects anew")
        first, self.ids = self.ids[0], self.ids[1:]
        return first


class RemoteDefinitions:
    """See the file's first sentence. `RemoteBackends` owns it and applies the first shard's news."""

    def __init__(self, ask: Ask, moved: MovedAnywhere):
        """`moved`: the queues, in all shards, whose messages go to other queues."""
        self._ask = ask
        self.moved = moved
        self.queues: dict[tuple[str, str], QueueDefinition] = {}
        self.queues_changed: Recent[tuple[str, str]] = Recent()
        """Names of queues that were created, changed or deleted lately."""
        self._by_tenant = NamesByTenant()
        self._name_of: dict[int, tuple[str, str]] = {}
        """By uid."""
        self.keys: dict[str, ApiKey] = {}
        self.keys_used: dict[str, int] = {}
        self.tenants: dict[str, Tenant] = {}
        self.data_keys = DataKeyRows()
        self.spread = Spread(wall_clock_ms)
        self.adopted_from = ""
        self._untold: list[dict[Any, None]] = [{}, {}, {}, {}]
        """During a full listing: the queues, keys, tenants and data keys that it has not named yet."""

    def take(self, news: News, *, is_first: bool, is_last: bool = True) -> list[QueueDefinition]:
        """Applies news. `is_first`: a full listing begins; rows that it has not named when it ends, at `is_last`, are
        removed. Returns the queues that were deleted, also those whose names new queues have now."""
        gone: list[QueueDefinition] = []
        if is_first:
            self._untold = [
                dict.fromkeys(rows) for rows in (self.queues, self.keys, self.tenants, self.data_keys.by_id)
            ]
        queues, keys, tenants, data_keys = self._untold
        news.queues_gone += untold(queues, ((one.tenant, one.name) for one in news.queues), is_last)
        news.keys_gone += untold(keys, (key.id for key in news.keys), is_last)
        news.tenants_gone += untold(tenants, (tenant.name for tenant in news.tenants), is_last)
        news.data_keys_gone += untold(data_keys, (key.id for key in news.data_keys), is_last)
        self.queues_changed.note((*((one.tenant, one.name) for one in news.queues), *news.queues_gone))
        for queue in news.queues:
            name = queue.tenant, queue.name
            before = self.queues.get(name)
            self.spread.put(before, queue)
            self.queues[name] = queue
            self._name_of[queue.uid] = name
            if before is None:
                self._by_tenant.put(*name)
            if before is not None and before.uid != queue.uid:
                self._forget_uid(before)
                gone.append(before)
        for name in news.queues_gone:
            if (before := self.queues.pop(name, None)) is not None:
                self._forget_uid(before)
                self.spread.remove(before)
                self._by_tenant.remove(*name)
                gone.append(before)
        self.keys.update({key.id: key for key in news.keys})
        self.tenants.update({tenant.name: tenant for tenant in news.tenants})
        for tenant in news.tenants_gone:
            self.tenants.pop(tenant, None)
        for data_key in news.data_keys:
            self.data_keys.put(data_key)
        for gone_id in news.data_keys_gone:
            self.data_keys.remove(gone_id)
        self.keys_used.update(news.keys_used)
        for key_id in news.keys_gone:
            self.keys.pop(key_id, None)
            self.keys_used.pop(key_id, None)
        self.data_keys.rotation = news.rotation
        return gone

    def find(self, tenant: str, name: str) -> QueueDefinition:
        """Raises `QueueNotFound`."""
        found = self.queues.get((tenant, name))
        if found is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return found

    def _forget_uid(self, definition: QueueDefinition) -> None:
        if self._name_of.get(definition.uid) == (definition.tenant, definition.name):
            del self._name_of[definition.uid]

    def of_uid(self, uid: int) -> QueueDefinition | None:
        name = self._name_of.get(uid)
        return self.queues.get(name) if name is not None else None

    def of_tenant(self, tenant: str) -> list[QueueDefinition]:
        return [self.queues[name] for name in self._by_tenant.of(tenant)]

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        await self._ask(PutKey(key, instead_of))

    async def delete_key(self, key_id: str) -> None:
        await self._ask(DeleteKey(key_id))

    async def note_keys_used(self, used: Mapping[str, int]) -> None:
        await self._ask(NoteKeysUsed(dict(used)))

    async def put_tenant(
        self, name: str, now_ms: int, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        return _tenant(await self._ask(PutTenant(name, now_ms, quotas, instead_of)))

    async def delete_tenant(self, name: str) -> None:
        await self._ask(DeleteTenant(name))

    async def add_data_keys(self, keys: Sequence[tuple[str, DataKey]]) -> set[int]:
        return set(_ids(await self._ask(AddDataKeys(list(keys)))))

    async def change_data_keys(self, keys: Sequence[DataKey]) -> None:
        await self._ask(ChangeDataKeys(list(keys)))

    async def put_rotation(self, rotation: StoredRotation | None) -> None:
        await self._ask(PutRotation(rotation))


def untold(names: dict[Any, None], told: Iterable[Any], is_last: bool) -> list[Any]:
    """Takes the `told` names of a full listing out of `names`; with its last part returns the names it lacked."""
    if not names:
        return []
    for name in told:
        names.pop(name, None)
    gone = list(names) if is_last else []
    if is_last:
        names.clear()
    return gone


def _nothing() -> None:
    """Does nothing: no line gives more ids."""
