"""Maintains API keys: stores when each was last used, and removes keys that expired long ago.

Accuracy to the minute costs one commit per minute for all keys together, and none while no key is used.
"""

from __future__ import annotations

import asyncio

import structlog

from backend_store.client import Store
from backend_store.model import Conflict, NotFound, PushqError
from gateway.identity.authentication import Keyring
from gateway.limits import (
    EXPIRED_KEY_KEPT_MS,
    EXPIRED_KEYS_PER_LOOK_MAX,
    KEY_CARE_SECONDS,
    KEYS_USED_PER_COMMIT_MAX,
)
from push.connections import Connections

log = structlog.get_logger("pushq.auth")


class ApiKeyUpkeep:
    def __init__(self, store: Store, keyring: Keyring, connections: Connections) -> None:
        self._metadata = store.metadata
        self._steady_ms = store.node.steady_ms
        self._keyring = keyring
        self._connections = connections

    async def watch(self) -> None:
        """Maintains periodically. Runs until cancelled."""
        while True:
            await asyncio.sleep(KEY_CARE_SECONDS)
            try:
                await self.look()
            except PushqError as error:
                log.warning("key usage will be stored later", error=error.detail)

    async def look(self) -> None:
        """One round. Raises `PushqError`."""
        await self.write_down()
        await self._remove_expired()

    async def write_down(self) -> None:
        """Stores when keys were last used; those of open connections count as used now. Raises `PushqError`."""
        for connection in self._connections:
            principal = connection.holder.principal
            if principal is not None:
                self._keyring.note_use(principal.id)
        used = self._keyring.take_used(KEYS_USED_PER_COMMIT_MAX)
        if used:
            try:
                await self._metadata.note_keys_used(used)
            except PushqError:
                self._keyring.keep_used(used)
                raise

    async def _remove_expired(self) -> None:
        """Removes keys some time after they expired: until then lists show why their callers are refused."""
        # A clock set years ahead by mistake must refuse keys only until it is set back, and not delete any.
        before_ms = min(self._keyring.now_ms(), self._steady_ms()) - EXPIRED_KEY_KEPT_MS
        over = [
            key for key in self._keyring.stored() if key.expires_at_ms is not None and key.expires_at_ms < before_ms
        ]
        for key in over[:EXPIRED_KEYS_PER_LOOK_MAX]:
            try:
                await self._keyring.revoke(key.id)
            except (NotFound, Conflict):
                continue  # another caller deleted it; or it is the last operator's, and stays visible
            log.info("expired key removed", key=key.id, tenant=key.tenant)
