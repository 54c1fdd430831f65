"""Quotas of `stored_bytes`: which tenants hold as much as they may, so the desk takes no more publishes of theirs.

What is held is looked at once a second, and only for tenants with such a quota: of all their queues at first, and then
of those that something happened to. So a tenant may pass its quota by what it publishes in about a second; what it
consumes makes room as soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set

import structlog

from backend_store.client import Store, Touches
from gateway.limits import STORED_LOOK_SECONDS, STORED_QUEUES_PER_TURN

log = structlog.get_logger("pushq.tenants")


class StoredQuotas:
    def __init__(self, store: Store) -> None:
        self.full: dict[str, str] = {}
        """Tenant → why it may publish no more. One object for the life of the process."""
        self.looked_at = 0
        """Queues that were looked at, all in all."""
        self._store = store
        self._touches: Touches | None = None
        self._queues: dict[int, tuple[str, str, int]] = {}
        """By uid, of tenants with a quota: tenant, name, and what it held when it was looked at."""
        self._held: dict[str, int] = {}
        """By tenant: what its queues held together."""

    async def watch(self) -> None:
        """For as long as the process serves."""
        while True:
            await asyncio.sleep(STORED_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One round."""
        tenants = self._store.tenants()
        quotas = {one.name: quota for one in tenants if (quota := one.quotas.stored_bytes) is not None}
        held = await self._look_at(quotas.keys()) if quotas else {}
        over = {
            name: f"tenant {name!r} holds {held[name]} bytes and its quota is {quota}; consume, or purge a queue"
            for name, quota in quotas.items()
            if held[name] >= quota
        }
        for name in over.keys() - self.full.keys():
            log.warning("a tenant holds as much as it may", tenant=name, bytes=held[name])
        for name in self.full.keys() - over.keys():
            log.info("a tenant may publish again", tenant=name)
        self.full.clear()
        self.full.update(over)

    async def _look_at(self, tenants: Set[str]) -> dict[str, int]:
        """Bytes of each tenant's queues. Of a million queues a few are looked at in a turn of the loop."""
        self._touches = self._touches or Touches(self._store)
        touched = self._touches.take()
        if touched is None or tenants != self._held.keys():
            self._held, self._queues = dict.fromkeys(tenants, 0), {}
            for tenant in tenants:
                self._queues |= {one.uid: (tenant, one.name, 0) for one in self._store.metadata.of_tenant(tenant)}
            touched = set(self._queues)
        for number, uid in enumerate(touched & self._queues.keys()):
            tenant, name, before = self._queues[uid]
            now = self._store.held_bytes(tenant, name)
            self._queues[uid] = tenant, name, now
            self._held[tenant] += now - before
            self.looked_at += 1
            if number % STORED_QUEUES_PER_TURN == STORED_QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
        return self._held
