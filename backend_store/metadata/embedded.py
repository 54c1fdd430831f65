"""Queue definitions, tenants and API keys, in memory and on disk.

Reads are dictionary look-ups; a write changes memory only after its row is durable, so nobody acts on what a crash
could take back. Writers of one kind take turns, which makes check-then-write safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend_store.core.slots import PartitionMap, SlotTable
from backend_store.metadata.partition_maps import MAPS, book_key, changed, founded, map_key, only_partition
from backend_store.model import TENANT_DEFAULT, ApiKey, Conflict, NotFound, QueueConfig, QueueDefinition, QueueNotFound
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.seal import seal, unseal

QUEUES = b"queue/"
KEYS = b"key/"
TENANTS = b"tenant/"
NEXT_UID = b"next-uid"
MOVED = b"moved/"

TENANTS_MAX = 10_000
KEYS_MAX = 100_000
QUEUES_MAX = 1_000_000

_encode = msgspec.msgpack.Encoder().encode


class MovedQueue(msgspec.Struct, frozen=True):
    """A deleted queue whose messages go to another one, and until when those that still come do."""

    definition: QueueDefinition
    target: str
    until_ms: int
    is_empty: bool = False
    """All that it held has moved; only what still comes is to be sent on."""


class Tenant(msgspec.Struct, frozen=True):
    name: str
    created_at_ms: int


class Metadata:
    """All definitions of one embedded node."""

    def __init__(self, engine: Engine, write: Callable[[Batch], Awaitable[None]]):
        self._write = write
        self._turn = asyncio.Lock()
        self.queues: dict[tuple[str, str], QueueDefinition] = {}
        self.keys: dict[str, ApiKey] = {}
        self.tenants: dict[str, Tenant] = {TENANT_DEFAULT: Tenant(TENANT_DEFAULT, 0)}
        for definition in _load(engine, QUEUES, QueueDefinition):
            self.queues[definition.tenant, definition.name] = definition
        for key in _load(engine, KEYS, ApiKey):
            self.keys[key.id] = key
        for tenant in _load(engine, TENANTS, Tenant):
            self.tenants[tenant.name] = tenant
        self.moved: dict[int, MovedQueue] = {m.definition.uid: m for m in _load(engine, MOVED, MovedQueue)}
        """By uid: a name may have been used, and its queue moved, more than once."""
        self.maps: dict[int, PartitionMap] = {one.uid: one for one in _load(engine, MAPS, PartitionMap)}
        """By uid, of queues that have or had several partitions."""
        stored = engine.get(Table.META, NEXT_UID)
        self._next_uid: int = msgspec.msgpack.decode(unseal(NEXT_UID, stored), type=int) if stored else 1

    def found(self, batch: Batch, now_ms: int) -> None:
        """At the first start: the tenant that always exists gets its row."""
        if not self.tenants[TENANT_DEFAULT].created_at_ms:
            tenant = self.tenants[TENANT_DEFAULT] = Tenant(TENANT_DEFAULT, now_ms)
            _stage(batch, TENANTS + TENANT_DEFAULT.encode(), tenant)

    def skip_uids(self, batch: Batch) -> None:
        """After a restore: numbers given out since the backup are not given out again, as old receipts name them."""
        self._next_uid += QUEUES_MAX
        _stage(batch, NEXT_UID, self._next_uid)

    # ------------------------------------------------------------------------------------------------- queues

    def find(self, tenant: str, name: str) -> QueueDefinition:
        found = self.queues.get((tenant, name))
        if found is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return found

    async def create_queue(
        self, tenant: str, name: str, config: QueueConfig, now_ms: int
    ) -> tuple[QueueDefinition, bool]:
        """The queue, and whether it is new. The same config again is no error; another one is a `Conflict`."""
        async with self._turn:
            known = self.queues.get((tenant, name))
            if known is not None:
                if known.config == config:
                    return known, False
                raise Conflict(f"queue {name!r} exists with another config; change it with PATCH")
            if len(self.queues) >= QUEUES_MAX:
                raise Conflict(f"{QUEUES_MAX} queues exist, the most a node takes")
            definition = QueueDefinition(
                uid=self._next_uid, tenant=tenant, name=name, config=config, created_at_ms=now_ms, version=1
            )
            batch = Batch()
            self._new_uid()
            partitions = None
            if config.partitions > 1:
                partitions = founded(definition.uid, config.partitions, self._new_uid, batch)
            _stage(batch, NEXT_UID, self._next_uid)
            await self._put_queue(definition, batch)
            if partitions is not None:
                self.maps[definition.uid] = partitions
            return definition, True

    def _new_uid(self) -> int:
        """A number for a queue, or for one of its further partitions. The caller stages what comes next."""
        uid = self._next_uid
        self._next_uid += 1
        return uid

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        """The changed queue, or None when `version` is not the current one."""
        async with self._turn:
            known = self.find(tenant, name)
            if known.version != version:
                return None
            changed = msgspec.structs.replace(known, config=config, version=known.version + 1)
            await self._put_queue(changed, Batch())
            return changed

    def partition_map(self, uid: int) -> PartitionMap:
        known = self.maps.get(uid)
        return known if known is not None else only_partition(uid)

    async def change_partitions(
        self,
        definition: QueueDefinition,
        change: Callable[[SlotTable], SlotTable],
        extra: Callable[[PartitionMap, Batch], None],
    ) -> PartitionMap:
        """Changes a queue's slot table: the answer is durable. `extra` adds the rows that change in the same commit.
        Raises `QueueNotFound`, and what `change` raises; then nothing is changed.
        """
        uid = definition.uid
        async with self._turn:
            if self.find(definition.tenant, definition.name).uid != uid:
                raise QueueNotFound(f"queue {definition.name!r} was deleted")
            before = self.partition_map(uid)
            table = change(before.table)
            if table == before.table:
                return before
            batch = Batch()
            after = changed(before, table, is_first=uid not in self.maps, new_replica=self._new_uid, batch=batch)
            _stage(batch, NEXT_UID, self._next_uid)
            extra(after, batch)
            await self._write(batch)
            self.maps[uid] = after
            return after

    def _stage_unmapped(self, batch: Batch, uid: int) -> None:
        """The rows about a queue's partitions go."""
        for replica in self.partition_map(uid).replicas.values():
            batch.delete(Table.META, book_key(replica))
        batch.delete(Table.META, map_key(uid))

    async def _put_queue(self, definition: QueueDefinition, batch: Batch) -> None:
        _stage(batch, _queue_key(definition.tenant, definition.name), definition)
        await self._write(batch)
        self.queues[definition.tenant, definition.name] = definition

    async def delete_queue(self, tenant: str, name: str, extra: Callable[[QueueDefinition, Batch], None]) -> None:
        """Removes a queue; `extra` adds the rows that must change in the same commit."""
        async with self._turn:
            known = self.find(tenant, name)
            batch = Batch()
            batch.delete(Table.META, _queue_key(tenant, name))
            extra(known, batch)
            self._stage_unmapped(batch, known.uid)
            await self._write(batch)
            del self.queues[tenant, name]
            self.maps.pop(known.uid, None)

    async def move_queue(self, tenant: str, name: str, target: str, until_ms: int) -> MovedQueue:
        """Removes a queue whose messages go to another one."""
        async with self._turn:
            moved = MovedQueue(self.find(tenant, name), target, until_ms)
            batch = Batch()
            batch.delete(Table.META, _queue_key(tenant, name))
            _stage(batch, _moved_key(moved), moved)
            await self._write(batch)
            del self.queues[tenant, name]
            self.moved[moved.definition.uid] = moved
            return moved

    def forwarding(self, tenant: str, name: str, now_ms: int) -> str | None:
        """Where messages go that are published to a queue deleted lately: the last one of that name counts."""
        found = [
            (uid, moved.target)
            for uid, moved in self.moved.items()
            if (moved.definition.tenant, moved.definition.name) == (tenant, name) and moved.until_ms > now_ms
        ]
        return max(found)[1] if found else None

    async def emptied(self, moved: MovedQueue, extra: Callable[[Batch], None]) -> None:
        """All that a moved queue held stands in its target; `extra` adds the rows that go with it."""
        async with self._turn:
            batch = Batch()
            extra(batch)
            self._stage_unmapped(batch, moved.definition.uid)
            after = msgspec.structs.replace(moved, is_empty=True)
            _stage(batch, _moved_key(moved), after)
            await self._write(batch)
            self.moved[moved.definition.uid] = after
            self.maps.pop(moved.definition.uid, None)

    async def forget_moved(self, now_ms: int) -> None:
        """Ends the forwarding of queues whose time is over."""
        async with self._turn:
            over = [one for one in self.moved.values() if one.is_empty and one.until_ms <= now_ms]
            batch = Batch()
            for one in over:
                batch.delete(Table.META, _moved_key(one))
            if over:
                await self._write(batch)
            for one in over:
                del self.moved[one.definition.uid]

    # --------------------------------------------------------------------------------------- keys and tenants

    async def put_key(self, key: ApiKey) -> None:
        async with self._turn:
            if key.id not in self.keys and len(self.keys) >= KEYS_MAX:
                raise Conflict(f"{KEYS_MAX} keys exist, the most a node takes")
            await self._put(KEYS + key.id.encode(), key)
            self.keys[key.id] = key

    async def delete_key(self, key_id: str) -> None:
        async with self._turn:
            if key_id not in self.keys:
                raise NotFound(f"there is no key {key_id!r}")
            await self._delete(KEYS + key_id.encode())
            del self.keys[key_id]

    async def put_tenant(self, name: str, now_ms: int) -> tuple[Tenant, bool]:
        async with self._turn:
            known = self.tenants.get(name)
            if known is not None:
                return known, False
            if len(self.tenants) >= TENANTS_MAX:
                raise Conflict(f"{TENANTS_MAX} tenants exist, the most a node takes")
            tenant = Tenant(name, now_ms)
            await self._put(TENANTS + name.encode(), tenant)
            self.tenants[name] = tenant
            return tenant, True

    async def delete_tenant(self, name: str) -> None:
        async with self._turn:
            if name not in self.tenants:
                raise NotFound(f"there is no tenant {name!r}")
            if name == TENANT_DEFAULT:
                raise Conflict("tenant 'default' always exists")
            held = [q for t, q in self.queues if t == name]
            if held:
                raise Conflict(
                    f"tenant {name!r} still has {len(held)} queues, {held[0]!r} among them; delete them first"
                )
            batch = Batch()
            batch.delete(Table.META, TENANTS + name.encode())
            gone = [key.id for key in self.keys.values() if key.tenant == name]
            for key_id in gone:
                batch.delete(Table.META, KEYS + key_id.encode())
            await self._write(batch)
            del self.tenants[name]
            for key_id in gone:
                del self.keys[key_id]

    async def _put(self, key: bytes, value: Any) -> None:
        batch = Batch()
        _stage(batch, key, value)
        await self._write(batch)

    async def _delete(self, key: bytes) -> None:
        batch = Batch()
        batch.delete(Table.META, key)
        await self._write(batch)


def _queue_key(tenant: str, name: str) -> bytes:
    return QUEUES + tenant.encode() + b"\0" + name.encode()


def _moved_key(moved: MovedQueue) -> bytes:
    return MOVED + moved.definition.uid.to_bytes(8, "big")


def _stage(batch: Batch, key: bytes, value: Any) -> None:
    batch.put(Table.META, key, seal(key, _encode(value)))


def _load(engine: Engine, prefix: bytes, kind: type[Any]) -> list[Any]:
    """All rows under a prefix, a page at a time, so that no read transaction grows old."""
    decoder = msgspec.msgpack.Decoder(kind)
    out: list[Any] = []
    start, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    while True:
        rows = engine.scan(Table.META, start, end, 1000)
        out.extend(decoder.decode(unseal(key, row)) for key, row in rows)
        if len(rows) < 1000:
            return out
        start = rows[-1][0] + b"\0"
