"""The embedded metadata: queue definitions, tenants and API keys, in memory and on disk.

Reads are dictionary look-ups. A write changes memory only after its row is durable, so that no reader acts on what a
crash could take back. Writes are serialized by one lock, which makes check-then-write safe.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from backend_store.core.host_lanes.single_lane import needs_single_lane
from backend_store.core.partitions.slots import PartitionMap, SlotTable
from backend_store.metadata.changes import Change, ChangeLog
from backend_store.metadata.data_keys import DataKey, DataKeys, StoredRotation
from backend_store.metadata.elsewhere import HERE, HOME, ClusterSize, Elsewhere, check_linked, links_of
from backend_store.metadata.key_rules import check_instead, heir
from backend_store.metadata.limits import MOVED_PER_TENANT_MAX
from backend_store.metadata.moved import MovedQueue, MovedQueues
from backend_store.metadata.partition_maps import MAPS, book_key, changed, founded, lane_of, map_key, only_partition
from backend_store.metadata.queue_rows import QueueRows
from backend_store.metadata.recent import Rows
from backend_store.metadata.relocation import Change as Step
from backend_store.metadata.relocation import Spot, as_known_in, lies_in
from backend_store.metadata.sharing import open_places
from backend_store.model import (
    TENANT_DEFAULT,
    ApiKey,
    Conflict,
    NotFound,
    OpenPlace,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Quotas,
    Unavailable,
    Whereabouts,
)
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.seal import seal, unseal
from backend_store.words import counted

QUEUES = b"queue/"
PLACED = b"placed/"
KEYS = b"key/"
KEYS_USED = b"key-used/"
TENANTS = b"tenant/"
NEXT_UID = b"next-uid"
MOVED = b"moved/"
IDENTITY = b"metadata-identity"
ADOPTED_FROM = b"metadata-adopted-from"
CLUSTERS = b"cluster-name/"

ADOPTED_UIDS = 1 << 31
"""The first number that a node gives to partitions of queues whose own numbers another process gave."""

TENANTS_MAX = 10_000
KEYS_MAX = 100_000
QUEUES_MAX = 1_000_000

_encode = msgspec.msgpack.Encoder().encode


class Tenant(msgspec.Struct, frozen=True):
    name: str
    created_at_ms: int
    quotas: Quotas = Quotas()


def check_tenant(known: Tenant | None, instead_of: Tenant | None, tenant: Tenant) -> None:
    """Checks that `tenant` may replace `known`; `instead_of` is what the caller knew, None if that does not matter.
    Raises `Conflict`."""
    if instead_of is not None and known not in (instead_of, tenant):  # the same once more: a lost answer
        raise Conflict(f"tenant {tenant.name!r} was changed meanwhile; look at it again")


class NamedCluster(msgspec.Struct, frozen=True):
    name: str
    identity: str


class KeyUse(msgspec.Struct, frozen=True):
    key_id: str
    at_ms: int


class ChangedMeanwhile(Conflict):
    """A change was decided on an older version of the queue's definition."""


class Metadata:
    """All definitions of one embedded node."""

    def __init__(self, engine: Engine, write: Callable[[Batch], Awaitable[None]]):
        self._store = write
        self.on_written: Callable[[], None] = _unheard
        """Called after a write, before the callers that wait for it resume: it must look in the next turn of the
        loop."""
        self.version = 0
        """Rises with each write; the rows know which of them changed."""
        self._turn = asyncio.Lock()
        self.keys: Rows[str, ApiKey] = Rows((key.id, key) for key in _load(engine, KEYS, ApiKey))
        self.keys_used: Rows[str, int] = Rows((used.key_id, used.at_ms) for used in _load(engine, KEYS_USED, KeyUse))
        """Key id → when it was last used, to the minute, as far as that was stored."""
        tenants = [Tenant(TENANT_DEFAULT, 0), *_load(engine, TENANTS, Tenant)]
        self.tenants: Rows[str, Tenant] = Rows((tenant.name, tenant) for tenant in tenants)
        configs: dict[bytes, QueueConfig] = {}
        definitions, elsewhere = _load(engine, QUEUES, QueueDefinition), _load(engine, PLACED, QueueDefinition)
        for definition in (*definitions, *elsewhere):
            # Thousands of queues have few different configs, and configs are never changed in place.
            stored = definition.config.bare()
            config = configs.setdefault(_encode(stored), stored)
            msgspec.structs.force_setattr(definition, "config", config)
            if needs_single_lane(config):  # not stored by earlier versions, which had no such queue in lanes
                msgspec.structs.force_setattr(definition, "single_lane", True)
        self.queues = QueueRows(definitions)
        self.elsewhere = Elsewhere(elsewhere)
        """Queues that are defined here, and whose messages are in other shards."""
        self.lane: int | None = None
        """The number of this lane, in a cluster of independent hosts: a queue with a lane at each host has one
        partition here, with that number."""
        self._held = Counter(tenant for tenant, _ in {**self.queues, **self.elsewhere.by_name})
        """How many queues each tenant has."""
        self.moved = MovedQueues(_load(engine, MOVED, MovedQueue))
        self.maps: Rows[int, PartitionMap] = Rows((one.uid, one) for one in _load(engine, MAPS, PartitionMap))
        """By uid, of queues that have or had several partitions."""
        self.data_keys = DataKeys(engine, _load)
        self.is_swept: Callable[[int], bool] = lambda uid: True
        """Whether no rows are left of a queue that was here under that uid."""
        self.on_shredded: Callable[[int], None] = _ignore
        """Called with the uid of a queue whose data keys were deleted with it."""
        stored = engine.get(Table.META, NEXT_UID)
        self._next_uid: int = msgspec.msgpack.decode(unseal(NEXT_UID, stored), type=int) if stored else 1

        self.identity = _text(engine, IDENTITY) or secrets.token_hex(8)
        """Identifies these metadata, whichever process holds them: two services must not be mistaken for each other."""
        self.adopted_from = _text(engine, ADOPTED_FROM)
        """In a node whose queues another process defines: the identity of that process's metadata."""
        self.clusters: dict[str, str] = {one.name: one.identity for one in _load(engine, CLUSTERS, NamedCluster)}
        """Further clusters by name: the identity of the metadata of their first shard. A name is permanent: definitions
        of queues contain it, and gateways store what they learn under the cluster that it leads to."""
        self.changes = ChangeLog(era=f"{self.identity}/{secrets.token_hex(8)}")

    async def _write(self, batch: Batch) -> None:
        """Commits a batch. The caller updates memory before it releases the lock."""
        await self._store(batch)
        self.version += 1
        self.on_written()

    def found(self, batch: Batch, now_ms: int) -> None:
        """Stages the first rows: the tenant that always exists, and the metadata's identity."""
        _stage(batch, IDENTITY, self.identity)
        if not self.tenants[TENANT_DEFAULT].created_at_ms:
            tenant = self.tenants[TENANT_DEFAULT] = Tenant(TENANT_DEFAULT, now_ms)
            _stage(batch, TENANTS + TENANT_DEFAULT.encode(), tenant)

    def skip_uids(self, batch: Batch) -> None:
        """After a restore: uids given out since the backup are not given out again, as old receipts name them."""
        self._next_uid += QUEUES_MAX
        _stage(batch, NEXT_UID, self._next_uid)

    # ------------------------------------------------------------------------------------------------- queues

    def find(self, tenant: str, name: str) -> QueueDefinition:
        found = self.queues.get((tenant, name))
        if found is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return found

    async def create_queue(
        self,
        tenant: str,
        name: str,
        config: QueueConfig,
        now_ms: int,
        size: ClusterSize = HOME,
        *,
        is_asked: bool = False,
        single_lane: bool = False,
    ) -> tuple[QueueDefinition, bool]:
        """Returns the queue, and whether it is new. The same config again is accepted; another one raises `Conflict`.
        `size`, `is_asked`: see `Elsewhere.choose`. `single_lane`: a single lane, whatever the config says."""
        config = config.bare()
        async with self._turn:
            known = self.defined(tenant, name)
            if known is not None:
                if known.config == config:
                    return known, False
                differing = ", ".join(known.config.differing(config))
                raise Conflict(f"queue {name!r} already exists with another config: {differing}; change it with PATCH")
            if len(self.queues) + len(self.elsewhere.by_name) >= QUEUES_MAX:
                raise Conflict(f"the limit of {QUEUES_MAX} queues per node is reached")
            self._check_quota(tenant)
            linked = [self.defined(tenant, other) for other in links_of(config)]
            check_linked(name, linked)
            single_lane = single_lane or needs_single_lane(config)
            single_lane = single_lane or any(one is not None and one.single_lane for one in linked)
            place = self.elsewhere.choose(
                name,
                linked,
                size,
                here=len(self.queues),
                is_asked=is_asked,
                single_lane=single_lane,
                turn=self._next_uid,
            )
            definition = QueueDefinition(
                uid=self._next_uid,
                tenant=tenant,
                name=name,
                config=config,
                created_at_ms=now_ms,
                version=1,
                shard=place.shard,
                was_plain=not config.encrypted,
                cluster=place.cluster,
                single_lane=single_lane,
            )
            batch = Batch()
            self._new_uid()
            partitions = self._founded(definition, batch) if place == HERE else None
            _stage(batch, NEXT_UID, self._next_uid)
            await self._put_queue(definition, batch, is_here=place == HERE)
            self._held[tenant] += 1
            if partitions is not None:
                self.maps[definition.uid] = partitions
            return definition, True

    def defined(self, tenant: str, name: str) -> QueueDefinition | None:
        """A queue that is defined here, wherever its messages are."""
        # For a queue that moved away, the row in `queues` only describes what is left here.
        return self.elsewhere.by_name.get((tenant, name)) or self.queues.get((tenant, name))

    def of_uid(self, uid: int) -> QueueDefinition | None:
        """The queue here with that uid, found without a scan."""
        return self.queues.of(uid)

    def of_tenant(self, tenant: str) -> list[QueueDefinition]:
        """The tenant's queues that are here."""
        return self.queues.of_tenant(tenant)

    def _check_quota(self, tenant: str) -> None:
        allowed = self.tenants[tenant].quotas.queues if tenant in self.tenants else None
        if allowed is not None and self._held[tenant] >= allowed:
            raise Conflict(
                f"tenant {tenant!r} has {self._held[tenant]} queues, and its quota is {allowed}; delete one, or ask "
                "an operator for more"
            )

    async def adopt_from(self, identity: str) -> None:
        """From now on another process defines the queues here. Raises `Conflict` where there are queues that it did not
        define: queues that it does not know would be deleted.
        """
        async with self._turn:
            if self.adopted_from == identity:
                return
            if self.adopted_from is not None:
                raise Conflict(f"the queues here belong to metadata {self.adopted_from}, and these are {identity}")
            if identity == self.identity:
                raise Conflict("these are the definitions themselves; nobody else can say which queues there are")
            if self.queues or self.moved or self.elsewhere.by_name:
                raise Conflict("there are queues that were defined here; what others define needs a store without")
            await self._put(ADOPTED_FROM, identity)
            self.adopted_from = identity

    async def name_cluster(self, name: str, identity: str, *, is_only_asked: bool) -> None:
        """Names a further cluster. Raises `Conflict` where the name belongs to another cluster, or the cluster has
        another name. `is_only_asked`: checks only, and writes nothing."""
        async with self._turn:
            known = self.clusters.get(name)
            if known == identity:
                return
            if known is not None:
                raise Conflict(
                    f"cluster {name!r} is not the cluster these backends know: their metadata id is {identity}, but "
                    f"its id is {known}; correct the addresses, or give a rebuilt cluster another name"
                )
            if (other := next((other for other, one in self.clusters.items() if one == identity), None)) is not None:
                raise Conflict(f"these backends are cluster {other!r}, not {name!r}; a cluster's name cannot change")
            if not is_only_asked:
                await self._put(CLUSTERS + name.encode(), NamedCluster(name, identity))
                self.clusters[name] = identity

    async def adopt(self, definition: QueueDefinition) -> bool:
        """Stores a queue as another process defines it. Returns False when nothing is new, or another queue has its
        name. Raises `Unavailable` while rows from an earlier stay are still here."""
        async with self._turn:
            known = self.queues.get((definition.tenant, definition.name))
            if known is not None and (known.uid != definition.uid or known.version >= definition.version):
                return False
            if known is not None and known.floor < definition.floor:
                raise Unavailable(
                    f"a queue named {definition.name!r} existed here before and is still being deleted",
                    retry_after_ms=200,
                )
            self._check_swept(definition)
            batch = Batch()
            self._next_uid = max(self._next_uid, ADOPTED_UIDS)
            partitions = self._founded(definition, batch) if known is None else None
            _stage(batch, NEXT_UID, self._next_uid)
            await self._put_queue(definition, batch)
            if known is None:
                self._held[definition.tenant] += 1
            if partitions is not None:
                self.maps[definition.uid] = partitions
            return True

    def _founded(self, definition: QueueDefinition, batch: Batch) -> PartitionMap | None:
        """The map of a new queue; stages its rows. None: it has one partition, which needs no map."""
        if self.lane is not None and not definition.single_lane:
            return lane_of(definition.uid, self.lane, batch)
        if definition.config.partitions > 1:
            return founded(definition.uid, definition.config.partitions, self._new_uid, batch)
        return None

    def _new_uid(self) -> int:
        """A number for a queue, or for one of its further partitions. The caller stages the next number."""
        uid = self._next_uid
        self._next_uid += 1
        return uid

    async def update_queue(
        self, tenant: str, name: str, config: QueueConfig, version: int, *, lanes: int = 0
    ) -> QueueDefinition | None:
        """Returns the changed queue; None when `version` is not the current one, or the queue was replaced while this
        call waited for the lock. `lanes`: see `Elsewhere.choose`.
        """
        config, seen = config.bare(), self.defined(tenant, name)
        async with self._turn:
            known = self.defined(tenant, name) or self.find(tenant, name)
            if known.version != version or (seen is not None and seen.uid != known.uid):
                return None
            linked = [self.defined(tenant, other) for other in links_of(config)]
            check_linked(name, [*linked, known] if linked else linked)
            self.elsewhere.check(known, linked, lanes=lanes)
            changed = known.changed(config)
            if needs_single_lane(config):  # it is in no lanes, or the change would have been refused
                changed = msgspec.structs.replace(changed, single_lane=True)
            await self._put_where_it_lies(changed, Batch())
            return changed

    async def relocate(self, tenant: str, name: str, version: int, change: Step) -> QueueDefinition:
        """One step of a queue's move: see `relocation`. Raises `QueueNotFound`, `ChangedMeanwhile` where `version` is
        not the current one, `Unavailable` while rows from an earlier stay are still here, and what `change` raises."""
        async with self._turn:
            known = self.defined(tenant, name) or self.find(tenant, name)
            if known.version != version:
                raise ChangedMeanwhile(f"queue {name!r} has been changed in the meantime")
            changed = msgspec.structs.replace(change(known), version=version + 1)
            batch = Batch()
            partitions = None
            own = self.queues.get((tenant, name))
            here = self._open_here(changed)
            if here is not None and own is not None and own.floor < here.floor:
                raise Unavailable(
                    f"a queue named {name!r} existed here before and is still being deleted", retry_after_ms=200
                )
            if here is not None and own is None:
                self._check_swept(self._as_told_here(changed))
                partitions = self._founded(changed, batch)
                _stage(batch, NEXT_UID, self._next_uid)
            await self._put_where_it_lies(changed, batch)
            if partitions is not None:
                self.maps[changed.uid] = partitions
            return changed

    def _check_swept(self, definition: QueueDefinition) -> None:
        """Raises `Unavailable` while rows that a returning queue had here before are being deleted."""
        is_new = (definition.tenant, definition.name) not in self.queues
        if is_new and definition.floor and not self.is_swept(definition.uid):
            detail = f"a queue named {definition.name!r} existed here before and its messages are still being deleted"
            raise Unavailable(detail, retry_after_ms=200)

    @property
    def _here(self) -> Spot:
        """This shard, which has the definitions."""
        return Spot(*HERE, is_lane=self.lane is not None)

    def is_here(self, definition: QueueDefinition, place: Whereabouts) -> bool:
        """Whether the queue's part at one of its places is in this shard, at least partly."""
        return self._here.is_at(definition, place)

    def lies_here(self, definition: QueueDefinition) -> bool:
        """Whether this shard, which has the definitions, has data of the queue or may have some."""
        return lies_in(definition, self._here)

    def _open_here(self, definition: QueueDefinition) -> OpenPlace | None:
        """The queue's place in this shard, which has the definitions, that takes publishes; None without one."""
        return next((one for one in open_places(definition) if self._here.is_at(definition, one.place)), None)

    def _as_told_here(self, definition: QueueDefinition) -> QueueDefinition:
        return as_known_in(definition, self._here)

    async def _put_where_it_lies(self, definition: QueueDefinition, batch: Batch) -> None:
        """Writes the definition; for a queue that moved away or is split also, where it differs, the row of this
        shard's part."""
        name = definition.tenant, definition.name
        own = self._as_told_here(definition)
        is_here = self.is_here(definition, definition.place)
        has_part = not is_here and (name in self.queues or self._open_here(definition) is not None)
        if is_here:
            batch.delete(Table.META, _queue_key(*name, PLACED))
        elif has_part:
            _stage(batch, _queue_key(*name), own)
        await self._put_queue(own if is_here else definition, batch, is_here=is_here)
        if is_here:
            if (before := self.elsewhere.by_name.get(name)) is not None:
                self.elsewhere.remove(before)
        elif has_part:
            self.queues[name] = own

    def partition_map(self, uid: int) -> PartitionMap:
        known = self.maps.get(uid)
        return known if known is not None else only_partition(uid)

    async def change_partitions(
        self,
        definition: QueueDefinition,
        change: Callable[[SlotTable], SlotTable],
        extra: Callable[[PartitionMap, Batch], None],
    ) -> PartitionMap:
        """Changes a queue's slot table, and returns when that is durable. `extra` adds the rows that change in the same
        commit.

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
        """Deletes the rows about a queue's partitions."""
        for replica in self.partition_map(uid).replicas.values():
            batch.delete(Table.META, book_key(replica))
        batch.delete(Table.META, map_key(uid))

    async def _put_queue(self, definition: QueueDefinition, batch: Batch, *, is_here: bool = True) -> None:
        _stage(batch, _queue_key(definition.tenant, definition.name, QUEUES if is_here else PLACED), definition)
        await self._write(batch)
        if is_here:
            self.queues[definition.tenant, definition.name] = definition
        else:
            self.elsewhere.put(definition)
        self.changes.add(Change("queue", definition.name, definition.tenant))

    async def delete_queue(
        self,
        tenant: str,
        name: str,
        extra: Callable[[QueueDefinition, Batch], None],
        *,
        uid: int | None = None,
        only_here: bool = False,
    ) -> None:
        """Removes a queue, with what is defined of it elsewhere; `extra` adds the rows that must change in the same
        commit.

        `uid`: only the queue with this uid, and no later one of that name. `only_here`: a queue that is also elsewhere
        stays there, with the same data keys. Raises `QueueNotFound`.
        """
        async with self._turn:
            known = self._find_seen(tenant, name, uid)
            batch = Batch()
            batch.delete(Table.META, _queue_key(tenant, name))
            extra(known, batch)
            self._stage_unmapped(batch, known.uid)
            other = self.elsewhere.by_name.get((tenant, name))
            is_elsewhere = other is not None and other.uid == known.uid
            stays = only_here and is_elsewhere
            if is_elsewhere and not stays:
                batch.delete(Table.META, _queue_key(tenant, name, PLACED))
            if not stays:
                self.data_keys.stage_shredded(batch, known.uid)
            await self._write(batch)
            if other is not None and is_elsewhere and not stays:
                self.elsewhere.remove(other)
            if not stays:
                self._shredded(known.uid)
                self._held[tenant] -= 1
            del self.queues[tenant, name]
            self.maps.take(known.uid)
            self.changes.add(Change("queue", name, tenant))

    async def delete_elsewhere(self, tenant: str, name: str) -> None:
        """Removes a queue whose messages are in other shards, which drop them when they hear of it.

        Raises `QueueNotFound`, also where the queue has a part here by now, which must be removed with it.
        """
        async with self._turn:
            known = self.elsewhere.by_name.get((tenant, name))
            if known is None or (tenant, name) in self.queues:
                raise QueueNotFound(f"there is no queue {name!r} that lies elsewhere alone")
            batch = Batch()
            batch.delete(Table.META, _queue_key(tenant, name, PLACED))
            self.data_keys.stage_shredded(batch, known.uid)
            await self._write(batch)
            self._shredded(known.uid)
            self.elsewhere.remove(known)
            self._held[tenant] -= 1
            self.changes.add(Change("queue", name, tenant))

    def _find_seen(self, tenant: str, name: str, uid: int | None) -> QueueDefinition:
        """While the caller waited for the lock, the queue may have been deleted, and another one made with its name."""
        known = self.find(tenant, name)
        if uid is not None and known.uid != uid:
            raise QueueNotFound(f"queue {name!r} was deleted and recreated")
        return known

    async def move_queue(
        self, tenant: str, name: str, target: str, until_ms: int, *, uid: int | None = None
    ) -> MovedQueue:
        """Removes a queue whose messages go to another one. `uid`: see `delete_queue`. Raises `QueueNotFound`, and
        `Conflict` where too many of the tenant's queues did so recently."""
        async with self._turn:
            if self.moved.of_tenant(tenant) >= MOVED_PER_TENANT_MAX:
                raise Conflict(
                    f"tenant {tenant!r} has reached the limit of {MOVED_PER_TENANT_MAX} deleted queues that still "
                    "forward messages; consume or discard this queue's messages"
                )
            moved = MovedQueue(self._find_seen(tenant, name, uid), target, until_ms)
            batch = Batch()
            batch.delete(Table.META, _queue_key(tenant, name))
            _stage(batch, _moved_key(moved), moved)
            await self._write(batch)
            del self.queues[tenant, name]
            self._held[tenant] -= 1
            self.changes.add(Change("queue", name, tenant))
            self.moved.put(moved)
            return moved

    def forwarding(self, tenant: str, name: str, now_ms: int) -> str | None:
        """The target of publishes to a recently deleted queue: that of the last queue with the name."""
        found = self.moved.last(tenant, name, now_ms)
        return found.target if found is not None else None

    async def emptied(self, moved: MovedQueue, extra: Callable[[Batch], None]) -> None:
        """Records that all messages of a moved queue are in its target; `extra` adds the rows that change in the same
        commit."""
        async with self._turn:
            batch = Batch()
            extra(batch)
            self._stage_unmapped(batch, moved.definition.uid)
            self.data_keys.stage_shredded(batch, moved.definition.uid)
            after = msgspec.structs.replace(moved, is_empty=True)
            _stage(batch, _moved_key(moved), after)
            await self._write(batch)
            self._shredded(moved.definition.uid)
            self.moved.put(after)
            self.maps.take(moved.definition.uid)

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
                self.moved.forget(one.definition.uid)

    # ------------------------------------------------------------------------------------------------ data keys

    async def add_data_keys(self, keys: Sequence[tuple[str, DataKey]]) -> set[int]:
        """Stores new data keys, each with the name of its queue. Returns the ids of the stored ones: their queue still
        exists, and no other key has the id."""
        async with self._turn:
            there = [key for name, key in keys if self._is_there(key.tenant, name, key.uid)]
            there = [key for key in there if self.data_keys.is_free(key)]
            if there:
                await self._put_data_keys(there)
            return {key.id for key in there}

    def _is_there(self, tenant: str, name: str, uid: int) -> bool:
        known, moved = self.defined(tenant, name), self.moved.get(uid)
        return (known is not None and known.uid == uid) or (moved is not None and not moved.is_empty)

    async def change_data_keys(self, keys: Sequence[DataKey]) -> None:
        """Replaces stored data keys: wrapped by another master key, or with another count. Keys deleted meanwhile stay
        deleted."""
        async with self._turn:
            known = self.data_keys.by_id
            there = [key for key in keys if key.id in known and known[key.id].uid == key.uid]
            if there:
                await self._put_data_keys(there)

    async def _put_data_keys(self, keys: Sequence[DataKey]) -> None:
        batch = Batch()
        self.data_keys.stage(batch, keys)
        await self._write(batch)
        self.data_keys.stored(keys)

    async def put_rotation(self, rotation: StoredRotation | None) -> None:
        """Stores the state of a rotation, which continues after a crash; None when it is over."""
        async with self._turn:
            batch = Batch()
            self.data_keys.stage_rotation(batch, rotation)
            await self._write(batch)
            self.data_keys.rotation = rotation

    def _shredded(self, uid: int) -> None:
        self.data_keys.shredded(uid)
        self.on_shredded(uid)

    # --------------------------------------------------------------------------------------- keys and tenants

    async def put_key(self, key: ApiKey, *, instead_of: ApiKey | None = None) -> None:
        """`instead_of`: see `key_rules.check_instead`."""
        async with self._turn:
            check_instead(self.keys.get(key.id), instead_of, key)
            if key.id not in self.keys and len(self.keys) >= KEYS_MAX:
                raise Conflict(f"the limit of {KEYS_MAX} keys per node is reached")
            await self._put(KEYS + key.id.encode(), key)
            self.keys[key.id] = key
            self.changes.add(Change("key", key.id))

    async def note_keys_used(self, used: Mapping[str, int]) -> None:
        """Stores when keys were last used, in one commit. This is no change for watchers."""
        async with self._turn:
            known = {key_id: at_ms for key_id, at_ms in used.items() if key_id in self.keys}
            batch = Batch()
            for key_id, at_ms in known.items():
                _stage(batch, KEYS_USED + key_id.encode(), KeyUse(key_id, at_ms))
            if known:
                await self._write(batch)
                self.keys_used.put(known)

    async def delete_key(self, key_id: str) -> None:
        async with self._turn:
            if key_id not in self.keys:
                raise NotFound(f"there is no key {key_id!r}")
            heir([self.keys[key_id]], (key for key in self.keys.values() if key.id != key_id))
            batch = Batch()
            batch.delete(Table.META, KEYS + key_id.encode())
            batch.delete(Table.META, KEYS_USED + key_id.encode())
            await self._write(batch)
            del self.keys[key_id]
            self.keys_used.take(key_id)
            self.changes.add(Change("key", key_id))

    async def put_tenant(
        self, name: str, now_ms: int, quotas: Quotas | None = None, *, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        """Returns the tenant, and whether it is new. Without `quotas` its quotas stay. `instead_of`: see
        `check_tenant`."""
        async with self._turn:
            known = self.tenants.get(name)
            if known is None and len(self.tenants) >= TENANTS_MAX:
                raise Conflict(f"the limit of {TENANTS_MAX} tenants per node is reached")
            tenant = Tenant(name, now_ms) if known is None else known
            if quotas is not None:
                tenant = msgspec.structs.replace(tenant, quotas=quotas)
            check_tenant(known, instead_of, tenant)
            if tenant != known:
                await self._put(TENANTS + name.encode(), tenant)
                self.tenants[name] = tenant
                self.changes.add(Change("tenant", name))
            return tenant, known is None

    async def delete_tenant(self, name: str) -> None:
        async with self._turn:
            if name not in self.tenants:
                raise NotFound(f"there is no tenant {name!r}")
            if name == TENANT_DEFAULT:
                raise Conflict("tenant 'default' cannot be deleted")
            held = [one.name for rows in (self.queues, self.elsewhere.by_name) for one in rows.of_tenant(name)]
            if held:
                queues = counted(len(held), "queue")
                raise Conflict(f"tenant {name!r} still has {queues}, including {held[0]!r}; delete them first")
            heir(
                (key for key in self.keys.values() if key.tenant == name),
                (key for key in self.keys.values() if key.tenant != name),
            )
            batch = Batch()
            batch.delete(Table.META, TENANTS + name.encode())
            gone = [key.id for key in self.keys.values() if key.tenant == name]
            for key_id in gone:
                batch.delete(Table.META, KEYS + key_id.encode())
                batch.delete(Table.META, KEYS_USED + key_id.encode())
            await self._write(batch)
            del self.tenants[name]
            self._held.pop(name, None)
            self.changes.add(Change("tenant", name))
            for key_id in gone:
                del self.keys[key_id]
                self.changes.add(Change("key", key_id))

    async def _put(self, key: bytes, value: Any) -> None:
        batch = Batch()
        _stage(batch, key, value)
        await self._write(batch)

    async def _delete(self, key: bytes) -> None:
        batch = Batch()
        batch.delete(Table.META, key)
        await self._write(batch)


def _ignore(uid: int) -> None:
    """Default of `on_shredded`: no keys are kept in memory."""


def _queue_key(tenant: str, name: str, table: bytes = QUEUES) -> bytes:
    return table + tenant.encode() + b"\0" + name.encode()


def _moved_key(moved: MovedQueue) -> bytes:
    return MOVED + moved.definition.uid.to_bytes(8, "big")


def _stage(batch: Batch, key: bytes, value: Any) -> None:
    batch.put(Table.META, key, seal(key, _encode(value)))


def _text(engine: Engine, key: bytes) -> str | None:
    row = engine.get(Table.META, key)
    return msgspec.msgpack.decode(unseal(key, row), type=str) if row is not None else None


def _load(engine: Engine, prefix: bytes, kind: type[Any]) -> list[Any]:
    """All rows with a prefix, a page at a time, so that no read transaction grows old."""
    decoder = msgspec.msgpack.Decoder(kind)
    out: list[Any] = []
    start, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    while True:
        rows = engine.scan(Table.META, start, end, 1000)
        out.extend(decoder.decode(unseal(key, row)) for key, row in rows)
        if len(rows) < 1000:
            return out
        start = rows[-1][0] + b"\0"


def _unheard() -> None:
    """Default of `on_written`: no listener."""
