"""Enforces the quota `stored_bytes`: determines which tenants have reached it; the desk refuses their publishes.

Stored bytes are read once a second, only for tenants with such a quota: at first of all their queues, then of those
that changed. So a tenant may exceed its quota by what it publishes in about a second; what it consumes makes room as
soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set

import structlog

from backend_store.client import Store, Toucher, Touches
from gateway.limits import STORED_LOOK_SECONDS, STORED_QUEUES_PER_TURN

log = structlog.get_logger("pushq.tenants")


class StoredQuotas:
    def __init__(self, store: Store) -> None:
        self.full: dict[str, str] = {}
        """Tenant → why it may publish no more. The same object for the life of the process; the desk reads it."""
        self.looked_at = 0
        """Total number of reads of queues."""
        self._store = store
        self._toucher = Toucher(store)
        self._queues: dict[int, tuple[str, str, int]] = {}
        """Uid → (tenant, name, bytes at the last read), for queues of tenants with a quota."""
        self._uids: dict[tuple[str, str], int] = {}
        self._due: dict[int, None] = {}
        """Uids of queues that changed since they were read, in the order in which they are read next."""
        self._held: dict[str, int] = {}
        """Tenant → bytes of its queues together."""

    async def watch(self) -> None:
        """Checks once a second. Runs until cancelled."""
        while True:
            await asyncio.sleep(STORED_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One round: updates `full`."""
        tenants = self._store.tenants()
        quotas = {one.name: quota for one in tenants if (quota := one.quotas.stored_bytes) is not None}
        held = await self._look_at(quotas.keys()) if quotas else self._rest()
        over = {
            name: (
                f"tenant {name!r} stores {held[name]} bytes, but its quota is {quota}; consume messages or purge "
                "a queue"
            )
            for name, quota in quotas.items()
            if held[name] >= quota
        }
        for name in over.keys() - self.full.keys():
            log.warning("a tenant has reached its storage quota", tenant=name, bytes=held[name])
        for name in self.full.keys() - over.keys():
            log.info("a tenant may publish again", tenant=name)
        self.full.clear()
        self.full.update(over)

    def _rest(self) -> dict[str, int]:
        """No tenant has a quota: drops what was known and pending."""
        if self._toucher.is_listening:
            self._toucher.take()
            self._meet_all(set())
        return self._held

    async def _look_at(self, tenants: Set[str]) -> dict[str, int]:
        """Bytes of each tenant's queues. Reads a few queues per turn of the loop, as there may be a million."""
        await self._toucher.refresh()
        touches = self._toucher.take()
        if touches is None or tenants != self._held.keys():
            self._meet_all(tenants)
        else:
            self._due.update(dict.fromkeys(self._redefined(touches) & self._queues.keys()))
        until, due = time.monotonic() + STORED_LOOK_SECONDS, list(self._due)
        for start in range(0, len(due), STORED_QUEUES_PER_TURN):
            await self._add_up(due[start : start + STORED_QUEUES_PER_TURN])
            await asyncio.sleep(0)
            if time.monotonic() > until:
                break  # some backends answer slowly: use what is known by now
        return self._held

    async def _add_up(self, uids: Sequence[int]) -> None:
        """Reads some queues. One without an answer keeps its value, and is read again after all others."""
        held = await self._store.held_of([self._queues[uid][:2] for uid in uids])
        self.looked_at += len(uids)
        for uid in uids:
            tenant, name, before = self._queues[uid]
            del self._due[uid]
            if (now := held.get((tenant, name))) is None:
                self._due[uid] = None
            else:
                self._queues[uid] = tenant, name, now
                self._held[tenant] += now - before

    def _meet_all(self, tenants: Set[str]) -> None:
        """Starts over with all queues of these tenants. Until read again, queues keep the bytes of their last read."""
        before = self._queues
        self._held, self._queues, self._uids, self._due = dict.fromkeys(tenants, 0), {}, {}, {}
        for tenant in tenants:
            for one in self._store.metadata.of_tenant(tenant):
                _, _, held = before.get(one.uid, (tenant, one.name, 0))
                self._meet(one.uid, tenant, one.name, held)
                self._held[tenant] += held
                self._due[one.uid] = None

    def _redefined(self, touches: Touches) -> set[int]:
        """Forgets queues that were deleted. Returns the uids to read."""
        uids = set(touches.uids)
        for (tenant, name), definition in touches.defined.items():
            if tenant not in self._held:
                continue
            known = self._uids.get((tenant, name))
            if known is not None and (definition is None or definition.uid != known):
                del self._uids[tenant, name]
                self._held[tenant] -= self._queues.pop(known)[2]
                self._due.pop(known, None)
            if definition is not None:
                uids.add(definition.uid)
                if definition.uid not in self._queues:
                    self._meet(definition.uid, tenant, name)
        return uids

    def _meet(self, uid: int, tenant: str, name: str, held: int = 0) -> None:
        self._queues[uid] = tenant, name, held
        self._uids[tenant, name] = uid
