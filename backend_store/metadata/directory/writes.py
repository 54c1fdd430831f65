"""Writes of the directory: read, decide, and write on the condition that what was read has not changed.

A tenant's counts of queues and keys are written with each of them, so that quotas hold and a tenant is deleted only
when nothing of it is left, whichever hosts write at once. Uids of queues are reserved in blocks and never given twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from backend_store.cluster.core.values import (
    NEVER,
    Compare,
    Delete,
    Operation,
    Put,
    Record,
    Transaction,
    changed_at,
    created_at,
)
from backend_store.metadata.directory.core.names import (
    NEXT_UID,
    api_key_key,
    check_name,
    check_queue_name,
    held_key,
    kind_prefix,
    placement_key,
    queue_key,
    tenant_key,
)
from backend_store.metadata.directory.limits import (
    ARCS,
    CONFLICT_PAUSE_SECONDS_MAX,
    CONFLICTS_MAX,
    KEYS_PER_DELETION_MAX,
    UIDS_PER_BLOCK,
)
from backend_store.metadata.directory.placement import Part, Placement, checked
from backend_store.metadata.directory.store import DirectoryStore
from backend_store.metadata.embedded import ADOPTED_UIDS, KEYS_MAX, QUEUES_MAX, Tenant, check_tenant
from backend_store.metadata.key_rules import check_instead, heir
from backend_store.model import (
    OPERATOR,
    TENANT_DEFAULT,
    ApiKey,
    Conflict,
    NotFound,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Quotas,
    Unavailable,
)
from backend_store.words import counted

T = TypeVar("T")


class Held(msgspec.Struct, frozen=True, array_like=True):
    """How many queues and keys a tenant has."""

    queues: int = 0
    keys: int = 0


class Again(Exception):
    """What the write was based on has changed: it is tried again."""


_encode = msgspec.msgpack.Encoder().encode
_DECODERS: Final[dict[type[Any], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (QueueDefinition, ApiKey, Tenant, Held, Placement, int)
}


def _value(kind: type[T], record: Record | None) -> T | None:
    if record is None:
        return None
    value: T = _DECODERS[kind].decode(record.value)
    return value


def _unchanged(key: bytes, record: Record | None) -> Compare:
    return changed_at(key, NEVER if record is None else record.changed_at)


class Writes:
    """The writes of one host. They raise `Unavailable` and `OutcomeUnknown`, as the coordinator does."""

    def __init__(self, store: DirectoryStore, clock_ms: Callable[[], int]):
        self._store = store
        self._clock_ms = clock_ms
        self._uids = iter(range(0))
        self._numbering = asyncio.Lock()

    async def _until_done(self, attempt: Callable[[], Awaitable[T]]) -> T:
        for _ in range(CONFLICTS_MAX):
            try:
                return await attempt()
            except Again:
                await asyncio.sleep(random.uniform(0, CONFLICT_PAUSE_SECONDS_MAX))
        raise Unavailable(f"the record was changed concurrently {CONFLICTS_MAX} times; retry", retry_after_ms=1000)

    async def _write(self, compares: Sequence[Compare], then: Sequence[Operation]) -> None:
        """Raises `Again` where one of the conditions does not hold."""
        outcome = await self._store.coordinator.transact(Transaction(compares, then))
        if not outcome.succeeded:
            raise Again
        await self._store.seen(outcome.revision)

    async def found(self) -> None:
        """Makes the tenant that always exists, once."""
        key = tenant_key(TENANT_DEFAULT)
        if (await self._store.look(key))[0] is None:
            with suppress(Again):  # another host did it
                tenant = Tenant(TENANT_DEFAULT, self._clock_ms())
                await self._write((changed_at(key, NEVER),), (Put(key, _encode(tenant)),))

    async def _new_uid(self) -> int:
        """A uid that was never given out, and is never given out again."""
        async with self._numbering:
            if (uid := next(self._uids, None)) is not None:
                return uid

            async def block() -> range:
                (record,) = await self._store.look(NEXT_UID)
                first = _value(int, record) or 1
                if first + UIDS_PER_BLOCK >= ADOPTED_UIDS:
                    raise Conflict(f"all {ADOPTED_UIDS} numbers for queues have been given; begin a new directory")
                await self._write((_unchanged(NEXT_UID, record),), (Put(NEXT_UID, _encode(first + UIDS_PER_BLOCK)),))
                return range(first, first + UIDS_PER_BLOCK)

            self._uids = iter(await self._until_done(block))
            return next(self._uids)

    # ----------------------------------------------------------------------------------------------------- queues

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[QueueDefinition, bool]:
        check_queue_name(tenant, name)
        keys = queue_key(tenant, name), tenant_key(tenant), held_key(tenant)
        config, uid = config.bare(), 0

        async def attempt() -> tuple[QueueDefinition, bool]:
            nonlocal uid
            queue, owner, tally = await self._store.look(*keys)
            known, held = _value(QueueDefinition, queue), _value(Held, tally) or Held()
            if known is not None:
                if (has := known.config.bare()) == config:
                    return known, False
                differing = ", ".join(has.differing(config))
                raise Conflict(f"queue {name!r} already exists with another config: {differing}; change it with PATCH")
            _check_room(tenant, _value(Tenant, owner), held)
            uid = uid or await self._new_uid()
            made = QueueDefinition(
                uid=uid,
                tenant=tenant,
                name=name,
                config=config,
                created_at_ms=self._clock_ms(),
                version=1,
                was_plain=not config.encrypted,
            )
            more = msgspec.structs.replace(held, queues=held.queues + 1)
            await self._write(
                [_unchanged(key, record) for key, record in zip(keys, (queue, owner, tally), strict=True)],
                (Put(keys[0], _encode(made)), Put(keys[2], _encode(more))),
            )
            return made, True

        return await self._until_done(attempt)

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> QueueDefinition | None:
        key = queue_key(tenant, name)

        async def attempt() -> QueueDefinition | None:
            (record,) = await self._store.look(key)
            known = _value(QueueDefinition, record)
            if known is None:
                raise QueueNotFound(f"there is no queue {name!r}")
            if known.version != version:
                return None
            after = known.changed(config.bare())
            await self._write((_unchanged(key, record),), (Put(key, _encode(after)),))
            return after

        return await self._until_done(attempt)

    async def delete_queue(self, tenant: str, name: str) -> None:
        keys = queue_key(tenant, name), held_key(tenant)

        async def attempt() -> None:
            queue, tally = await self._store.look(*keys)
            known, held = _value(QueueDefinition, queue), _value(Held, tally) or Held()
            if known is None:
                raise QueueNotFound(f"there is no queue {name!r}")
            fewer = msgspec.structs.replace(held, queues=held.queues - 1)
            await self._write(
                [_unchanged(key, record) for key, record in zip(keys, (queue, tally), strict=True)],
                (Delete(keys[0]), Put(keys[1], _encode(fewer)), Delete(placement_key(known.uid))),
            )

        await self._until_done(attempt)

    async def place(self, tenant: str, name: str, uid: int, parts: Sequence[Part], *, version: int) -> Placement | None:
        ordered = checked(parts)
        keys = queue_key(tenant, name), placement_key(uid)

        async def attempt() -> Placement | None:
            queue, place = await self._store.look(*keys)
            known, before = _value(QueueDefinition, queue), _value(Placement, place)
            if known is None or known.uid != uid:
                raise QueueNotFound(f"there is no queue {name!r} with the number {uid}")
            if (before.version if before is not None else 0) != version:
                return None
            after = Placement(uid, tenant, name, ordered, version + 1)
            # Only its existence is compared: a new config is no reason to place the queue again.
            there = created_at(keys[0], queue.created_at) if queue is not None else _unchanged(keys[0], None)
            await self._write((there, _unchanged(keys[1], place)), (Put(keys[1], _encode(after)),))
            return after

        return await self._until_done(attempt)

    # -------------------------------------------------------------------------------------------- keys and tenants

    async def put_key(self, key: ApiKey, instead_of: ApiKey | None = None) -> None:
        """`instead_of`: see `key_rules.check_instead`."""
        check_name("key", key.id)
        keys = api_key_key(key.id), tenant_key(key.tenant), held_key(key.tenant)

        async def attempt() -> None:
            record, owner, tally = await self._store.look(*keys)
            known, held = _value(ApiKey, record), _value(Held, tally) or Held()
            if owner is None:
                raise NotFound(f"there is no tenant {key.tenant!r}")
            if known is not None and known.tenant != key.tenant:
                raise Conflict(f"key {key.id!r} belongs to tenant {known.tenant!r}")
            check_instead(known, instead_of, key)
            if known is None and held.keys >= KEYS_MAX:
                raise Conflict(f"the tenant has reached the limit of {KEYS_MAX} keys")
            more = held if known is not None else msgspec.structs.replace(held, keys=held.keys + 1)
            compares = [_unchanged(keys[0], record), created_at(keys[1], owner.created_at), _unchanged(keys[2], tally)]
            await self._write(compares, (Put(keys[0], _encode(key)), Put(keys[2], _encode(more))))

        await self._until_done(attempt)

    async def delete_key(self, key_id: str) -> None:
        key = api_key_key(key_id)

        async def attempt() -> None:
            (record,) = await self._store.look(key)
            known = _value(ApiKey, record)
            if record is None or known is None:
                raise NotFound(f"there is no key {key_id!r}")
            (tally,) = await self._store.look(held_key(known.tenant))
            await self._delete_keys(known.tenant, tally, [record], await self._while_operated([record]), [])

        await self._until_done(attempt)

    async def put_tenant(
        self, name: str, quotas: Quotas | None = None, instead_of: Tenant | None = None
    ) -> tuple[Tenant, bool]:
        check_name("tenant", name)
        key = tenant_key(name)

        async def attempt() -> tuple[Tenant, bool]:
            (record,) = await self._store.look(key)
            known = _value(Tenant, record)
            tenant = known if known is not None else Tenant(name, self._clock_ms())
            if quotas is not None:
                tenant = msgspec.structs.replace(tenant, quotas=quotas)
            check_tenant(known, instead_of, tenant)
            if tenant != known:
                await self._write((_unchanged(key, record),), (Put(key, _encode(tenant)),))
            return tenant, known is None

        return await self._until_done(attempt)

    async def delete_tenant(self, name: str) -> None:
        keys = tenant_key(name), held_key(name)

        async def attempt() -> None:
            owner, tally = await self._store.look(*keys)
            held = _value(Held, tally) or Held()
            if owner is None:
                raise NotFound(f"there is no tenant {name!r}")
            if name == TENANT_DEFAULT:
                raise Conflict("tenant 'default' always exists")
            if held.queues:
                raise Conflict(f"tenant {name!r} still has {counted(held.queues, 'queue')}; delete them first")
            theirs = await self._keys_of(name) if held.keys else []
            there = await self._while_operated(theirs)
            if len(theirs) > KEYS_PER_DELETION_MAX:
                await self._delete_keys(name, tally, theirs[:KEYS_PER_DELETION_MAX], there, [])
                raise Again
            gone = [_unchanged(keys[0], owner), *there], [Delete(keys[0])]
            await self._delete_keys(name, tally, theirs, *gone, is_last=True)

        await self._until_done(attempt)

    async def _delete_keys(
        self,
        tenant: str,
        tally: Record | None,
        records: Sequence[Record],
        compares: list[Compare],
        then: list[Delete],
        *,
        is_last: bool = False,
    ) -> None:
        held = _value(Held, tally) or Held()
        key = held_key(tenant)
        fewer = Put(key, _encode(msgspec.structs.replace(held, keys=held.keys - len(records))))
        await self._write(
            [_unchanged(key, tally), *(_unchanged(record.key, record) for record in records), *compares],
            [*(Delete(record.key) for record in records), *then, Delete(key) if is_last else fewer],
        )

    async def _keys_of(self, tenant: str) -> list[Record]:
        """All keys of a tenant. A key that is put meanwhile changes the tenant's counts, so the deletion is tried
        again."""
        return await self._keys(lambda key: key.tenant == tenant)

    async def _while_operated(self, gone: Sequence[Record]) -> list[Compare]:
        """The condition that an operator's key remains without the keys `gone`. Raises `Conflict` where there is
        none."""
        keys = {key.id: key for key in map(_api_key, gone) if OPERATOR in key.scopes}
        if not keys:
            return []
        others = await self._keys(lambda key: OPERATOR in key.scopes and key.id not in keys)
        found = heir(keys.values(), map(_api_key, others))
        return [_unchanged(one.key, one) for one in others if found is not None and _api_key(one).id == found.id]

    async def _keys(self, is_wanted: Callable[[ApiKey], bool]) -> list[Record]:
        """Keys, read from the coordinator."""
        found: list[Record] = []
        for arc in range(ARCS):
            prefix = kind_prefix(arc, "k")
            page = await self._store.coordinator.read(prefix)
            while True:
                found += (one for one in page.records if is_wanted(_api_key(one)))
                if not page.has_more:
                    break
                page = await self._store.coordinator.read(prefix, after=page.records[-1].key)
        return found


def _api_key(record: Record) -> ApiKey:
    key: ApiKey = _DECODERS[ApiKey].decode(record.value)
    return key


def _check_room(tenant: str, owner: Tenant | None, held: Held) -> None:
    if owner is None:
        raise NotFound(f"there is no tenant {tenant!r}")
    if held.queues >= QUEUES_MAX:
        raise Conflict(f"the tenant has reached the limit of {QUEUES_MAX} queues")
    allowed = owner.quotas.queues
    if allowed is not None and held.queues >= allowed:
        raise Conflict(
            f"tenant {tenant!r} has {counted(held.queues, 'queue')}, and its quota is {allowed}; delete one, or ask "
            "an operator for more"
        )
