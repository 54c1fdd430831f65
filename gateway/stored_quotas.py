"""Quotas of `stored_bytes`: which tenants hold as much as they may, so the desk takes no more publishes of theirs.

What is held is added up once a second, and only for tenants with such a quota. So a tenant may pass its quota by what
it publishes in about a second; what it consumes makes room as soon.
"""

from __future__ import annotations

import asyncio

import structlog

from backend_store.client import Store
from gateway.limits import STORED_LOOK_SECONDS, STORED_QUEUES_PER_TURN

log = structlog.get_logger("pushq.tenants")


class StoredQuotas:
    def __init__(self, store: Store) -> None:
        self.full: dict[str, str] = {}
        """Tenant → why it may publish no more. One object for the life of the process."""
        self._store = store

    async def watch(self) -> None:
        """For as long as the process serves."""
        while True:
            await asyncio.sleep(STORED_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One round."""
        tenants = self._store.tenants()
        quotas = {one.name: quota for one in tenants if (quota := one.quotas.stored_bytes) is not None}
        held = await self._held(set(quotas)) if quotas else {}
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

    async def _held(self, tenants: set[str]) -> dict[str, int]:
        """Bytes of each tenant's queues. Of a million queues a few are looked at in a turn of the loop."""
        held = dict.fromkeys(tenants, 0)
        for number, (tenant, name) in enumerate(list(self._store.metadata.queues)):
            if tenant in tenants:
                held[tenant] += self._store.held_bytes(tenant, name)
            if number % STORED_QUEUES_PER_TURN == STORED_QUEUES_PER_TURN - 1:
                await asyncio.sleep(0)
        return held
